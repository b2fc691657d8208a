"""f32 arithmetic against exact fractions."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.isa import float32
from tests.simulator.isa.exact import F32, ONE, Value, fused, saturated
from tests.simulator.isa.instructions import LANES, Family

FAMILY = Family(float32)
NEAREST = ("", ".rn")
MODES = (*NEAREST, ".rz", ".rm", ".rp")
FTZ = ("", ".ftz")
SAT = ("", ".sat")
UNIT = F32.value(ONE["f32"])


def calculate(mode, ftz, sat, a, b, c):
    result = fused(F32, a, b, c, mode[1:] or "rn", ftz=ftz != "")
    return saturated(F32, result) if sat else result


def values(ftz, *operands):
    return [F32.value(F32.flush(x) if ftz else x) for x in operands]


def negated(x):
    return Value(not x.negative, x.magnitude)


@FAMILY.oracle("add<mode><ftz><sat>.f32", mode=MODES, ftz=FTZ, sat=SAT)
def add(a, b, *, mode, ftz, sat=""):
    a, b = values(ftz, a, b)
    return calculate(mode, ftz, sat, a, UNIT, b)


@FAMILY.oracle("sub<mode><ftz><sat>.f32", mode=MODES, ftz=FTZ, sat=SAT)
def sub(a, b, *, mode, ftz, sat=""):
    a, b = values(ftz, a, b)
    return calculate(mode, ftz, sat, a, UNIT, negated(b))


@FAMILY.oracle("mul<mode><ftz><sat>.f32", mode=MODES, ftz=FTZ, sat=SAT)
def mul(a, b, *, mode, ftz, sat=""):
    a, b = values(ftz, a, b)
    # A zero with the sign of the product leaves the product as it is.
    return calculate(mode, ftz, sat, a, b, Value(a.negative != b.negative, F32.value(0).magnitude))


@FAMILY.oracle("fma<mode><ftz><sat>.f32", mode=MODES[1:], ftz=FTZ, sat=SAT)
def fma(a, b, c, *, mode, ftz, sat=""):
    return calculate(mode, ftz, sat, *values(ftz, a, b, c))


@FAMILY.oracle("<name><mode><ftz>.f32x2", name=("add", "sub", "mul"), mode=MODES, ftz=FTZ)
@FAMILY.oracle("<name><mode><ftz>.f32x2", name=("fma",), mode=MODES[1:], ftz=FTZ)
def pair(*operands, name, mode, ftz):
    scalar = {"add": add, "sub": sub, "mul": mul, "fma": fma}[name]
    return tuple(scalar(*parts, mode=mode, ftz=ftz) for parts in zip(*operands, strict=True))


def extreme(op, nan, size, operands):
    """min or max of bit patterns; ``size`` is '', '.abs' or '.xorsign.abs'."""
    sign = sum(x >> 31 for x in operands) % 2
    operands = [x & 0x7FFFFFFF if size else x for x in operands]
    numbers = [x for x in operands if not F32.is_nan(x)]
    if not numbers or (nan and len(numbers) < len(operands)):
        return F32.nan
    # -0 counts as smaller than +0.
    best = (min if op == "min" else max)(numbers, key=lambda x: (F32.value(x).order(), -(x >> 31)))
    return best | sign << 31 if size == ".xorsign.abs" else best


@FAMILY.oracle("<op><ftz><nan><size>.f32", "f32 = f32 f32", op=("min", "max"), ftz=FTZ,
               nan=("", ".NaN"), size=("", ".xorsign.abs"))  # fmt: skip
@FAMILY.oracle("<op><ftz><nan><size>.f32", "f32 = f32 f32 f32", op=("min", "max"), ftz=FTZ,
               nan=("", ".NaN"), size=("", ".abs"))  # fmt: skip
def order(*operands, op, ftz, nan, size):
    return extreme(op, nan, size, [F32.flush(x) if ftz else x for x in operands])


def canonical(x):
    return F32.nan if F32.is_nan(x) else x


@FAMILY.oracle("abs<ftz>.f32", ftz=FTZ)
def abs_(a, *, ftz):
    return canonical((F32.flush(a) if ftz else a) & 0x7FFFFFFF)


@FAMILY.oracle("neg<ftz>.f32", ftz=FTZ)
def neg(a, *, ftz):
    return canonical((F32.flush(a) if ftz else a) ^ 0x80000000)


@FAMILY.oracle("copysign.f32")
def copysign(a, b):
    return a & 0x80000000 | b & 0x7FFFFFFF


@pytest.mark.parametrize("template", FAMILY.templates)
def test_float32(template):
    FAMILY.check(template, rounds=6)


def bits(*numbers):
    return [np.full(LANES, x, np.uint32).view(np.float32) for x in numbers]


@pytest.mark.parametrize(("c", "result"), [(0x21800000, 0x3F801001), (0xA1800000, 0x3F801000)])
def test_fma_rounds_once(c, result):
    """(1 + 2**-12)**2 is a tie of float32; 2**-60 more or less, which float64 loses, decides it."""
    entry = next(e for e in FAMILY.entries if e.mnemonic == "fma.rn.f32")
    a, b, c = bits(0x3F800800, 0x3F800800, c)
    with np.errstate(all="ignore"):
        assert set(entry.function(a, b, c).view(np.uint32).tolist()) == {result}
    twice = (a.astype(np.float64) * b + c).astype(np.float32)
    assert twice.view(np.uint32)[0] == 0x3F801000


@pytest.mark.parametrize(
    ("mnemonic", "operands", "result"),
    [
        # One below 1 times the smallest normal number: rounds up to it, is tiny by its 24 bits.
        ("mul.f32", (0x3F7FFFFF, 0x00800000), 0x00800000),
        ("mul.ftz.f32", (0x3F7FFFFF, 0x00800000), 0x00000000),
        ("mul.ftz.f32", (0xBF7FFFFF, 0x00800000), 0x80000000),
        # As small, but with so little missing that 24 bits round up: not tiny.
        ("fma.rn.ftz.f32", (0x00800000, 0x80800000, 0x00800000), 0x00800000),
        ("fma.rz.ftz.f32", (0x00800000, 0x80800000, 0x00800000), 0x00000000),
        # Rounding down, opposite operands cancel to -0, flushed operands included.
        ("add.rm.ftz.f32", (0x00400000, 0x80000000), 0x80000000),
        ("add.rm.f32", (0x3F800000, 0xBF800000), 0x80000000),
        ("max.f32", (0x80000000, 0x00000000), 0x00000000),
        ("min.f32", (0x00000000, 0x80000000), 0x80000000),
    ],
)
def test_results_measured_on_an_h200(mnemonic, operands, result):
    """The GPU gave these results; they decide what the ISA's text leaves open."""
    entry = next(e for e in FAMILY.entries if e.mnemonic == mnemonic)
    with np.errstate(all="ignore"):
        assert set(entry.function(*bits(*operands)).view(np.uint32).tolist()) == {result}
