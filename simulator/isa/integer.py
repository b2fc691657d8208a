"""Integer arithmetic.

Results wrap at the width of their type, as numpy's do. Instructions that set or use the carry flag
are not here: the flag is state.

Division by zero is left to the machine by the ISA. Here quotient and remainder are then all ones,
which is what ptxas's 32- and 64-bit division sequences give.
"""

from __future__ import annotations

import numpy as np

from simulator.isa.table import instruction
from simulator.isa.values import DTYPES, Array

_UNSIGNED = ("u16", "u32", "u64")
_SIGNED = ("s16", "s32", "s64")
_TYPES = (*_UNSIGNED, *_SIGNED)
_PAIRS = ("u16x2", "s16x2")
_WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


# 1. Sums and products


@instruction("add.<t>", "<t> = <t> <t>", t=(*_TYPES, *_PAIRS), section="9.7.1.1 add")
def add(a: Array, b: Array) -> Array:
    """``a + b``."""
    return a + b


@instruction("sub.<t>", "<t> = <t> <t>", t=_TYPES, section="9.7.1.2 sub")
def sub(a: Array, b: Array) -> Array:
    """``a - b``."""
    return a - b


@instruction("add.sat.s32", "s32 = s32 s32", section="9.7.1.1 add")
def add_sat(a: Array, b: Array) -> Array:
    """``a + b``, clamped to the range of s32."""
    return _clamp(a.astype(np.int64) + b)


@instruction("sub.sat.s32", "s32 = s32 s32", section="9.7.1.2 sub")
def sub_sat(a: Array, b: Array) -> Array:
    """``a - b``, clamped to the range of s32."""
    return _clamp(a.astype(np.int64) - b)


def _clamp(x: Array) -> Array:
    info = np.iinfo(np.int32)
    return np.minimum(np.maximum(x, info.min), info.max).astype(np.int32)


@instruction("mul.lo.<t>", "<t> = <t> <t>", t=_TYPES, section="9.7.1.3 mul")
def mul_lo(a: Array, b: Array) -> Array:
    """Lower half of ``a * b``."""
    return a * b


@instruction("mul.hi.<t>", "<t> = <t> <t>", t=_WIDE, section="9.7.1.3 mul")
def mul_hi(a: Array, b: Array, *, t: str) -> Array:
    """Upper half of ``a * b``."""
    high: Array = mul_wide(a, b, t=t) >> 8 * a.itemsize
    return high.astype(a.dtype)


@instruction("mul.hi.u64", "u64 = u64 u64", section="9.7.1.3 mul")
def mul_hi_u64(a: Array, b: Array) -> Array:
    """Upper half of ``a * b``, by 32-bit parts."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> shift, b & low, b >> shift
    middle: Array = a1 * b0 + (a0 * b0 >> shift)
    other: Array = a0 * b1 + (middle & low)
    high: Array = a1 * b1 + (middle >> shift) + (other >> shift)
    return high


@instruction("mul.hi.s64", "s64 = s64 s64", section="9.7.1.3 mul")
def mul_hi_s64(a: Array, b: Array) -> Array:
    """Upper half of ``a * b``: a negative factor is 2**64 too large as an unsigned one."""
    high = mul_hi_u64(a.view(np.uint64), b.view(np.uint64)).view(np.int64)
    return high - np.where(a < 0, b, 0) - np.where(b < 0, a, 0)


@instruction("mul.wide.<t>", "<w> = <t> <t>", t=("u16",), w=("u32",), section="9.7.1.3 mul")
@instruction("mul.wide.<t>", "<w> = <t> <t>", t=("s16",), w=("s32",), section="9.7.1.3 mul")
@instruction("mul.wide.<t>", "<w> = <t> <t>", t=("u32",), w=("u64",), section="9.7.1.3 mul")
@instruction("mul.wide.<t>", "<w> = <t> <t>", t=("s32",), w=("s64",), section="9.7.1.3 mul")
def mul_wide(a: Array, b: Array, *, t: str) -> Array:
    """``a * b`` at twice the width."""
    return np.multiply(a, b, dtype=DTYPES[_WIDE[t]])


@instruction("mad.lo.<t>", "<t> = <t> <t> <t>", t=_TYPES, section="9.7.1.4 mad")
def mad_lo(a: Array, b: Array, c: Array) -> Array:
    """Lower half of ``a * b``, plus ``c``."""
    return a * b + c


@instruction("mad.hi.<t>", "<t> = <t> <t> <t>", t=_WIDE, section="9.7.1.4 mad")
def mad_hi(a: Array, b: Array, c: Array, *, t: str) -> Array:
    """Upper half of ``a * b``, plus ``c``."""
    return mul_hi(a, b, t=t) + c


@instruction("mad.hi.sat.s32", "s32 = s32 s32 s32", section="9.7.1.4 mad")
def mad_hi_sat(a: Array, b: Array, c: Array) -> Array:
    """Upper half of ``a * b``, plus ``c``, clamped to the range of s32."""
    return _clamp(mul_hi(a, b, t="s32").astype(np.int64) + c)


@instruction("mad.hi.u64", "u64 = u64 u64 u64", section="9.7.1.4 mad")
def mad_hi_u64(a: Array, b: Array, c: Array) -> Array:
    """Upper half of ``a * b``, plus ``c``."""
    return mul_hi_u64(a, b) + c


@instruction("mad.hi.s64", "s64 = s64 s64 s64", section="9.7.1.4 mad")
def mad_hi_s64(a: Array, b: Array, c: Array) -> Array:
    """Upper half of ``a * b``, plus ``c``."""
    return mul_hi_s64(a, b) + c


@instruction("mad.wide.<t>", "<w> = <t> <t> <w>", t=("u16",), w=("u32",), section="9.7.1.4 mad")
@instruction("mad.wide.<t>", "<w> = <t> <t> <w>", t=("s16",), w=("s32",), section="9.7.1.4 mad")
@instruction("mad.wide.<t>", "<w> = <t> <t> <w>", t=("u32",), w=("u64",), section="9.7.1.4 mad")
@instruction("mad.wide.<t>", "<w> = <t> <t> <w>", t=("s32",), w=("s64",), section="9.7.1.4 mad")
def mad_wide(a: Array, b: Array, c: Array, *, t: str) -> Array:
    """``a * b + c`` at twice the width of the factors."""
    return mul_wide(a, b, t=t) + c


@instruction("sad.<t>", "<t> = <t> <t> <t>", t=_TYPES, section="9.7.1.7 sad")
def sad(a: Array, b: Array, c: Array) -> Array:
    """``c + |a - b|``."""
    distance: Array = np.maximum(a, b) - np.minimum(a, b)
    return c + distance


# 2. Quotients


@instruction("div.<t>", "<t> = <t> <t>", t=_UNSIGNED, section="9.7.1.8 div")
def div_unsigned(a: Array, b: Array) -> Array:
    """``a / b`` rounded down; all ones for ``b = 0``."""
    return np.where(b == 0, ~(b & 0), np.floor_divide(a, b))


@instruction("div.<t>", "<t> = <t> <t>", t=_SIGNED, section="9.7.1.8 div")
def div_signed(a: Array, b: Array) -> Array:
    """``a / b`` rounded toward zero; -1 for ``b = 0``; the lowest number over -1 is itself."""
    quotient = np.floor_divide(a, b)
    # numpy rounds down, which is one too low where the exact quotient is a negative fraction.
    quotient += (quotient * b != a) & ((a ^ b) < 0)
    return np.where(b == 0, ~(b & 0), quotient)


@instruction("rem.<t>", "<t> = <t> <t>", t=_UNSIGNED, section="9.7.1.9 rem")
def rem_unsigned(a: Array, b: Array) -> Array:
    """``a`` modulo ``b``; all ones for ``b = 0``."""
    return np.where(b == 0, ~(b & 0), np.remainder(a, b))


@instruction("rem.<t>", "<t> = <t> <t>", t=_SIGNED, section="9.7.1.9 rem")
def rem_signed(a: Array, b: Array) -> Array:
    """``a - b * (a / b)``, with the sign of ``a``; -1 for ``b = 0``."""
    return np.where(b == 0, ~(b & 0), a - b * div_signed(a, b))


# 3. Order


@instruction("abs.<t>", "<t> = <t>", t=_SIGNED, section="9.7.1.10 abs")
def abs_(a: Array) -> Array:
    """``|a|``; the lowest number stays itself."""
    return np.abs(a)


@instruction("neg.<t>", "<t> = <t>", t=_SIGNED, section="9.7.1.11 neg")
def neg(a: Array) -> Array:
    """``-a``; the lowest number stays itself."""
    return -a


@instruction("min.<t>", "<t> = <t> <t>", t=(*_TYPES, *_PAIRS), section="9.7.1.12 min")
def min_(a: Array, b: Array) -> Array:
    """The smaller."""
    return np.minimum(a, b)


@instruction("max.<t>", "<t> = <t> <t>", t=(*_TYPES, *_PAIRS), section="9.7.1.13 max")
def max_(a: Array, b: Array) -> Array:
    """The larger."""
    return np.maximum(a, b)


@instruction("min.relu.<t>", "<t> = <t> <t>", t=("s32", "s16x2"), section="9.7.1.12 min")
def min_relu(a: Array, b: Array) -> Array:
    """The smaller, and 0 instead of a negative result."""
    return np.maximum(np.minimum(a, b), 0)


@instruction("max.relu.<t>", "<t> = <t> <t>", t=("s32", "s16x2"), section="9.7.1.13 max")
def max_relu(a: Array, b: Array) -> Array:
    """The larger, and 0 instead of a negative result."""
    return np.maximum(np.maximum(a, b), 0)
