"""Accumulation strategies against models on exact integers and fractions, one element at a time."""

from __future__ import annotations

from fractions import Fraction
from math import floor, inf, nan

import numpy as np
import pytest

from simulator.numerics.accumulate import STRATEGIES, b200, ideal
from simulator.numerics.formats import BF16, E4M3, E5M2, F16, decode

FORMATS = [E4M3, E5M2, F16, BF16]


def exponent(value: float, smallest: int) -> int:
    """Exponent of the leading bit of a number, but at least ``smallest``."""
    size = abs(Fraction(value))
    if not size:
        return smallest
    bits = size.numerator.bit_length() - size.denominator.bit_length()
    return max(bits - (size < Fraction(2) ** bits), smallest)


def truncated(value: Fraction, unit: Fraction) -> Fraction:
    whole = floor(abs(value) / unit) * unit
    return whole if value > 0 else -whole


def fused_by_fractions(a, b, c, formats):
    """One element of one fused step, in the words of the published models."""
    terms = [(Fraction(c), exponent(c, -126))]
    for x, y in zip(a, b, strict=True):
        if x and y:
            e = exponent(x, formats[0].min_exponent) + exponent(y, formats[1].min_exponent)
            terms.append((Fraction(x) * Fraction(y), e))
    largest = max(e for _, e in terms)
    total = sum(truncated(value, Fraction(2) ** (largest - 25)) for value, _ in terms)
    if not total:
        return 0.0
    place = exponent(total, -126) - 23
    result = truncated(total, Fraction(2) ** place)
    if abs(result) >= Fraction(2) ** 128:
        return inf if result > 0 else -inf
    return float(result)


def operands(rng, fmt, m, n, k):
    def draw(rows):
        bits = rng.integers(0, 1 << fmt.storage_bits, (rows, k))
        values = decode(bits, fmt)
        small = decode(rng.integers(0, 8, (rows, k)), fmt)
        values = np.where(rng.random((rows, k)) < 0.3, small, values)
        if fmt is BF16:
            values = np.where(rng.random((rows, k)) < 0.5, rng.standard_normal((rows, k)), values)
            values = decode((values.astype(np.float32).view(np.uint32) >> 16), BF16)
            values = np.where(np.abs(values) > 1e18, 3.0, values)
        return np.where(np.isfinite(values), values, 1.0).astype(np.float32)

    return draw(m), draw(n)


def accumulators(rng, m, n, scale):
    c = rng.standard_normal((m, n)) * scale * 2.0 ** rng.integers(-40, 6, (m, n))
    c[rng.random((m, n)) < 0.2] = 0
    return c.astype(np.float32)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_b200_equals_its_description_on_fractions(fmt):
    rng = np.random.default_rng(1)
    k = 256 // fmt.storage_bits
    for _ in range(6):
        a, b = operands(rng, fmt, 6, 5, k)
        c = accumulators(rng, 6, 5, max(1.0, float(np.abs(a).max() * np.abs(b).max())))
        for start in (c, None):
            d = b200(a, b, start, step=k, formats=(fmt, fmt))
            for i, j in np.ndindex(d.shape):
                before = 0.0 if start is None else float(start[i, j])
                expected = fused_by_fractions(a[i].tolist(), b[j].tolist(), before, (fmt, fmt))
                assert float(d[i, j]) == expected


def test_b200_takes_several_steps_one_after_the_other():
    rng = np.random.default_rng(2)
    a, b = operands(rng, F16, 4, 4, 32)
    once = b200(a[:, :16], b[:, :16], None, step=16, formats=(F16, F16))
    twice = b200(a[:, 16:], b[:, 16:], once, step=16, formats=(F16, F16))
    assert np.array_equal(b200(a, b, None, step=16, formats=(F16, F16)), twice)
    assert not np.array_equal(b200(a, b, None, step=32, formats=(F16, F16)), twice)


def test_b200_cuts_toward_zero_25_bits_below_the_largest_exponent():
    a = np.zeros((1, 32), np.float32)
    a[0, :3] = 1, 2.0**-9, 2.0**-9
    b = np.ones((1, 32), np.float32)
    b[0, 1:3] = 2.0**-9, -(2.0**-9)

    def added(c):
        return float(b200(a, b, np.array([[c]], np.float32), step=32, formats=(E4M3, E4M3))[0, 0])

    assert added(2.0**-25) == 1  # kept in the sum, cut when it is stored
    assert added(2.0**18) == 2.0**18 + 1
    assert added(-(2.0**-26)) == 1  # a rounded sum would be just below 1
    assert added(-(2.0**-25)) == 1 - 2.0**-24
    assert added(2.0**26) == 2.0**26
    # Both small products vanish beneath 2^(8 - 25), each toward zero.
    assert added(256.0) == 257.0


def test_strategies_differ_where_the_model_cuts():
    rng = np.random.default_rng(3)
    a, b = operands(rng, E4M3, 32, 32, 32)
    differ = ideal(a, b, None, step=32, formats=(E4M3, E4M3)) != b200(
        a, b, None, step=32, formats=(E4M3, E4M3)
    )
    assert differ.any()


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_ideal_rounds_the_exact_sum_once(fmt):
    rng = np.random.default_rng(4)
    k = 256 // fmt.storage_bits
    a, b = operands(rng, fmt, 8, 8, k)
    c = accumulators(rng, 8, 8, float(np.abs(a).max() * np.abs(b).max()))
    d = ideal(a, b, c, step=k, formats=(fmt, fmt))
    for i, j in np.ndindex(d.shape):
        exact = Fraction(float(c[i, j])) + sum(
            Fraction(x) * Fraction(y) for x, y in zip(a[i].tolist(), b[j].tolist(), strict=True)
        )
        near = [float(x) for x in (np.nextafter(d[i, j], np.float32(-inf)), d[i, j],
                                   np.nextafter(d[i, j], np.float32(inf)))]  # fmt: skip
        errors = [abs(Fraction(x) - exact) if np.isfinite(x) else Fraction(2) ** 200 for x in near]
        assert errors[1] <= min(errors) * (1 + Fraction(1, 10**6))


@pytest.mark.parametrize("name", STRATEGIES)
def test_infinities_and_nans(name):
    ones = np.ones((1, 16), np.float32)
    for value, other, c, expected in (
        (inf, 1.0, 0.0, inf), (-inf, 1.0, 5.0, -inf), (nan, 1.0, 0.0, nan), (inf, 0.0, 0.0, nan),
        (inf, 1.0, -inf, nan), (1.0, 1.0, inf, inf), (1.0, 1.0, nan, nan),
    ):  # fmt: skip
        a, b = ones.copy(), ones.copy()
        a[0, 3], b[0, 3] = value, other
        accumulator = np.array([[c]], np.float32)
        d = STRATEGIES[name](a, b, accumulator, step=16, formats=(F16, F16))
        if np.isnan(expected):
            assert d.view(np.uint32)[0, 0] == 0x7FFFFFFF
        else:
            assert d[0, 0] == expected
