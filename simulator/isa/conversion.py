"""cvt of one value: between integers, between floating-point types, and from one to the other.

Values are widened exactly to float64 and rounded once to the destination. An integer result is
limited to the range of its type. NaN follows what an H200 does: as an integer it is 0, or only the
top bit if the source is f64 or the destination has 64 bits; between floating-point types it keeps
sign and payload to and from f64 and from bf16 to f32, and is the canonical NaN elsewhere.
"""

from __future__ import annotations

from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from simulator.isa.float32 import flush_result, saturated
from simulator.isa.half import wide
from simulator.isa.table import instruction
from simulator.isa.values import BITS, DTYPES, Array
from simulator.numerics.formats import BF16, F16, RoundingMode, canonical_nan, encode
from simulator.numerics.rounding import Direction, flush, to_f32

_CVT = "9.7.9.22 cvt"
_INTEGERS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")
_WORDS = ("u16", "u32", "u64", "s16", "s32", "s64")
_DIRECTIONS = ("rn", "rz", "rm", "rp")
_INTEGRAL: Final = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
Doubles = NDArray[np.float64]


# 1. Integer to integer


@instruction("cvt.<d>.<s>", "<d> = <s>", d=_INTEGERS, s=_INTEGERS, section=_CVT)
def integer(a: Array, *, d: str) -> Array:
    """``a`` extended by its own sign or zeros, or cut to the low bits."""
    return a.astype(DTYPES[d])


def integer_sat(a: Array, *, d: str) -> Array:
    """``a`` limited to the range of the destination."""
    here, there = np.iinfo(a.dtype), np.iinfo(DTYPES[d])
    low, high = max(here.min, there.min), min(here.max, there.max)
    return np.minimum(np.maximum(a, low), high).astype(DTYPES[d])


for _d in _INTEGERS:
    _range = np.iinfo(DTYPES[_d])
    # The ISA forbids .sat where the destination holds every value of the source.
    _s = [s for s in _INTEGERS if np.iinfo(DTYPES[s]).min < _range.min
          or np.iinfo(DTYPES[s]).max > _range.max]  # fmt: skip
    instruction("cvt.sat.<d>.<s>", "<d> = <s>", d=(_d,), s=_s, section=_CVT)(integer_sat)


# 2. Integer to float


@instruction("cvt.<mode><sat>.<d>.<s>", "<d> = <s>", d=("f16", "f32"), s=_INTEGERS,
             mode=_DIRECTIONS, sat=("", ".sat"), section=_CVT)  # fmt: skip
@instruction("cvt.<mode><sat>.<d>.<s>", "<d> = <s>", d=("bf16",), s=_WORDS, mode=_DIRECTIONS,
             sat=("",), section=_CVT)  # fmt: skip
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


@instruction("cvt.<mode><sat>.<d>.<s>", "<d> = <s>", d=_INTEGERS, s=("f16", "f32", "f64"),
             mode=_INTEGRAL, sat=("", ".sat"), section=_CVT)  # fmt: skip
@instruction("cvt.<mode>.<d>.<s>", "<d> = <s>", d=_WORDS, s=("bf16",), mode=_INTEGRAL,
             section=_CVT)  # fmt: skip
def integer_from_float(a: Array, *, d: str, s: str, mode: str) -> Array:
    """``a`` rounded to an integer, limited to the range of the destination."""
    rounded = _INTEGRAL[mode](_double(a, s))
    limits = np.iinfo(DTYPES[d])
    # As a float64 the largest 64-bit integer is one too large: nothing reaches it from below.
    below = rounded < float(limits.max)
    result = np.where(below, np.maximum(rounded, float(limits.min)), 0.0).astype(DTYPES[d])
    if np.count_nonzero(below) != below.size:
        result[~below] = limits.max
        nan = 1 << (BITS[d] - 1) if s == "f64" or BITS[d] == 64 else 0
        result.view(f"u{result.itemsize}")[np.isnan(rounded)] = nan
    return result


@instruction("cvt.<mode>.ftz<sat>.<d>.f32", "<d> = f32", d=_INTEGERS, mode=_INTEGRAL,
             sat=("", ".sat"), section=_CVT)  # fmt: skip
def integer_from_flushed(a: Array, *, d: str, mode: str) -> Array:
    """``a``, a subnormal counting as zero, rounded to an integer and limited."""
    return integer_from_float(flush(a), d=d, s="f32", mode=mode)


# 4. Float to float


@instruction("cvt<sat>.f32.<s>", "f32 = <s>", s=("f16",), sat=("", ".sat"), section=_CVT)
def f32_from_f16(a: Array, *, sat: str) -> Array:
    """``a``, exactly."""
    return _saturate(wide(a, "f16"), sat)


@instruction("cvt.f32.bf16", "f32 = bf16", section=_CVT)
def f32_from_bf16(a: Array) -> Array:
    """``a``, exactly: its bits are the upper half."""
    return (a.astype(np.uint32) << np.uint32(16)).view(np.float32)


@instruction("cvt<sat>.f64.<s>", "f64 = <s>", s=("f16", "f32"), sat=("", ".sat"), section=_CVT)
@instruction("cvt<sat>.f64.<s>", "f64 = <s>", s=("bf16",), sat=("",), section=_CVT)
def f64_from_float(a: Array, *, s: str, sat: str) -> Array:
    """``a``, exactly."""
    return _saturate(_double(a, s), sat)


@instruction("cvt.ftz<sat>.f64.f32", "f64 = f32", sat=("", ".sat"), section=_CVT)
def f64_from_flushed(a: Array, *, sat: str) -> Array:
    """``a``, a subnormal counting as zero, exactly."""
    return _saturate(canonical_nan(flush(a)).astype(np.float64), sat)


@instruction("cvt.<mode><ftz><sat>.f32.f64", "f32 = f64", mode=_DIRECTIONS, ftz=("", ".ftz"),
             sat=("", ".sat"), section=_CVT)  # fmt: skip
def f32_from_f64(a: Array, *, mode: Direction, ftz: str, sat: str) -> Array:
    """``a`` rounded once."""
    result = np.where(np.isnan(a), a.astype(np.float32), to_f32(a, mode))
    if ftz:
        result = flush_result(result, to_f32(a * 2.0**64, mode))
    return _saturate(result, sat)


@instruction("cvt.<mode><ftz><sat>.f16.f32", "f16 = f32", mode=_DIRECTIONS, ftz=("", ".ftz"),
             sat=("", ".sat"), section=_CVT)  # fmt: skip
def f16_from_f32(a: Array, *, mode: RoundingMode, sat: str) -> Array:
    """``a`` rounded once; ``.ftz`` changes nothing, as on an H200."""
    return _saturate(_encode(a, "f16", mode), sat)


@instruction("cvt.<mode>.bf16.f32", "bf16 = f32", mode=_DIRECTIONS, section=_CVT)
def bf16_from_f32(a: Array, *, mode: RoundingMode) -> Array:
    """``a`` rounded once."""
    return _encode(a, "bf16", mode)


@instruction("cvt.<mode><limits>.<d>.f32", "<d> = f32", d=("f16", "bf16"), mode=("rn", "rz"),
             limits=(".relu", ".satfinite", ".relu.satfinite"), section=_CVT)  # fmt: skip
def limited(a: Array, *, d: str, mode: RoundingMode, limits: str) -> Array:
    """``a`` rounded; ``.relu``: not below 0; ``.satfinite``: not beyond the largest number."""
    if "relu" in limits:
        a = np.where(a <= 0, np.float32(0), a)
    return _encode(a, d, mode, finite="satfinite" in limits)


@instruction("cvt.<mode><sat>.f16.f64", "f16 = f64", d=("f16",), mode=_DIRECTIONS,
             sat=("", ".sat"), section=_CVT)  # fmt: skip
@instruction("cvt.<mode><sat>.bf16.f64", "bf16 = f64", d=("bf16",), mode=_DIRECTIONS, sat=("",),
             section=_CVT)  # fmt: skip
def sixteen_from_f64(a: Array, *, d: str, mode: RoundingMode, sat: str) -> Array:
    """``a`` rounded once."""
    single = a.astype(np.float32).view(np.uint32)
    sign = single >> np.uint32(16) & np.uint32(0x8000)
    fmt = {"f16": F16, "bf16": BF16}[d]
    payload = single >> np.uint32(23 - fmt.mantissa_bits) & np.uint32((1 << fmt.mantissa_bits) - 1)
    nan = (sign | np.uint32(fmt.infinity) | payload).astype(np.uint16).view(DTYPES[d])
    return _saturate(np.where(np.isnan(a), nan, _narrow(a, d, mode, "")), sat)


@instruction("cvt.<mode>.bf16.f16", "bf16 = f16", d=("bf16",), s=("f16",), mode=_DIRECTIONS,
             section=_CVT)  # fmt: skip
@instruction("cvt.<mode>.f16.bf16", "f16 = bf16", d=("f16",), s=("bf16",), mode=_DIRECTIONS,
             section=_CVT)  # fmt: skip
def sixteen_from_sixteen(a: Array, *, d: str, s: str, mode: RoundingMode) -> Array:
    """``a`` rounded once."""
    return _encode(wide(a, s), d, mode)


# 5. Float to itself


@instruction("cvt.<t>.<t>", "<t> = <t>", t=("f32", "f64"), section=_CVT)
def same(a: Array) -> Array:
    """``a`` as it is, even NaN."""
    return a


@instruction("cvt<ftz><sat>.f32.f32", "f32 = f32", mode=("",), ftz=(".ftz",), sat=("", ".sat"),
             section=_CVT)  # fmt: skip
@instruction("cvt<ftz><sat>.f32.f32", "f32 = f32", mode=("",), ftz=("",), sat=(".sat",),
             section=_CVT)  # fmt: skip
@instruction("cvt.<mode><ftz><sat>.f32.f32", "f32 = f32", mode=_INTEGRAL, ftz=("", ".ftz"),
             sat=("", ".sat"), section=_CVT)  # fmt: skip
def integral(a: Array, *, mode: str, ftz: str, sat: str) -> Array:
    """``a`` rounded to an integer, if a rounding mode is given."""
    if ftz:
        a = flush(a)
    return _saturate(canonical_nan(_INTEGRAL[mode](a) if mode else a), sat)


@instruction("cvt.sat.<t>.<t>", "<t> = <t>", mode=("",), t=("f16", "f64"), sat=(".sat",),
             section=_CVT)  # fmt: skip
@instruction("cvt.f16.f16", "f16 = f16", mode=("",), sat=("",), section=_CVT)
@instruction("cvt.<mode><sat>.<t>.<t>", "<t> = <t>", mode=_INTEGRAL, t=("f16", "f64"),
             sat=("", ".sat"), section=_CVT)  # fmt: skip
def integral_of_other(a: Array, *, mode: str, sat: str) -> Array:
    """``a`` rounded to an integer, if a rounding mode is given."""
    result = _INTEGRAL[mode](a) if mode else a
    if a.dtype == np.float16:
        nan = np.array(F16.nan, np.uint16).view(np.float16)
        result = np.where(np.isnan(result), nan, result)
    return _saturate(result, sat)


# 6. Widening and rounding


def _double(a: Array, s: str) -> Doubles:
    """``a`` as float64, exactly; a NaN keeps its sign and, quieted, its payload."""
    single = f32_from_bf16(a) if s == "bf16" else a.astype(np.float32) if s == "f16" else a
    return single.astype(np.float64)


def _narrow(x: Doubles, d: str, mode: RoundingMode, sat: str) -> Array:
    """``x`` rounded once to the type ``d`` and, with ``.sat``, limited to [0, 1]."""
    if d == "f64":
        return _saturate(x, sat)
    if d == "f32":
        return _saturate(to_f32(x, cast(Direction, mode)), sat)
    toward_zero = to_f32(x, "rz")
    # Rounded to odd, so that the second rounding decides as if it saw the exact value.
    inexact = (toward_zero.astype(np.float64) != x) & ~np.isnan(x)
    odd = toward_zero.view(np.uint32) | inexact
    return _saturate(_encode(odd.view(np.float32), d, mode), sat)


def _encode(x: Array, d: str, mode: RoundingMode, *, finite: bool = False) -> Array:
    """float32 values in a 16-bit type."""
    fmt = {"f16": F16, "bf16": BF16}[d]
    return encode(x.view(np.uint32), fmt, mode, saturate=finite).astype(np.uint16).view(DTYPES[d])


def _saturate(x: Array, sat: str) -> Array:
    return saturated(x) if sat else x
