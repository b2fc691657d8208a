"""Float32 arithmetic against exact fractions, on the inputs where rounding twice would show."""

from __future__ import annotations

from fractions import Fraction
from math import floor, inf, isinf, isnan, nan

import numpy as np
import pytest

from simulator.numerics import rounding
from simulator.numerics.rounding import add32, flush, fma32, mul32, sub32, to_f32

MODES = ["rn", "rz", "rm", "rp"]
SPECIAL = np.array(
    [0.0, -0.0, inf, -inf, nan, 1.0, -1.0, 2.0**-149, -(2.0**-149), 2.0**-126, 3.4028235e38,
     -3.4028235e38, 1.5, 2.0**-75, 2.0**64], np.float32
)  # fmt: skip


def round_fraction(value: Fraction, mode: str) -> float:
    """``value``, not zero, rounded to float32."""
    size, negative = abs(value), value < 0
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    count = floor(size / unit)
    rest = size / unit - count
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and count % 2 == 1),
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }[mode]
    result = (count + up) * unit
    if result >= Fraction(2) ** 128:
        largest = (Fraction(2) - Fraction(2) ** -23) * Fraction(2) ** 127
        to_infinity = {"rn": True, "rz": False, "rm": negative, "rp": not negative}[mode]
        result = Fraction(0) if to_infinity else largest
        if to_infinity:
            return -inf if negative else inf
    return -float(result) if negative else float(result)


def fma_by_fractions(a: float, b: float, c: float, mode: str) -> float:
    if not all(np.isfinite([a, b, c])):
        with np.errstate(invalid="ignore", over="ignore"):
            return float(np.float64(a) * b + c)  # infinities and NaN follow IEEE rules
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact:
        return round_fraction(exact, mode)
    sign_product = np.signbit(a) != np.signbit(b)
    if sign_product == np.signbit(c):
        return -0.0 if sign_product else 0.0
    return -0.0 if mode == "rm" else 0.0


def same(result: np.float32, expected: float) -> bool:
    if isnan(expected):
        return int(result.view(np.uint32)) == 0x7FFFFFFF
    return float(result) == expected and np.signbit(result) == np.signbit(expected)


def check(operation, exact, arguments, mode):
    results = operation(*arguments, mode)
    assert results.dtype == np.float32
    for index, result in enumerate(results):
        values = [float(x[index]) for x in arguments]
        assert same(result, exact(*values, mode)), ([v.hex() for v in values], result)


def random_floats(rng, count):
    """Any bit patterns, and numbers of similar size, whose sums cancel and round."""
    wild = rng.integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32)
    tame = np.ldexp(rng.standard_normal(count), rng.integers(-30, 30, count)).astype(np.float32)
    return np.where(rng.random(count) < 0.3, wild, tame)


def double_rounding_cases(rng, count):
    """Products exactly halfway between two float32, and a third term far below them."""
    a = rng.integers(1 << 12, 1 << 13, count) | 1
    b = rng.integers(1 << 12, 1 << 13, count) | 1
    keep = (a * b) >> 24 == 1
    a, b = a[keep].astype(np.float32), b[keep].astype(np.float32)
    c = rng.choice([-1, 1], keep.sum()) * 2.0 ** rng.integers(-90, -40, keep.sum())
    return a, b, c.astype(np.float32)


@pytest.mark.parametrize("mode", MODES)
def test_fma_equals_exact_fractions(mode):
    rng = np.random.default_rng(1)
    a, b = random_floats(rng, 3000), random_floats(rng, 3000)
    with np.errstate(all="ignore"):
        near = (-(a * b) * rng.choice([1, 1 + 2**-20], 3000)).astype(np.float32)
    c = np.where(rng.random(3000) < 0.4, near, random_floats(rng, 3000))
    check(fma32, fma_by_fractions, (a, b, c), mode)


@pytest.mark.parametrize("mode", MODES)
def test_fma_of_special_values(mode):
    grid = np.meshgrid(SPECIAL, SPECIAL, SPECIAL)
    check(fma32, fma_by_fractions, [x.ravel() for x in grid], mode)


@pytest.mark.parametrize("mode", MODES)
def test_fma_rounds_once(mode):
    a, b, c = double_rounding_cases(np.random.default_rng(2), 2000)
    assert len(a) > 400
    check(fma32, fma_by_fractions, (a, b, c), mode)
    check(fma32, fma_by_fractions, (a, b, -c), mode)


def test_rounding_through_float64_would_be_seen():
    a, b, c = double_rounding_cases(np.random.default_rng(2), 2000)
    twice = (a.astype(np.float64) * b + c).astype(np.float32)
    assert np.count_nonzero(twice != fma32(a, b, c)) > len(a) / 4


@pytest.mark.parametrize("mode", MODES)
def test_subnormal_results_round_once(mode):
    rng = np.random.default_rng(3)
    a = np.ldexp(rng.integers(1, 1 << 24, 2000), -100).astype(np.float32)
    b = np.ldexp(rng.integers(1, 1 << 24, 2000), -72).astype(np.float32)
    c = np.ldexp(rng.integers(-64, 64, 2000), -149).astype(np.float32)
    odd = np.ldexp(2 * rng.integers(0, 1000, 2000) + 1, -78).astype(np.float32)
    unit = np.full(2000, 2.0**-72, np.float32)
    tiny = np.full(2000, -(2.0**-149), np.float32)
    check(fma32, fma_by_fractions, (a, b, c), mode)
    check(fma32, fma_by_fractions, (odd, unit, tiny), mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("operation", "exact"),
    [
        (add32, lambda a, b, mode: fma_by_fractions(a, 1.0, b, mode)),
        (sub32, lambda a, b, mode: fma_by_fractions(a, 1.0, -b, mode)),
    ],
    ids=["add", "sub"],
)
def test_sums_equal_exact_fractions(operation, exact, mode):
    rng = np.random.default_rng(4)
    check(operation, exact, (random_floats(rng, 1500), random_floats(rng, 1500)), mode)
    grid = np.meshgrid(SPECIAL, SPECIAL)
    check(operation, exact, [x.ravel() for x in grid], mode)


@pytest.mark.parametrize("mode", MODES)
def test_products_equal_exact_fractions(mode):
    def exact(a, b, mode):
        negative = np.signbit(a) != np.signbit(b)
        return fma_by_fractions(a, b, -0.0 if negative else 0.0, mode)

    rng = np.random.default_rng(5)
    check(mul32, exact, (random_floats(rng, 1500), random_floats(rng, 1500)), mode)
    grid = np.meshgrid(SPECIAL, SPECIAL)
    check(mul32, exact, [x.ravel() for x in grid], mode)


def test_flush_keeps_the_sign_and_everything_normal():
    values = np.array([2.0**-127, -(2.0**-149), 2.0**-126, -1.0, inf, 0.0, -0.0], np.float32)
    flushed = flush(values)
    assert flushed.tolist() == [0.0, 0.0, 2.0**-126, -1.0, inf, 0.0, 0.0]
    assert np.signbit(flushed).tolist() == [False, True, False, True, False, False, True]
    assert isnan(float(flush(np.array([nan], np.float32))[0]))


def test_unknown_modes_are_refused():
    one = np.ones(1, np.float32)
    with pytest.raises(ValueError, match="'rx'"):
        fma32(one, one, one, "rx")


def test_to_f32_overflows_by_direction():
    beyond = np.array([1e39, -1e39])
    results = {mode: to_f32(beyond, mode).tolist() for mode in MODES}
    largest = float(np.finfo(np.float32).max)
    assert results == {
        "rn": [inf, -inf], "rz": [largest, -largest], "rm": [largest, -inf], "rp": [inf, -largest],
    }  # fmt: skip
    assert all(isinf(x) for x in results["rn"])


def test_the_shortcut_is_taken_and_left():
    """The quick test must flag each midpoint and let ordinary sums pass."""
    ordinary = np.random.default_rng(6).standard_normal(64) * np.pi
    assert not rounding._on_midpoint(ordinary)
    assert rounding._on_midpoint(np.array([1 + 2.0**-24]))
    assert rounding._on_midpoint(np.array([2.0**-140]))
