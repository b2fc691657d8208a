"""Arithmetic on f16, bf16 and their pairs, and mixed-precision arithmetic.

Every operation rounds once, to nearest even. A NaN result is 0x7fff. ``.relu`` makes a negative
result 0 and keeps NaN, ``.sat`` limits to [0, 1] and makes NaN 0. ``.ftz`` is that of f32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np

from simulator.isa import float32
from simulator.isa.table import instruction
from simulator.isa.values import DTYPES, Array
from simulator.numerics import approximate
from simulator.numerics.formats import BF16, F16, decode_table
from simulator.numerics.rounding import Direction, add32, fma32, sub32

_F16 = ("f16", "f16x2")
_BF16 = ("bf16", "bf16x2")
_NEAREST = ("", ".rn")
_ONE, _HALF, _BELOW_TIE = np.uint32(1), np.uint32(16), np.uint32(0x7FFF)
_FORMATS: Final = {"f16": F16, "f16x2": F16, "bf16": BF16, "bf16x2": BF16}


def wide(a: Array, t: str) -> Array:
    """The float32 values of f16 or bf16 operands, exactly; a NaN becomes canonical."""
    return decode_table(_FORMATS[t])[a.view(np.uint16)]


def narrow(x: Array, t: str) -> Array:
    """float32 or float64 values (for bf16: float32) to nearest even in f16 or bf16."""
    nan = np.isnan(x)
    if t in _F16:
        codes = x.astype(np.float16).view(np.uint16)
    else:
        bits = x.view(np.uint32)
        codes = (bits + _BELOW_TIE + (bits >> _HALF & _ONE) >> _HALF).astype(np.uint16)
    if np.count_nonzero(nan):
        codes[nan] = 0x7FFF
    return codes.view(DTYPES[t])


def flush16(a: Array) -> Array:
    """f16 values with subnormal numbers as zeros of their sign."""
    bits = a.view(np.uint16)
    tiny = (bits & np.uint16(0x7C00)) == 0
    return np.where(tiny, bits & np.uint16(0x8000), bits).view(np.float16)


# 1. Sums and products


def _forms(name: str, section: str) -> Callable[[Any], Any]:
    """A decorator that enters add, sub, mul or fma for every type and modifier."""
    operands = "<t> = <t> <t> <t>" if name == "fma" else "<t> = <t> <t>"
    modes = (".rn",) if name == "fma" else _NEAREST
    limits = (".sat", ".relu") if name == "fma" else (".sat",)

    def declare(function: Any) -> Any:
        template = f"{name}<mode><ftz><limit>.<t>"
        instruction(template, operands, mode=modes, ftz=("", ".ftz"), limit=("", *limits),
                    t=_F16, section=section)(function)  # fmt: skip
        instruction(template, operands, mode=modes, ftz=("",),
                    limit=("", ".relu") if name == "fma" else ("",), t=_BF16,
                    section=section)(function)  # fmt: skip
        return function

    return declare


@_forms("add", "9.7.4.1 add")
def add(a: Array, b: Array, *, t: str, ftz: str, limit: str) -> Array:
    """``a + b``."""
    return _fused(a, _ones(a, t), b, t=t, ftz=ftz, limit=limit)


@_forms("sub", "9.7.4.2 sub")
def sub(a: Array, b: Array, *, t: str, ftz: str, limit: str) -> Array:
    """``a - b``."""
    return _fused(a, _ones(a, t), neg(b, t=t), t=t, ftz=ftz, limit=limit)


@_forms("mul", "9.7.4.3 mul")
def mul(a: Array, b: Array, *, t: str, ftz: str, limit: str) -> Array:
    """``a * b``."""
    # Adding -0 keeps the sign of a zero product.
    return _fused(a, b, neg(np.zeros_like(a), t=t), t=t, ftz=ftz, limit=limit)


@_forms("fma", "9.7.4.4 fma")
def fma(a: Array, b: Array, c: Array, *, t: str, ftz: str, limit: str) -> Array:
    """``a * b + c``."""
    return _fused(a, b, c, t=t, ftz=ftz, limit=limit)


def _ones(a: Array, t: str) -> Array:
    return np.full_like(a, 1 if t in _F16 else 0x3F80)


def _fused(a: Array, b: Array, c: Array, *, t: str, ftz: str, limit: str) -> Array:
    if ftz:
        a, b, c = flush16(a), flush16(b), flush16(c)
    exact = _fused_f16(a, b, c) if t in _F16 else _fused_bf16(wide(a, t), wide(b, t), wide(c, t))
    result = narrow(exact, t)
    if ftz:
        # Subnormal is what rounds to below 2**-14 on the grid of normal numbers.
        large = narrow(exact * 2.0**10, t)
        small = (np.abs(exact) < 2.0**-13) & (np.abs(large) < np.float16(2.0**-4))
        result = np.where(small, np.copysign(np.float16(0), result), result)
    if limit == ".sat":
        return float32.saturated(result)
    return _relu(result, t) if limit else result


def _fused_f16(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` as float64, near enough that rounding it to f16 is rounding once.

    Products have 22 bits, so float64 can only lose a product that is 2**30 times smaller than
    ``c``: far too little to reach a tie of f16 from ``c``.
    """
    product: Array = a.astype(np.float64) * b.astype(np.float64)
    return product + c.astype(np.float64)


def _fused_bf16(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` as float32, rounded so that rounding it to bf16 is rounding once."""
    nearest = fma32(a, b, c)
    if not np.count_nonzero((nearest.view(np.uint32) & np.uint32(0xFFFF)) == np.uint32(0x8000)):
        return nearest
    # A float32 on a tie of bf16 hides on which side the exact value lies. Of the two neighbours
    # around an inexact value the one with an odd last bit lies on the same side of every tie.
    down, up = fma32(a, b, c, "rm"), fma32(a, b, c, "rp")
    return np.where(down.view(np.uint32) & _ONE, down, up)


def _relu(a: Array, t: str) -> Array:
    """``a`` with +0 for everything below or equal to 0; NaN stays."""
    return np.where(wide(a, t) <= 0, np.zeros_like(a), a)


# 2. Signs and order


def _canonical(codes: Array, t: str) -> Array:
    nan = (codes & np.uint16(0x7FFF)) > np.uint16(_FORMATS[t].infinity)
    return np.where(nan, np.uint16(0x7FFF), codes)


@instruction("neg.<t>", "<t> = <t>", t=(*_F16, *_BF16), section="9.7.4.5 neg")
def neg(a: Array, *, t: str) -> Array:
    """``-a``."""
    return _canonical(a.view(np.uint16) ^ np.uint16(0x8000), t).view(a.dtype)


@instruction("neg.ftz.<t>", "<t> = <t>", t=_F16, section="9.7.4.5 neg")
def neg_ftz(a: Array) -> Array:
    """``-a``, a zero for a subnormal."""
    return neg(flush16(a), t="f16")


@instruction("abs.<t>", "<t> = <t>", t=(*_F16, *_BF16), section="9.7.4.6 abs")
def abs_(a: Array, *, t: str) -> Array:
    """``|a|``."""
    return _canonical(a.view(np.uint16) & np.uint16(0x7FFF), t).view(a.dtype)


@instruction("abs.ftz.<t>", "<t> = <t>", t=_F16, section="9.7.4.6 abs")
def abs_ftz(a: Array) -> Array:
    """``|a|``, 0 for a subnormal."""
    return abs_(flush16(a), t="f16")


@instruction("<op><ftz><nan><size>.<t>", "<t> = <t> <t>", op=("min",), ftz=("", ".ftz"), t=_F16,
             nan=("", ".NaN"), size=("", ".xorsign.abs"), section="9.7.4.7 min")  # fmt: skip
@instruction("<op><ftz><nan><size>.<t>", "<t> = <t> <t>", op=("min",), ftz=("",), t=_BF16,
             nan=("", ".NaN"), size=("", ".xorsign.abs"), section="9.7.4.7 min")  # fmt: skip
@instruction("<op><ftz><nan><size>.<t>", "<t> = <t> <t>", op=("max",), ftz=("", ".ftz"), t=_F16,
             nan=("", ".NaN"), size=("", ".xorsign.abs"), section="9.7.4.8 max")  # fmt: skip
@instruction("<op><ftz><nan><size>.<t>", "<t> = <t> <t>", op=("max",), ftz=("",), t=_BF16,
             nan=("", ".NaN"), size=("", ".xorsign.abs"), section="9.7.4.8 max")  # fmt: skip
def extreme(a: Array, b: Array, *, op: str, ftz: str, nan: str, size: str, t: str) -> Array:
    """The smaller or larger, as for f32."""
    if ftz:
        a, b = flush16(a), flush16(b)
    x, y = (np.abs(wide(v, t)) if size else wide(v, t) for v in (a, b))
    result = narrow((float32.extreme_nan if nan else float32.extreme)(x, y, op=op), t)
    if not size:
        return result
    # The sign counts even where the operand that it comes from is NaN.
    sign = (a.view(np.uint16) ^ b.view(np.uint16)) & np.uint16(0x8000)
    return _canonical(result.view(np.uint16) | sign, t).view(result.dtype)


# 3. Functions


@instruction("tanh.approx.<t>", "<t> = <t>", f=("tanh",), t=(*_F16, *_BF16),
             section="9.7.4.9 tanh")  # fmt: skip
@instruction("ex2.approx.<t>", "<t> = <t>", f=("ex2",), t=_F16, section="9.7.4.10 ex2")
@instruction("ex2.approx.ftz.<t>", "<t> = <t>", f=("ex2",), t=_BF16, section="9.7.4.10 ex2")
def approximation(a: Array, *, f: str, t: str) -> Array:
    """The function of ``a``, as accurate as the type allows; ``.ftz`` is bf16's own range."""
    ftz = t in _BF16 and f == "ex2"
    return narrow(approximate.FUNCTIONS[f](wide(a, t), ftz=ftz), t)


# 4. Mixed precision


@instruction("add<mode><sat>.f32.<s>", "f32 = <s> f32", s=("f16", "bf16"), sat=("", ".sat"),
             mode=("", ".rn", ".rz", ".rm", ".rp"), section="9.7.5.1 add")  # fmt: skip
def add_mixed(a: Array, c: Array, *, s: str, mode: str, sat: str) -> Array:
    """``a + c`` as f32."""
    return _saturate(add32(wide(a, s), c, _direction(mode)), sat)


@instruction("sub<mode><sat>.f32.<s>", "f32 = <s> f32", s=("f16", "bf16"), sat=("", ".sat"),
             mode=("", ".rn", ".rz", ".rm", ".rp"), section="9.7.5.2 sub")  # fmt: skip
def sub_mixed(a: Array, c: Array, *, s: str, mode: str, sat: str) -> Array:
    """``a - c`` as f32."""
    return _saturate(sub32(wide(a, s), c, _direction(mode)), sat)


@instruction("fma<mode><sat>.f32.<s>", "f32 = <s> <s> f32", s=("f16", "bf16"), sat=("", ".sat"),
             mode=(".rn", ".rz", ".rm", ".rp"), section="9.7.5.3 fma")  # fmt: skip
def fma_mixed(a: Array, b: Array, c: Array, *, s: str, mode: str, sat: str) -> Array:
    """``a * b + c`` as f32, rounded once."""
    return _saturate(fma32(wide(a, s), wide(b, s), c, _direction(mode)), sat)


def _direction(mode: str) -> Direction:
    return cast(Direction, mode[1:] or "rn")


def _saturate(x: Array, sat: str) -> Array:
    return float32.saturated(x) if sat else x
