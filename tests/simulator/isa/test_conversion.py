"""cvt of one value against integers and exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from simulator.isa import conversion
from simulator.isa.values import BITS
from tests.simulator.isa.exact import F32, F64, FORMATS, NAN, Format, round_fraction, saturated
from tests.simulator.isa.instructions import LANES, Family, draw_value

FAMILY = Family(conversion)
INTEGERS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")
WORDS = tuple(t for t in INTEGERS if BITS[t] > 8)
DIRECTIONS = ("rn", "rz", "rm", "rp")
INTEGRAL = ("rni", "rzi", "rmi", "rpi")
SAT = ("", ".sat")
FTZ = ("", ".ftz")


def limits(t):
    bits = BITS[t]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if t[0] == "s" else (0, (1 << bits) - 1)


def clamp(x, t):
    low, high = limits(t)
    return max(low, min(high, x))


# 1. Integers


@FAMILY.oracle("cvt.<d>.<s>", d=INTEGERS, s=INTEGERS)
def integer(a):
    return a


@FAMILY.oracle("cvt.sat.<d>.<s>", d=INTEGERS, s=INTEGERS)
def integer_sat(a, *, d):
    return clamp(a, d)


@FAMILY.oracle("cvt.<mode><sat>.<d>.<s>", mode=DIRECTIONS, sat=SAT, d=FORMATS, s=INTEGERS)
def float_from_integer(a, *, mode, sat, d):
    bits = FORMATS[d].round(Fraction(a), mode)
    return saturated(FORMATS[d], bits) if sat else bits


def magnitudes(s):
    """Operands around the limits of every integer type, as well as the usual ones."""

    def inputs(rng, number):
        fmt = FORMATS[s]
        usual = draw_value(s, rng)
        edges = [Fraction(e) + d for t in INTEGERS for e in limits(t) for d in (-1, 0, 1)]
        halves = [e + h for e in edges for h in (Fraction(-1, 2), Fraction(1, 2))]
        codes = np.array([fmt.round(x, "rn") for x in (*edges, *halves)], np.uint64)
        chosen = rng.choice(codes, LANES).astype(f"u{usual.itemsize}").view(usual.dtype)
        return [np.where(rng.integers(0, 2, LANES) == 1, chosen, usual)]

    return inputs


def to_integer(a, s, d, mode, ftz=""):
    fmt = FORMATS[s]
    x = fmt.value(fmt.flush(a) if ftz else a)
    if x.is_nan:
        return 1 << BITS[d] - 1 if s == "f64" or BITS[d] == 64 else 0
    if x.is_infinite:
        return limits(d)[not x.negative]
    size = round_fraction(x.magnitude, mode[:2], x.negative)
    return clamp(-size if x.negative else size, d)


for _s in FORMATS:

    @FAMILY.oracle("cvt.<mode><ftz><sat>.<d>.<s>", inputs=magnitudes(_s), mode=INTEGRAL, ftz=FTZ,
                   sat=SAT, d=INTEGERS, s=(_s,))  # fmt: skip
    def integer_from_float(a, *, mode, ftz, d, s):
        return to_integer(a, s, d, mode, ftz)


# 2. Floats


def payload(bits: int, source: Format, target: Format) -> int:
    """A NaN of another format with the same sign and the top of the payload, quieted."""
    shift = target.mantissa_bits - source.mantissa_bits
    fraction = bits % (1 << source.mantissa_bits)
    fraction = fraction << shift if shift > 0 else fraction >> -shift
    quiet = 1 << target.mantissa_bits - 1
    sign = target.sign if bits & source.sign else 0
    return sign | target.infinity | fraction | quiet


def converted(a, s, d, mode="rn", *, ftz="", sat="", nan=None):
    """A value of one format in another; ``nan`` is the result for NaN, canonical if None."""
    source, target = FORMATS[s], FORMATS[d]
    x = source.value(a)
    if x.magnitude == NAN:
        bits = target.nan if nan is None else nan
    elif x.is_infinite:
        bits = target.infinity | (target.sign if x.negative else 0)
    elif ftz and target.is_tiny(x.number, mode):
        bits = target.sign if x.negative else 0
    else:
        bits = target.round(x.number, mode, zero_negative=x.negative)
    return saturated(target, bits) if sat else bits


@FAMILY.oracle("cvt<sat>.f32.f16", sat=SAT)
def f32_from_f16(a, *, sat):
    return converted(a, "f16", "f32", sat=sat)


@FAMILY.oracle("cvt.f32.bf16")
def f32_from_bf16(a):
    return a << 16


@FAMILY.oracle("cvt<sat>.f64.<s>", sat=SAT, s=("f16", "bf16", "f32"))
def f64_from_float(a, *, sat, s):
    return converted(a, s, "f64", sat=sat, nan=payload(a, FORMATS[s], F64))


@FAMILY.oracle("cvt.ftz<sat>.f64.f32", sat=SAT)
def f64_from_flushed(a, *, sat):
    return converted(F32.flush(a), "f32", "f64", sat=sat, nan=payload(F32.nan, F32, F64))


@FAMILY.oracle("cvt.<mode><ftz><sat>.<d>.f64", mode=DIRECTIONS, ftz=FTZ, sat=SAT, d=("f32",))
@FAMILY.oracle("cvt.<mode><sat>.<d>.f64", mode=DIRECTIONS, ftz=("",), sat=SAT, d=("f16", "bf16"))
def from_f64(a, *, mode, ftz, sat, d):
    return converted(a, "f64", d, mode, ftz=ftz, sat=sat, nan=payload(a, F64, FORMATS[d]))


@FAMILY.oracle("cvt.<mode><ftz><sat>.f16.f32", mode=DIRECTIONS, ftz=FTZ, sat=SAT)
def f16_from_f32(a, *, mode, sat):
    return converted(a, "f32", "f16", mode, sat=sat)


@FAMILY.oracle("cvt.<mode>.bf16.f32", mode=DIRECTIONS)
def bf16_from_f32(a, *, mode):
    return converted(a, "f32", "bf16", mode)


@FAMILY.oracle("cvt.<mode><limits>.<d>.f32", mode=("rn", "rz"), d=("f16", "bf16"),
               limits=(".relu", ".satfinite", ".relu.satfinite"))  # fmt: skip
def limited(a, *, mode, d, limits):
    fmt = FORMATS[d]
    bits = converted(a, "f32", d, mode)
    if "relu" in limits and bits & fmt.sign:
        return 0
    if "satfinite" in limits and bits & ~fmt.sign == fmt.infinity:
        return bits - 1
    return bits


@FAMILY.oracle("cvt.<mode>.<d>.<s>", mode=DIRECTIONS, d=("f16",), s=("bf16",))
@FAMILY.oracle("cvt.<mode>.<d>.<s>", mode=DIRECTIONS, d=("bf16",), s=("f16",))
def sixteen_from_sixteen(a, *, mode, d, s):
    return converted(a, s, d, mode)


@FAMILY.oracle("cvt.<t>.<t>", t=("f32", "f64"))
def same(a):
    return a


def integral(a, t, mode, ftz, sat):
    fmt = FORMATS[t]
    a = fmt.flush(a) if ftz else a
    x = fmt.value(a)
    if x.is_nan:
        a = a | 1 << 51 if t == "f64" else fmt.nan
    elif mode and not x.is_infinite:
        size = Fraction(round_fraction(x.magnitude, mode[1:3], x.negative))
        a = fmt.round(-size if x.negative else size, zero_negative=x.negative)
    return saturated(fmt, a) if sat else a


@FAMILY.oracle("cvt<mode><ftz><sat>.f32.f32", mode=("", *(f".{m}" for m in INTEGRAL)), ftz=FTZ,
               sat=SAT, t=("f32",))  # fmt: skip
@FAMILY.oracle("cvt<mode><sat>.<t>.<t>", mode=("", *(f".{m}" for m in INTEGRAL)), sat=SAT,
               ftz=("",), t=("f16", "f64"))  # fmt: skip
def same_type(a, *, t, mode, ftz, sat):
    if t != "f16" and not (mode or ftz or sat):
        return a
    return integral(a, t, mode, ftz, sat)


@pytest.mark.parametrize("template", FAMILY.templates)
def test_conversion(template):
    FAMILY.check(template, rounds=2)


@pytest.mark.parametrize("mode", DIRECTIONS)
def test_every_f16_from_the_float32_around_midpoints(mode):
    """Each pair of neighbours: the float32 in the middle of it, and the ones next to that."""
    entry = next(e for e in FAMILY.entries if e.mnemonic == f"cvt.{mode}.f16.f32")
    low = np.arange(0, 0x7BFF, dtype=np.uint16)
    ends = [x.view(np.float16).astype(np.float32) for x in (low, low + np.uint16(1))]
    middle = ((ends[0] + ends[1]) / 2).view(np.uint32)
    for offset in (-1, 0, 1):
        for sign in (0, 1):
            source = middle + np.uint32(offset % (1 << 32)) | np.uint32(sign << 31)
            tie = low % 2 == 1 if offset == 0 else np.full(low.shape, offset > 0)
            up = {"rn": tie, "rz": False, "rm": sign == 1, "rp": sign == 0}[mode]
            want = low + np.asarray(up).astype(np.uint16) | np.uint16(sign << 15)
            assert np.array_equal(entry.function(source.view(np.float32)).view(np.uint16), want)
