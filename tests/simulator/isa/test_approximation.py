"""Correctly rounded division and roots against fractions; approximations against their bounds."""

from __future__ import annotations

import math
from fractions import Fraction
from math import isqrt

import numpy as np
import pytest

from simulator.isa import approximation
from tests.simulator.isa.exact import F32, ONE
from tests.simulator.isa.instructions import LANES, Family, draw_value

FAMILY = Family(approximation)
MODES = ("rn", "rz", "rm", "rp")
FTZ = ("", ".ftz")


def rounded(exact, mode, ftz):
    if ftz and F32.is_tiny(exact, mode):
        return F32.sign if exact < 0 else 0
    return F32.round(exact, mode)


@FAMILY.oracle("div.<mode><ftz>.f32", mode=MODES, ftz=FTZ)
def div(a, b, *, mode, ftz):
    x, y = (F32.value(F32.flush(v) if ftz else v) for v in (a, b))
    sign = F32.sign if x.negative != y.negative else 0
    if x.is_nan or y.is_nan or (x.is_infinite and y.is_infinite) or (x.is_zero and y.is_zero):
        return F32.nan
    if x.is_infinite or y.is_zero:
        return F32.infinity | sign
    if y.is_infinite or x.is_zero:
        return sign
    return rounded(x.number / y.number, mode, ftz)


@FAMILY.oracle("div.full<ftz>.f32", ftz=FTZ)
def div_full(a, b, *, ftz):
    """The ISA allows 2 units in the last place; here the quotient is to nearest."""
    return div(a, b, mode="rn", ftz=ftz)


@FAMILY.oracle("div.approx<ftz>.f32", ftz=FTZ)
def div_approx(a, b, *, ftz):
    x, y = F32.value(a), F32.value(b)
    if not y.is_nan and not y.is_infinite and y.magnitude > 2**126 and not x.is_nan:
        sign = F32.sign if x.negative != y.negative else 0
        return F32.nan if x.is_infinite else sign
    return div(a, b, mode="rn", ftz=ftz)


@FAMILY.oracle("rcp.<mode><ftz>.f32", mode=MODES, ftz=FTZ)
def rcp(a, *, mode, ftz):
    return div(ONE["f32"], a, mode=mode, ftz=ftz)


@FAMILY.oracle("sqrt.<mode><ftz>.f32", mode=MODES, ftz=FTZ)
def sqrt(a, *, mode, ftz):
    a = F32.flush(a) if ftz else a
    x = F32.value(a)
    if x.is_zero or (x.is_infinite and not x.negative):
        return a
    if x.is_nan or x.negative:
        return F32.nan
    # Many more bits than a tie could need; a last odd one says that some are left.
    scaled = x.number * Fraction(4) ** 200
    root = isqrt(int(scaled))
    exact = root * root == scaled
    return rounded(Fraction(2 * root + (not exact), 2) / Fraction(2) ** 200, mode, ftz)


def special(name, x):
    """The result that the ISA's table fixes for a value, or None."""
    infinity, negative = math.inf, x.negative
    if x.is_nan or (name in ("lg2", "sqrt", "rsqrt") and negative and not x.is_zero):
        return math.nan
    if name in ("sin", "cos") and x.is_infinite:
        return math.nan
    zero = {"ex2": 1.0, "lg2": -infinity, "rcp": infinity, "rsqrt": infinity, "cos": 1.0}
    top = {
        "ex2": infinity,
        "lg2": infinity,
        "rcp": 0.0,
        "sqrt": infinity,
        "rsqrt": 0.0,
        "tanh": 1.0,
    }
    if x.is_zero:
        value = zero.get(name, 0.0)
    elif x.is_infinite:
        value = 0.0 if name == "ex2" and negative else top[name]
    else:
        return None
    return -value if negative and name in ("rcp", "rsqrt", "sin", "sqrt", "tanh") else value


FUNCTIONS = {
    "ex2": lambda x: 2.0**x, "lg2": math.log2, "rcp": lambda x: 1 / x, "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x), "sin": math.sin, "cos": math.cos, "tanh": math.tanh,
}  # fmt: skip


@pytest.mark.parametrize("ftz", FTZ)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_approximate_functions(name, ftz):
    """Special values exactly; others within the rounding of one float32."""
    if name == "tanh" and ftz:
        pytest.skip("tanh has no .ftz")
    entry = next(e for e in FAMILY.entries if e.mnemonic == f"{name}.approx{ftz}.f32")
    rng = np.random.default_rng(5)
    for _ in range(8):
        a = draw_value("f32", rng)
        with np.errstate(all="ignore"):
            got = entry.function(a).view(np.uint32).tolist()
        for bits, result in zip(a.view(np.uint32).tolist(), got, strict=True):
            x = F32.value(F32.flush(bits) if ftz else bits)
            fixed = special(name, x)
            if fixed is not None:
                assert result == bits_of(fixed), (hex(bits), hex(result))
                continue
            check_close(name, float(x.number), result, ftz)


def bits_of(x):
    return F32.nan if math.isnan(x) else int(np.float32(x).view(np.uint32))


def check_close(name, x, result, ftz):
    try:
        exact = FUNCTIONS[name](x)
    except OverflowError:
        exact = math.inf
    with np.errstate(all="ignore"):
        want = int(np.float32(exact).view(np.uint32))
    want = F32.flush(want) if ftz else want
    assert abs(want - result) <= 1, (name, x, hex(result), hex(want))


@pytest.mark.parametrize("template", [t for t in FAMILY.templates if t != "<f>.approx<ftz>.f32"])
def test_approximation(template):
    FAMILY.check(template, rounds=8)


def test_every_template_is_tested():
    names = {e.mnemonic.split(".")[0] for e in FAMILY.entries if e.template.startswith("<f>")}
    assert names == set(FUNCTIONS)


def test_quotients_next_to_a_representable_one():
    """Directed modes see remainders that float64's quotient no longer shows."""
    a = np.full(LANES, 0x3F800001, np.uint32).view(np.float32)
    b = np.arange(0x3F800000, 0x3F800000 + LANES, dtype=np.uint32).view(np.float32)
    for mode in MODES:
        entry = next(e for e in FAMILY.entries if e.mnemonic == f"div.{mode}.f32")
        got = entry.function(a, b).view(np.uint32).tolist()
        pairs = zip(a.view(np.uint32).tolist(), b.view(np.uint32).tolist(), strict=True)
        assert got == [div(x, y, mode=mode, ftz="") for x, y in pairs]
