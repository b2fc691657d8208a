"""Facts of number formats and of tensor-core sums, as bounds on errors. Everything is float64.

docs/tolerance.md, "Facts", names the source of each constant.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEP_BYTES = 32  # of each operand's row: what a tensor core sums in one fused step
ALIGNED_BITS = 25  # fraction bits that a fused step keeps below its largest term
F32_HALF_ULP = 2.0**-24  # relative error of a float32 operation rounded to nearest
F32_FRACTION_BITS = 23
CELLS_PER_ULP = 4


def binade(x: Tensor) -> Tensor:
    """Return the largest power of two that is at most |x|; 0 for 0."""
    mantissa, exponent = torch.frexp(x.abs())
    return torch.where(mantissa == 0.0, 0.0, torch.ldexp(torch.ones_like(mantissa), exponent - 1))


def half_ulp(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the error of rounding |x| to nearest in ``dtype``: half the spacing of its binade."""
    finfo = torch.finfo(dtype)
    return 0.5 * finfo.eps * binade(x).clamp(min=finfo.smallest_normal)


def quantum(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the largest power of two that divides every value of each row; infinite for zeros.

    ``x`` is [rows, n] and holds values of ``dtype``.
    """
    significand_bits = round(1 - torch.log2(torch.tensor(torch.finfo(dtype).eps)).item())
    mantissa, exponent = torch.frexp(x)
    whole = (mantissa * 2.0**significand_bits).to(torch.int64)
    lowest_bit = (whole & -whole).to(torch.float64)
    spacing = torch.ldexp(lowest_bit, exponent - significand_bits)
    return torch.where(whole == 0, torch.inf, spacing).amin(-1)


def cell(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the number of the cell in which positive ``x`` lies: a quarter of an ulp of ``dtype``.

    Equal values share a cell, and values that may share one rounding are in few neighbouring cells.
    """
    finfo = torch.finfo(dtype)
    _, exponent = torch.frexp(x.clamp(min=finfo.smallest_normal))
    cells = round(CELLS_PER_ULP / finfo.eps)  # in one binade
    within = torch.ldexp(x, 1 - exponent)  # in [1, 2), below 1 for subnormals only
    return exponent.to(torch.int64) * cells + (within * cells).to(torch.int64)


def sum_errors(
    largest_sum: Tensor,  # of the accumulator, after any step
    largest_term: Tensor,
    steps: int,
    terms: int,
    divisor: Tensor,  # a power of two that divides every term, or 0
) -> Tensor:
    """Return the error of a sum of ``steps`` fused steps of ``terms`` products, truncated.

    A step aligns its products and the accumulator to the largest of them, cuts each below 25
    fraction bits, adds, and cuts the sum to float32. A cut that lies at or below ``divisor`` cuts
    nothing. These errors have the signs of what is cut, so they add up, and never cancel by right.
    """
    largest_sum = largest_sum * (1.0 + 2.0**-10)  # the sum itself is a little off
    aligned = binade(torch.maximum(largest_sum, largest_term)) * 2.0**-ALIGNED_BITS
    rounded = binade(largest_sum) * 2.0**-F32_FRACTION_BITS
    per_step = (terms + 1) * torch.where(aligned > divisor, aligned, 0.0)
    return steps * (per_step + torch.where(rounded > divisor, rounded, 0.0))
