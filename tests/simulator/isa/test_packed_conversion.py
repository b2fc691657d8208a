"""cvt of the packed small formats against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from simulator.isa import packed_conversion
from tests.simulator.isa.exact import BF16, F16, F32, NAN, Format, round_fraction
from tests.simulator.isa.instructions import LANES, Family, draw_value

FAMILY = Family(packed_conversion)
TF32 = Format(8, 10, 0x3FFFF)
E5M2 = Format(5, 2, 0x7F)
IEEE = {"f16": F16, "bf16": BF16, "e5m2": E5M2, "tf32": TF32}
# Without infinity: exponent bits, mantissa bits, bias, largest number, NaN or the largest number.
FINITE = {
    "e4m3": (4, 3, 7, 0x7E, 0x7F), "e2m3": (2, 3, 1, 0x1F, 0x1F), "e3m2": (3, 2, 3, 0x1F, 0x1F),
    "e2m1": (2, 1, 1, 0x7, 0x7),
}  # fmt: skip
WIDTH = {"f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8, "e2m3": 8, "e3m2": 8, "e2m1": 4}
LIMITS = ("", ".relu", ".satfinite", ".relu.satfinite", ".satfinite.relu")


def decode(code, name):
    """The exact value of a code of a small format, or NAN, or a signed infinity's format value."""
    if name in IEEE:
        return IEEE[name].value(code)
    exponent, mantissa, bias, top, _ = FINITE[name]
    sign = 1 << exponent + mantissa
    magnitude = code % sign
    if magnitude > top:
        return NAN
    field, fraction = magnitude >> mantissa, magnitude % (1 << mantissa)
    size = Fraction(fraction + ((field > 0) << mantissa)) * Fraction(2) ** (
        max(field, 1) - bias - mantissa
    )
    return code & sign != 0, size


def encode(bits, name, mode, limits, source=F32):
    """The code of a value of another format."""
    x = source.value(bits)
    if "relu" in limits and (x.negative or x.is_zero) and not x.is_nan:
        return 0
    if name in IEEE:
        fmt = IEEE[name]
        if x.is_nan:
            return fmt.nan
        code = fmt.infinity | (fmt.sign if x.negative else 0)
        if not x.is_infinite:
            code = fmt.round(x.number, mode, zero_negative=x.negative)
        if "satfinite" in limits and code & ~fmt.sign == fmt.infinity:
            code -= 1
        return code
    exponent, mantissa, bias, top, nan = FINITE[name]
    if x.is_nan:
        return nan
    sign = x.negative << exponent + mantissa
    largest = decode(top, name)[1]
    if x.is_infinite or x.magnitude >= largest:
        return sign | top
    power = max(1 - bias, grid_exponent(x.magnitude))
    whole = round_fraction(x.magnitude / Fraction(2) ** (power - mantissa), mode, x.negative)
    return sign | min(top, whole + (power + bias - 1 << mantissa))


def grid_exponent(size):
    guess = -200
    while Fraction(2) ** (guess + 1) <= size:
        guess += 1
    return guess


def near(name):
    """Operands around the numbers of a format and the middles between them."""

    def inputs(rng, number):
        return [operand(name, rng) for _ in range(1 if name == "tf32" else 2)]

    return inputs


def operand(name, rng):
    usual = draw_value("f32", rng)
    top = 1 << min(WIDTH.get(name, 19), 16)
    values = []
    for code in rng.integers(0, top, LANES).tolist():
        x = decode(code << (3 if name == "tf32" else 0), name)
        finite = x != NAN and (not hasattr(x, "is_nan") or isinstance(x.magnitude, Fraction))
        values.append(0 if not finite else x.number if name in IEEE else -x[1] if x[0] else x[1])
    step = rng.choice([1.0, 1.0625, 1.03125, 1.125, 0.96875, 1.25], LANES)
    close = (np.array([float(v) for v in values]) * step).astype(np.float32)
    jitter = close.view(np.uint32) + rng.integers(-1, 2, LANES).astype(np.uint32)
    return np.where(rng.integers(0, 3, LANES) > 0, jitter.view(np.float32), usual)


for _name in ("f16", "bf16", "e4m3", "e5m2", "e2m3", "e3m2", "e2m1"):

    @FAMILY.oracle("cvt.<mode><limits>.<d>x2.f32", inputs=near(_name), mode=("rn", "rz"),
                   limits=LIMITS, d=(_name,))  # fmt: skip
    def pair(a, b, *, mode, limits, d):
        return encode(a, d, mode, limits) << WIDTH[d] | encode(b, d, mode, limits)


@FAMILY.oracle("cvt.<mode><limits>.tf32.f32", inputs=near("tf32"), mode=("rn", "rna", "rz"),
               limits=LIMITS)  # fmt: skip
def tf32(a, *, mode, limits):
    return encode(a, "tf32", mode, limits) << 13


@FAMILY.oracle("cvt.rn<limits>.<d>x2.f16x2", d=("e4m3", "e5m2"), limits=LIMITS)
def from_f16x2(a, *, d, limits):
    low, high = (encode(x, d, "rn", limits, F16) for x in a)
    return high << 8 | low


@FAMILY.oracle("cvt.rn<limits>.f16x2.<s>x2", s=("e4m3", "e5m2", "e2m3", "e3m2", "e2m1"),
               limits=LIMITS)  # fmt: skip
def to_f16x2(a, *, s, limits):
    width = WIDTH[s]
    used = {"e2m3": 6, "e3m2": 6}.get(s, width)
    codes = [a >> shift & (1 << used) - 1 for shift in (0, width)]
    low, high = (f16_of(code, s, limits) for code in codes)
    return high << 16 | low


def f16_of(code, s, limits):
    x = decode(code, s)
    if s in IEEE:
        negative, size = x.negative, x.magnitude
        if x.is_infinite:
            return 0 if "relu" in limits and negative else F16.infinity | negative << 15
    elif x == NAN:
        negative, size = False, NAN
    else:
        negative, size = x
    if size == NAN:
        return F16.nan
    if "relu" in limits and negative:
        return 0
    return F16.round(-size if negative else size, zero_negative=negative)


@pytest.mark.parametrize("template", FAMILY.templates)
def test_packed_conversion(template):
    FAMILY.check(template, rounds=8)


def test_first_source_goes_to_the_high_half():
    one, two = np.ones(LANES, np.float32), np.full(LANES, 2, np.float32)
    expected = {"f16x2": 0x3C004000, "bf16x2": 0x3F804000, "e4m3x2": 0x3840}
    for d, word in expected.items():
        modifiers = "rn.satfinite" if d == "e4m3x2" else "rn"
        entry = next(e for e in FAMILY.entries if e.mnemonic == f"cvt.{modifiers}.{d}.f32")
        assert set(entry.function(one, two).tolist()) == {word}
