"""f64 arithmetic and testp against exact fractions."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

import pytest

from simulator.isa import float64
from tests.simulator.isa.exact import F64, FORMATS, ONE, Value, fused
from tests.simulator.isa.instructions import Family

FAMILY = Family(float64)
NEAREST = ("", ".rn")
QUIET = 1 << 51
UNIT = F64.value(ONE["f64"])


def kept_nan(result, *operands):
    """The last operand that is NaN, quieted; else ``result``."""
    for x in operands:
        if F64.is_nan(x):
            result = x | QUIET
    return result


def negated(x):
    return Value(not x.negative, x.magnitude)


@FAMILY.oracle("add<mode>.f64", mode=NEAREST)
def add(a, b):
    return kept_nan(fused(F64, F64.value(a), UNIT, F64.value(b)), a, b)


@FAMILY.oracle("sub<mode>.f64", mode=NEAREST)
def sub(a, b):
    return kept_nan(fused(F64, F64.value(a), UNIT, negated(F64.value(b))), a, b)


@FAMILY.oracle("mul<mode>.f64", mode=NEAREST)
def mul(a, b):
    x, y = F64.value(a), F64.value(b)
    return kept_nan(fused(F64, x, y, Value(x.negative != y.negative, Fraction(0))), a, b)


@FAMILY.oracle("fma.rn.f64")
def fma(a, b, c):
    return kept_nan(fused(F64, *map(F64.value, (a, b, c))), a, b, c)


def quotient(a, b):
    x, y = F64.value(a), F64.value(b)
    sign = F64.sign if x.negative != y.negative else 0
    if x.is_nan or y.is_nan or (x.is_infinite and y.is_infinite) or (x.is_zero and y.is_zero):
        return F64.nan
    if x.is_infinite or y.is_zero:
        return F64.infinity | sign
    if y.is_infinite or x.is_zero:
        return sign
    return F64.round(x.number / y.number)


@FAMILY.oracle("div.rn.f64")
def div(a, b):
    return kept_nan(quotient(a, b), a, b)


@FAMILY.oracle("rcp.rn.f64")
def rcp(a):
    return kept_nan(quotient(ONE["f64"], a), a)


@FAMILY.oracle("sqrt.rn.f64")
def sqrt(a):
    x = F64.value(a)
    if x.is_nan:
        return a | QUIET
    if x.is_zero or (x.is_infinite and not x.negative):
        return a
    if x.negative:
        return F64.nan
    # Far more bits than any tie could need; the sticky last one says that some are left.
    scaled = x.number * Fraction(4) ** 700
    root = isqrt(int(scaled))
    exact = root * root == scaled
    return F64.round(Fraction(2 * root + (not exact), 2) / Fraction(2) ** 700)


@FAMILY.oracle("abs.f64")
def abs_(a):
    return kept_nan(a & ~F64.sign, a)


@FAMILY.oracle("neg.f64")
def neg(a):
    return kept_nan(a ^ F64.sign, a)


@FAMILY.oracle("<op>.f64", op=("min", "max"))
def extreme(a, b, *, op):
    numbers = [x for x in (a, b) if not F64.is_nan(x)]
    if not numbers:
        return b | QUIET
    return (min if op == "min" else max)(numbers, key=lambda x: (F64.value(x).order(), -(x >> 63)))


@FAMILY.oracle("copysign.f64")
def copysign(a, b):
    return a & F64.sign | b & ~F64.sign


KINDS = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")


@FAMILY.oracle("testp.<what>.<t>", t=("f32", "f64"), what=KINDS)
def has_property(a, *, what, t):
    fmt = FORMATS[t]
    x = fmt.value(a)
    finite = not x.is_nan and not x.is_infinite
    subnormal = finite and 0 < x.magnitude < fmt.smallest_normal
    return {"finite": finite, "infinite": x.is_infinite, "number": not x.is_nan,
            "notanumber": x.is_nan, "normal": finite and not subnormal,
            "subnormal": subnormal}[what]  # fmt: skip


@pytest.mark.parametrize("template", FAMILY.templates)
def test_float64(template):
    FAMILY.check(template, rounds=6)
