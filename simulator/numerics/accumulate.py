"""How a tensor core adds products: the accumulation strategies of one MMA.

A strategy takes operands whose products are exact and the accumulator, and gives the new
accumulator. Which one models the hardware is a matter of measurement, so it is a parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.numerics.formats import Floats, Format, canonical_nan

Doubles = NDArray[np.float64]

FRACTION_BITS = 25
"""Bits below the largest exponent that a fused step of a B200 tensor core keeps."""

_HOPPER_WRITTEN = np.uint32(0xFFFFFFFF << 10 & 0xFFFFFFFF)
_ACCUMULATOR_MIN_EXPONENT = -126
_F32_SIGNIFICAND_BITS = 24


class Accumulate(Protocol):
    """A strategy: the accumulator after ``a @ b.T`` was added to it."""

    def __call__(
        self, a: Floats, b: Floats, c: Floats | None, *, step: int, formats: tuple[Format, Format]
    ) -> Floats:
        """Float32 [m, n] for ``a`` [m, k], ``b`` [n, k] and ``c`` [m, n], or zero for None.

        ``step`` is the number of products that the hardware fuses, ``formats`` those of a and b.
        """


@np.errstate(all="ignore")
def ideal(
    a: Floats, b: Floats, c: Floats | None, *, step: int, formats: tuple[Format, Format]
) -> Floats:
    """Exact products summed in float64, rounded once to nearest: the error hardware could have.

    For 8-bit operands the sum of one MMA is exact before that rounding.
    """
    total = a.astype(np.float64) @ b.T.astype(np.float64)
    if c is not None:
        total += c
    return canonical_nan(total.astype(np.float32))


@np.errstate(all="ignore")
def b200(
    a: Floats, b: Floats, c: Floats | None, *, step: int, formats: tuple[Format, Format]
) -> Floats:
    """The published model of B200: ``step`` products and the accumulator in one fused sum.

    All terms are aligned to the largest exponent among them, cut toward zero 25 bits below it,
    added exactly, and the sum is cut toward zero to float32. The exponent of a product is the sum
    of its factors' exponents, not that of its normalised value. Sums beyond float32 are infinite,
    and a sum of nothing but zeros is +0.

    Sources: MMA-Sim (arXiv 2511.10909); Khattak and Mikaitis (arXiv 2512.07004). Both describe
    one-CTA MMAs without ``.ws``; that the other forms add in the same way is an assumption.
    """
    return _fused(a, b, c, step=step, formats=formats, fraction=B200.bits(formats))


@np.errstate(all="ignore")
def hopper(
    a: Floats, b: Floats, c: Floats | None, *, step: int, formats: tuple[Format, Format]
) -> Floats:
    """As ``b200``, but of 8-bit operands 13 bits are kept; the same sources."""
    return _fused(a, b, c, step=step, formats=formats, fraction=HOPPER.bits(formats))


@dataclass(frozen=True)
class FusedModel:
    """Bits below the largest exponent that a fused step keeps: of 8-bit operands, and of wider."""

    narrow: int
    wide: int

    def bits(self, formats: tuple[Format, Format]) -> int:
        """The bits that are kept for operands of these formats."""
        return self.narrow if max(f.storage_bits for f in formats) <= 8 else self.wide


B200: Final = FusedModel(FRACTION_BITS, FRACTION_BITS)
HOPPER: Final = FusedModel(13, FRACTION_BITS)
FUSED_MODELS: Final = MappingProxyType({"b200": B200, "hopper": HOPPER})


def written(total: Floats, accumulate: Accumulate, formats: tuple[Format, Format]) -> Floats:
    """What ``wgmma`` writes of sums for an f32 accumulator.

    Hopper drops all but 13 fraction bits where both operands have 8 bits; measured on an H200.
    """
    is_hopper = accumulate is hopper or getattr(accumulate, "model", None) is HOPPER
    if not is_hopper or HOPPER.bits(formats) != HOPPER.narrow:
        return total
    return (total.view(np.uint32) & _HOPPER_WRITTEN).view(np.float32)


def _fused(
    a: Floats,
    b: Floats,
    c: Floats | None,
    *,
    step: int,
    formats: tuple[Format, Format],
    fraction: int,
) -> Floats:
    """Fused sums of ``step`` products, one after the other."""
    total = np.zeros((len(a), len(b)), np.float32) if c is None else c
    for start in range(0, a.shape[1], step):
        part = slice(start, start + step)
        total = _fused_step(a[:, part], b[:, part], total, formats, fraction)
    return canonical_nan(total)


def _fused_step(
    a: Floats, b: Floats, c: Floats, formats: tuple[Format, Format], fraction: int
) -> Floats:
    """One fused sum. In float64 it is exact: 33 terms of 28 bits, scaled by powers of two."""
    exponent_a = _exponents(a, formats[0].min_exponent)
    exponent_b = _exponents(b, formats[1].min_exponent)
    largest = _exponents(c, _ACCUMULATOR_MIN_EXPONENT)
    for k in range(a.shape[1]):
        pair = exponent_a[:, None, k] + exponent_b[None, :, k]
        product_is_zero = (a[:, None, k] == 0) | (b[None, :, k] == 0)
        np.maximum(largest, np.where(product_is_zero, largest, pair), out=largest)
    scale = np.ldexp(1.0, fraction - largest)
    total = np.trunc(c * scale)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    for k in range(a.shape[1]):
        total += np.trunc(wide_a[:, None, k] * wide_b[None, :, k] * scale)
    return _toward_zero((total + 0.0) / scale)


def _exponents(values: Floats, min_exponent: int) -> NDArray[np.int32]:
    """Exponents of the significands in [1, 2), that of subnormals and zero being the smallest."""
    _, exponent = np.frexp(values)
    exponent = np.where((values == 0) | ~np.isfinite(values), min_exponent, exponent - 1)
    return np.maximum(exponent, min_exponent).astype(np.int32)


def _toward_zero(values: Doubles) -> Floats:
    """Float32 values cut toward zero, except that what exceeds all of them becomes infinite."""
    _, exponent = np.frexp(values)
    unit = np.maximum(exponent - 1, _ACCUMULATOR_MIN_EXPONENT) - (_F32_SIGNIFICAND_BITS - 1)
    cut = np.ldexp(np.trunc(np.ldexp(values, -unit)), unit)
    return np.where(np.isfinite(values), cut, values).astype(np.float32)


@np.errstate(all="ignore")
def scaled_sum(
    a: tuple[Floats, Doubles], b: tuple[Floats, Doubles], c: Floats | None, *, is_ideal: bool
) -> Floats:
    """Float32 [m, n] of block-scaled operands, each values [rows, k] and scales [rows, blocks].

    The products of a block are added up exactly and multiplied by both scales exactly. Those terms
    and the accumulator are then one fused sum as of ``b200`` or, if ``is_ideal``, rounded once. No
    measurement of a B200 is known that says so: an assumption.
    """
    (values_a, scales_a), (values_b, scales_b) = a, b
    blocks = scales_a.shape[1]
    parts_a = values_a.astype(np.float64).reshape(len(values_a), blocks, -1)
    parts_b = values_b.astype(np.float64).reshape(len(values_b), blocks, -1)
    start = np.zeros((len(values_a), len(values_b))) if c is None else c.astype(np.float64)
    terms = [start]
    for block in range(blocks):
        exact = parts_a[:, block] @ parts_b[:, block].T
        terms.append(exact * np.outer(scales_a[:, block], scales_b[:, block]))
    if is_ideal:
        return canonical_nan(np.sum(terms, axis=0).astype(np.float32))
    return _fused_terms(terms)


def _fused_terms(terms: list[Doubles]) -> Floats:
    """The sum of terms, each cut 25 bits below the largest exponent, cut toward zero."""
    exponents = [np.where(t == 0, _ACCUMULATOR_MIN_EXPONENT, np.frexp(t)[1] - 1) for t in terms]
    largest = np.maximum(np.max(exponents, axis=0), _ACCUMULATOR_MIN_EXPONENT)
    scale = np.ldexp(1.0, FRACTION_BITS - largest)
    total = np.sum([np.trunc(term * scale) for term in terms], axis=0)
    return canonical_nan(_toward_zero((total + 0.0) / scale))


STRATEGIES = MappingProxyType({"ideal": ideal, "b200": b200, "hopper": hopper})
