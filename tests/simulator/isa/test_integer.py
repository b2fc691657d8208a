"""Integer arithmetic against Python's integers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from simulator.isa import integer
from simulator.isa.values import BITS, DTYPES
from tests.simulator.isa.instructions import Family, wrap

FAMILY = Family(integer)
UNSIGNED = ("u16", "u32", "u64")
SIGNED = ("s16", "s32", "s64")
TYPES = (*UNSIGNED, *SIGNED)
WIDE = ("u16", "u32", "s16", "s32")
PAIRS = ("u16x2", "s16x2")


def clamped(x):
    return max(-(2**31), min(2**31 - 1, x))


def pairwise(function):
    return lambda *operands: tuple(map(function, *operands))


def high(a, b, t):
    return wrap(a * b >> BITS[t], t)


def truncated(a, b):
    """The quotient of C: rounded toward zero; all ones for a zero divisor."""
    if b == 0:
        return -1
    magnitude = abs(a) // abs(b)
    return magnitude if (a < 0) == (b < 0) else -magnitude


@FAMILY.oracle("add.<t>", t=TYPES)
def add(a, b):
    return a + b


FAMILY.oracle("add.<t>", t=PAIRS)(pairwise(add))


@FAMILY.oracle("sub.<t>", t=TYPES)
def sub(a, b):
    return a - b


@FAMILY.oracle("add.sat.s32")
def add_sat(a, b):
    return clamped(a + b)


@FAMILY.oracle("sub.sat.s32")
def sub_sat(a, b):
    return clamped(a - b)


@FAMILY.oracle("mul.lo.<t>", t=TYPES)
@FAMILY.oracle("mul.wide.<t>", t=WIDE)
def mul(a, b):
    return a * b


@FAMILY.oracle("mul.hi.<t>", t=TYPES)
def mul_hi(a, b, *, t):
    return high(a, b, t)


@FAMILY.oracle("mad.lo.<t>", t=TYPES)
@FAMILY.oracle("mad.wide.<t>", t=WIDE)
def mad(a, b, c):
    return a * b + c


@FAMILY.oracle("mad.hi.<t>", t=TYPES)
def mad_hi(a, b, c, *, t):
    return high(a, b, t) + c


@FAMILY.oracle("mad.hi.sat.s32")
def mad_hi_sat(a, b, c):
    return clamped(high(a, b, "s32") + c)


@FAMILY.oracle("sad.<t>", t=TYPES)
def sad(a, b, c):
    return c + abs(a - b)


@FAMILY.oracle("div.<t>", t=TYPES)
def div(a, b):
    return truncated(a, b)


@FAMILY.oracle("rem.<t>", t=TYPES)
def rem(a, b):
    return a - b * truncated(a, b) if b else -1


@FAMILY.oracle("abs.<t>", t=SIGNED)
def abs_(a):
    return abs(a)


@FAMILY.oracle("neg.<t>", t=SIGNED)
def neg(a):
    return -a


@FAMILY.oracle("min.<t>", t=TYPES)
def min_(a, b):
    return min(a, b)


@FAMILY.oracle("max.<t>", t=TYPES)
def max_(a, b):
    return max(a, b)


FAMILY.oracle("min.<t>", t=PAIRS)(pairwise(min))
FAMILY.oracle("max.<t>", t=PAIRS)(pairwise(max))


@FAMILY.oracle("min.relu.s32")
def min_relu(a, b):
    return max(0, min(a, b))


@FAMILY.oracle("max.relu.s32")
def max_relu(a, b):
    return max(0, a, b)


FAMILY.oracle("min.relu.s16x2")(pairwise(min_relu))
FAMILY.oracle("max.relu.s16x2")(pairwise(max_relu))


@pytest.mark.parametrize("template", FAMILY.templates)
def test_integer(template):
    FAMILY.check(template, rounds=6)


@pytest.mark.parametrize("kind", ["u16", "s16"])
@pytest.mark.parametrize("name", ["div", "rem"])
def test_every_dividend_by_corner_divisors(kind, name):
    """All 65,536 first operands with every divisor at the edges of a range."""
    entry = next(e for e in FAMILY.entries if e.mnemonic == f"{name}.{kind}")
    oracle = {"div": div, "rem": rem}[name]
    a = np.arange(1 << 16, dtype=np.uint16).view(DTYPES[kind])
    for b in [3, 256, 0x7FFF, 0x8000, 0xFFFF, 0]:
        divisor = np.full(a.size, b, np.uint16).view(DTYPES[kind])
        with np.errstate(all="ignore"):
            got = entry.function(a, divisor).tolist()
        want = [wrap(oracle(x, y), kind) for x, y in zip(a.tolist(), divisor.tolist(), strict=True)]
        assert got == want


def test_products_of_corner_values():
    """Carries between the 32-bit parts of mul.hi.u64 and the sign corrections of mul.hi.s64."""
    parts = [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF]
    words = [h << 32 | low for h, low in itertools.product(parts, repeat=2)]
    a, b = (np.array(x, np.uint64) for x in zip(*itertools.product(words, repeat=2), strict=True))
    for kind in ("u64", "s64"):
        entry = next(e for e in FAMILY.entries if e.mnemonic == f"mul.hi.{kind}")
        left, right = a.view(DTYPES[kind]), b.view(DTYPES[kind])
        want = [high(x, y, kind) for x, y in zip(left.tolist(), right.tolist(), strict=True)]
        assert entry.function(left, right).tolist() == want
