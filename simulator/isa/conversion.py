"""cvt of one value: between integers, between floating-point types, and from one to the other.

Values are widened exactly to float64 and rounded once to the destination. An integer result is
limited to the range of its type. A NaN becomes the destination's canonical NaN, or, as an integer,
0 unless the source is f64 or the destination has 64 bits: then only the top bit is set.
"""

from __future__ import annotations

from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from simulator.isa.float32 import saturated
from simulator.isa.float64 import canonical
from simulator.isa.table import instruction
from simulator.isa.types import BITS, DTYPES, Array
from simulator.numerics.formats import BF16, F16, RoundingMode, canonical_nan, decode_table, encode
from simulator.numerics.rounding import Direction, flush, to_f32

_CVT = "9.7.9.22 cvt"
_INTEGERS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")
_FLOATS = ("f16", "bf16", "f32", "f64")
_DIRECTIONS = ("rn", "rz", "rm", "rp")
_INTEGRAL: Final = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
Doubles = NDArray[np.float64]


# 1. Integer to integer


@instruction("cvt.<d>.<s>", "<d> = <s>", d=_INTEGERS, s=_INTEGERS, section=_CVT)
def integer(a: Array, *, d: str) -> Array:
    """``a`` extended by its own sign or zeros, or cut to the low bits."""
    return a.astype(DTYPES[d])


@instruction("cvt.sat.<d>.<s>", "<d> = <s>", d=_INTEGERS, s=_INTEGERS, section=_CVT)
def integer_sat(a: Array, *, d: str) -> Array:
    """``a`` limited to the range of the destination."""
    here, there = np.iinfo(a.dtype), np.iinfo(DTYPES[d])
    low, high = max(here.min, there.min), min(here.max, there.max)
    return np.minimum(np.maximum(a, low), high).astype(DTYPES[d])


# 2. Integer to float


@instruction("cvt.<mode><sat>.<d>.<s>", "<d> = <s>", d=("f16", "bf16", "f32"), s=_INTEGERS,
             mode=_DIRECTIONS, sat=("", ".sat"), section=_CVT)  # fmt: skip
@instruction("cvt.<mode><sat>.<d>.<s>", "<d> = <s>", d=("f64",), mode=_DIRECTIONS,
             s=("u8", "u16", "u32", "s8", "s16", "s32"), sat=("", ".sat"),
             section=_CVT)  # fmt: skip
def float_from_integer(a: Array, *, d: str, mode: RoundingMode, sat: str) -> Array:
    """``a`` rounded once."""
    return _narrow(_odd_double(a), d, mode, sat)


@instruction("cvt.rn.f64.<s>", "f64 = <s>", s=("u64", "s64"), section=_CVT)
def f64_from_long(a: Array) -> Array:
    """``a`` to nearest even."""
    return a.astype(np.float64)


def _odd_double(a: Array) -> Doubles:
    """``a`` as float64: exact, or rounded to odd, so that rounding again is as rounding once."""
    if a.itemsize < 8:
        return a.astype(np.float64)
    size = np.where(a < 0, -a, a).view(np.uint64)
    rest = np.uint64((1 << 11) - 1)
    odd = (size & ~rest) | ((size & rest != 0).astype(np.uint64) << np.uint64(11))
    kept = np.where(size < 1 << 53, size, odd).astype(np.float64)
    return np.where(a < 0, -kept, kept)


# 3. Float to integer


@instruction("cvt.<mode><sat>.<d>.<s>", "<d> = <s>", d=_INTEGERS, s=_FLOATS, mode=_INTEGRAL,
             sat=("", ".sat"), section=_CVT)  # fmt: skip
def integer_from_float(a: Array, *, d: str, s: str, mode: str) -> Array:
    """``a`` rounded to an integer, limited to the range of the destination."""
    rounded = _INTEGRAL[mode](_double(a, s))
    nan = 1 << (BITS[d] - 1) if s == "f64" or BITS[d] == 64 else 0
    limits = np.iinfo(DTYPES[d])
    inside = (rounded > float(limits.min)) & (rounded < float(limits.max))
    result = np.where(inside, rounded, 0.0).astype(DTYPES[d])
    result[rounded <= float(limits.min)] = limits.min
    result[rounded >= float(limits.max)] = limits.max
    result.view(f"u{result.itemsize}")[np.isnan(rounded)] = nan
    return result


@instruction("cvt.<mode>.ftz<sat>.<d>.f32", "<d> = f32", d=_INTEGERS, mode=_INTEGRAL,
             sat=("", ".sat"), section=_CVT)  # fmt: skip
def integer_from_flushed(a: Array, *, d: str, mode: str) -> Array:
    """``a``, a subnormal counting as zero, rounded to an integer and limited."""
    return integer_from_float(flush(a), d=d, s="f32", mode=mode)


# 4. Float to float


@instruction("cvt<sat>.<d>.<s>", "<d> = <s>", d=("f32",), s=("f16", "bf16"), sat=("", ".sat"),
             section=_CVT)  # fmt: skip
@instruction("cvt<sat>.<d>.<s>", "<d> = <s>", d=("f64",), s=("f16", "bf16", "f32"),
             sat=("", ".sat"), section=_CVT)  # fmt: skip
def widened(a: Array, *, d: str, s: str, sat: str) -> Array:
    """``a``, exactly."""
    return _narrow(_double(a, s), d, "rn", sat)


@instruction("cvt.<mode><sat>.<d>.<s>", "<d> = <s>", d=("f32",), s=("f64",), mode=_DIRECTIONS,
             sat=("", ".sat"), section=_CVT)  # fmt: skip
@instruction("cvt.<mode><sat>.<d>.<s>", "<d> = <s>", d=("f16", "bf16"), s=("f32", "f64"),
             mode=_DIRECTIONS, sat=("", ".sat"), section=_CVT)  # fmt: skip
@instruction("cvt.<mode><sat>.<d>.<s>", "<d> = <s>", d=("f16",), s=("bf16",),
             mode=_DIRECTIONS, sat=("", ".sat"), section=_CVT)  # fmt: skip
@instruction("cvt.<mode><sat>.<d>.<s>", "<d> = <s>", d=("bf16",), s=("f16",),
             mode=_DIRECTIONS, sat=("", ".sat"), section=_CVT)  # fmt: skip
def narrowed(a: Array, *, d: str, s: str, mode: RoundingMode, sat: str) -> Array:
    """``a`` rounded once."""
    return _narrow(_double(a, s), d, mode, sat)


@instruction("cvt.<mode><limits>.<d>.f32", "<d> = f32", d=("f16", "bf16"), mode=("rn", "rz"),
             limits=(".relu", ".satfinite", ".relu.satfinite"), section=_CVT)  # fmt: skip
def limited(a: Array, *, d: str, mode: RoundingMode, limits: str) -> Array:
    """``a`` rounded; ``.relu``: not below 0; ``.satfinite``: not beyond the largest number."""
    if "relu" in limits:
        a = np.where(a <= 0, np.float32(0), a)
    return _encode(a, d, mode, finite="satfinite" in limits)


@instruction("cvt.<mode>.ftz<sat>.f32.f64", "f32 = f64", mode=_DIRECTIONS, sat=("", ".sat"),
             section=_CVT)  # fmt: skip
def narrowed_then_flushed(a: Array, *, mode: RoundingMode, sat: str) -> Array:
    """``a`` rounded once, a subnormal result becoming zero."""
    return _saturate(flush(_narrow(a, "f32", mode, "")), sat)


@instruction("cvt.<mode>.ftz<sat>.f16.f32", "f16 = f32", mode=_DIRECTIONS, sat=("", ".sat"),
             section=_CVT)  # fmt: skip
def flushed_then_narrowed(a: Array, *, mode: RoundingMode, sat: str) -> Array:
    """``a``, a subnormal counting as zero, rounded once."""
    return _saturate(_encode(flush(a), "f16", mode), sat)


@instruction("cvt.ftz<sat>.f64.f32", "f64 = f32", sat=("", ".sat"), section=_CVT)
def flushed_then_widened(a: Array, *, sat: str) -> Array:
    """``a``, a subnormal counting as zero, exactly."""
    return widened(flush(a), d="f64", s="f32", sat=sat)


@instruction("cvt<mode><ftz><sat>.f32.f32", "f32 = f32", mode=("", ".rni", ".rzi", ".rmi", ".rpi"),
             ftz=("", ".ftz"), sat=("", ".sat"), section=_CVT)  # fmt: skip
@instruction("cvt<mode><ftz><sat>.<t>.<t>", "<t> = <t>", t=("f16", "f64"), ftz=("",),
             mode=("", ".rni", ".rzi", ".rmi", ".rpi"), sat=("", ".sat"), section=_CVT)  # fmt: skip
def integral(a: Array, *, mode: str, ftz: str, sat: str) -> Array:
    """``a`` itself, or rounded to an integer of its own type."""
    if ftz:
        a = flush(a)
    if mode:
        a = _INTEGRAL[mode[1:]](a)
    return _saturate(_canonical(a), sat)


# 5. Widening and rounding


def _double(a: Array, s: str) -> Doubles:
    """``a`` as float64, exactly."""
    if s == "bf16":
        return decode_table(BF16)[a].astype(np.float64)
    return a.astype(np.float64)


def _narrow(x: Doubles, d: str, mode: RoundingMode, sat: str) -> Array:
    """``x`` rounded once to the type ``d`` and, with ``.sat``, limited to [0, 1]."""
    if d == "f64":
        return _saturate(_canonical(x), sat)
    if d == "f32":
        return _saturate(to_f32(x, cast(Direction, mode)), sat)
    limited: Array = np.where(x > 0, np.minimum(x, 1.0), 0.0) if sat else x
    toward_zero = to_f32(limited, "rz")
    # Rounded to odd, so that the second rounding decides as if it saw the exact value.
    inexact = toward_zero.astype(np.float64) != limited
    odd = toward_zero.view(np.uint32) | (inexact & ~np.isnan(limited))
    return _encode(odd.view(np.float32), d, mode)


def _encode(x: Array, d: str, mode: RoundingMode, *, finite: bool = False) -> Array:
    """float32 values in a 16-bit type."""
    fmt = {"f16": F16, "bf16": BF16}[d]
    return encode(x.view(np.uint32), fmt, mode, saturate=finite).astype(np.uint16).view(DTYPES[d])


def _saturate(x: Array, sat: str) -> Array:
    return saturated(x) if sat else x


def _canonical(x: Array) -> Array:
    """``x`` with each NaN replaced by the canonical one of its type."""
    return canonical_nan(x) if x.dtype == np.float32 else canonical(x)
