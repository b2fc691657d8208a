"""Native fused sums: the bits of the array code, and of a model on fractions."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.codegen.accumulate import strategy
from simulator.numerics.accumulate import STRATEGIES
from simulator.numerics.formats import BF16, E4M3, E5M2, F16, Format, decode

PAIRS = [(E4M3, E4M3), (E5M2, E4M3), (E5M2, E5M2), (F16, F16), (BF16, BF16), (F16, BF16)]
NAMES = ("b200", "hopper")
FRACTIONS = {"b200": (25, 25), "hopper": (13, 25)}
"""Bits kept for 8-bit and for wider operands, as the papers say."""


def drawn(rng: np.random.Generator, fmt: Format, shape: tuple[int, int], kind: str) -> np.ndarray:
    """Operands: any codes, those without NaN and infinity, or numbers of one size with zeros."""
    bits = rng.integers(0, 1 << fmt.storage_bits, shape)
    if kind == "moderate":
        low = (1 << fmt.exponent_bits - 1) - 5 << fmt.mantissa_bits
        magnitude = low + rng.integers(0, 8 << fmt.mantissa_bits, shape)
        sign = rng.integers(0, 2, shape) << fmt.magnitude_bits
        bits = np.where(rng.random(shape) < 0.2, 0, magnitude) | sign
    values = decode(bits, fmt)
    if kind == "finite":
        values = np.where(np.isfinite(values), values, 0.0)
        subnormal = decode(rng.integers(0, 1 << fmt.mantissa_bits, shape), fmt)
        values = np.where(rng.random(shape) < 0.3, subnormal, values)
    return values.astype(np.float32)


def addends(rng: np.random.Generator, shape: tuple[int, int], kind: str) -> np.ndarray:
    c = rng.standard_normal(shape) * 2.0 ** rng.integers(-160, 128, shape)
    near = rng.standard_normal(shape) * 2.0 ** rng.integers(-30, 20, shape)
    c = np.where(rng.random(shape) < 0.7, near, c).astype(np.float32)
    odd = [0.0, -0.0, 1e-45, -3e-40, 3.4e38, -3.4e38]
    odd += [np.inf, -np.inf, np.nan] if kind == "any" else []
    return np.where(rng.random(shape) < 0.2, rng.choice(odd, shape), c).astype(np.float32)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: f"{p[0].name}-{p[1].name}")
@pytest.mark.parametrize("kind", ["any", "finite", "moderate"])
@pytest.mark.parametrize("name", NAMES)
def test_bits_of_the_array_code(name: str, kind: str, pair: tuple[Format, Format]) -> None:
    rng = np.random.default_rng(7)
    k = 256 // max(f.storage_bits for f in pair)
    for m, n in ((5, 8), (3, 1), (2, 75), (1, 32), (9, 64)):
        a, b = drawn(rng, pair[0], (m, k), kind), drawn(rng, pair[1], (n, k), kind)
        if kind == "moderate":  # sums that cancel
            b[:, k // 2 :] = b[:, : k // 2]
            a[:, k // 2 :] = -a[:, : k // 2]
        for c in (None, addends(rng, (m, n), kind)):
            expected = STRATEGIES[name](a, b, c, step=k, formats=pair)
            actual = strategy(name)(a, b, c, step=k, formats=pair)
            assert np.array_equal(expected.view(np.uint32), actual.view(np.uint32))


def exponent(code: int, fmt: Format) -> tuple[int, int]:
    """Significand as an integer with its sign, and the exponent of its unit, of a finite code."""
    field = code >> fmt.mantissa_bits & ((1 << fmt.exponent_bits) - 1)
    fraction = code & ((1 << fmt.mantissa_bits) - 1)
    significand = fraction | (bool(field) << fmt.mantissa_bits)
    unit = max(field, 1) - fmt.bias - fmt.mantissa_bits
    return (-significand if code >> fmt.magnitude_bits else significand), unit


def fused(a: list[int], b: list[int], c: int, fmt: Format, fraction: int) -> int:
    """The bits of one sum, in integers alone: all are codes, c and the result of float32."""
    single = Format("f32", 8, 23, 127)
    value, unit = exponent(c, single)
    terms = [(value, unit, unit + 23)]
    for x, y in zip(a, b, strict=True):
        (p, first), (q, second) = exponent(x, fmt), exponent(y, fmt)
        if p * q:
            terms.append((p * q, first + second, first + second + 2 * fmt.mantissa_bits))
    last = max(top for _, _, top in terms) - fraction
    total = 0
    for value, unit, _ in terms:
        shift = unit - last
        size = abs(value) << shift if shift >= 0 else abs(value) >> -shift
        total += size if value > 0 else -size
    sign, size = (1 << 31 if total < 0 else 0), abs(total)
    if not size:
        return 0
    cut = max(size.bit_length() - 24, -149 - last)
    size = size >> cut if cut >= 0 else size << -cut
    field = cut + last + 149 + (1 if size >> 23 else 0)
    return sign | (0x7F800000 if field >= 255 else field << 23 | size & 0x7FFFFF)


@pytest.mark.parametrize("fmt", [E4M3, E5M2, F16, BF16], ids=lambda f: f.name)
@pytest.mark.parametrize("name", NAMES)
def test_bits_of_integer_arithmetic(name: str, fmt: Format) -> None:
    rng = np.random.default_rng(8)
    k = 256 // fmt.storage_bits
    codes = rng.integers(0, 1 << fmt.storage_bits, (40, k))
    codes = np.where(np.isfinite(decode(codes, fmt)), codes, 3)
    c = addends(rng, (8, 32), "finite").view(np.uint32)
    values = decode(codes, fmt)
    found = strategy(name)(
        values[:8], values[8:], c.view(np.float32), step=k, formats=(fmt, fmt)
    ).view(np.uint32)
    fraction = FRACTIONS[name][fmt.storage_bits > 8]
    for (i, j), bits in np.ndenumerate(found):
        a, b = codes[i].tolist(), codes[8 + j].tolist()
        assert int(bits) == fused(a, b, int(c[i, j]), fmt, fraction), (i, j)


def test_models_differ() -> None:
    """Otherwise equality with one of them would say little."""
    rng = np.random.default_rng(9)
    a, b = drawn(rng, E4M3, (16, 32), "finite"), drawn(rng, E4M3, (32, 32), "finite")
    results = [strategy(name)(a, b, None, step=32, formats=(E4M3, E4M3)) for name in STRATEGIES]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (results[one] != results[other]).any()


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="accumulation 'b300' is none of ideal, b200, hopper"):
        strategy("b300")
