"""How far from the exact result a right kernel may be: a bound for each element, from the data.

`bounds` holds for the kernels that docs/tolerance.md describes: scores and values summed by tensor
cores into float32, P cast to the input's dtype, row sums of P before that cast. The order of tiles,
the number of splits and what runs in which warp are free. That file derives each term and names
its source; a function here says which term it gives.

Scores are in powers of two: t = log2(e) softmax_scale (query . key). A row's weights sum to one,
and errors of a weight are relative to it. Everything is float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from conformance.rounding import F32_HALF_ULP, STEP_BYTES, cell, half_ulp, quantum, sum_errors
from reference import masks, paging
from reference.problem import Problem

if TYPE_CHECKING:
    from conformance.kernel import Algorithm
    from reference.inputs import Inputs

LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)
FALSE_ALARM = 1e-12  # an element's chance of leaving the part that takes roundings as mean-zero
HOEFFDING = math.sqrt(2.0 * math.log(2.0 / FALSE_ALARM))
EX2_ERROR = 2.0**-22  # relative, of ex2.approx
LG2_ERROR = 2.0**-22  # of lg2.approx: absolute near 1, relative elsewhere
RCP_ERROR = 2.0**-23  # relative, of rcp.approx
SCORE_ROUNDINGS = 12  # float32 operations between a raw score and a merged weight
LSE_ROUNDINGS = 6  # float32 operations on the scale of the LSE itself
MERGED_SPLITS = 256  # the most partial results that a combine adds
CHUNK_ELEMENTS = 2**20  # weights held at a time: some fifteen float64 arrays of so many
GROUP_ELEMENTS = 2**15  # weights whose groups are summed at a time, each as wide as a value


@dataclass(frozen=True)
class Bounds:
    """The largest admissible error of each element, the last rounding included."""

    out: Tensor  # [batch, seq_len_q, num_heads, kv_lora_rank] float64
    lse: Tensor  # [batch, seq_len_q, num_heads] float64, in problem.lse_base


@dataclass(frozen=True)
class Rows:
    """Rows that see the same keys: what is exact about them, and what every term is made of."""

    dtype: torch.dtype
    algorithm: Algorithm
    scores: Tensor  # [rows, keys] in powers of two
    lse: Tensor  # [rows] in powers of two
    weight: Tensor  # [rows, keys], a row sums to 1
    values: Tensor  # [keys, latent]
    out: Tensor  # [rows, latent], before output_scale

    @property
    def peak(self) -> Tensor:
        """The largest weight of each row, [rows, 1]."""
        return self.weight.amax(-1, keepdim=True)

    @property
    def p(self) -> Tensor:
        """P before its scale, relative to the row's own maximum: [rows, keys], at most 1."""
        return self.weight / self.peak

    @property
    def magnitude(self) -> Tensor:
        """The largest number in powers of two that a float32 holds on the way to a weight."""
        threshold = self.algorithm.rescale_threshold
        return torch.maximum(self.scores.abs(), self.lse.abs()[:, None]) + threshold

    @property
    def tiles(self) -> int:
        """The most tiles that the keys can touch."""
        return len(self.values) // self.algorithm.tile_n + 2

    @property
    def step_terms(self) -> int:
        """Products that a tensor core sums in one step."""
        return STEP_BYTES // self.dtype.itemsize


def bounds(problem: Problem, inputs: Inputs, algorithm: Algorithm) -> Bounds:
    """Return the bounds of every element of out and lse; 0 where a row sees no key.

    Of ``algorithm``, the kernel's own declaration, p_scale, rescale_threshold and tile_n matter.
    Rows are taken in chunks, so memory stays bounded at any length. Raises ValueError where the
    declared P can leave the range of its dtype.
    """
    dims = problem.dims
    shape = (problem.batch_size, dims.seq_len_q, dims.num_heads)
    out = torch.zeros(*shape, dims.kv_lora_rank, dtype=torch.float64)
    lse = torch.zeros(shape, dtype=torch.float64)
    for request, seq_len in enumerate(problem.seq_lens):
        keys = paging.gather(inputs.kv_cache, inputs.block_tables[request], seq_len)
        for token, seen in enumerate(masks.visible_keys(problem, request)):
            if not bool(seen.any()):
                continue
            chunk = max(1, CHUNK_ELEMENTS // int(seen.sum()))
            for first in range(0, dims.num_heads, chunk):
                row = (request, token, slice(first, first + chunk))
                query = inputs.query[row].to(torch.float64)
                out[row], lse[row] = row_bounds(query, keys[seen], problem, algorithm)
    return Bounds(out, lse)


def row_bounds(
    query: Tensor,  # [rows, qk_head_dim] float64
    keys: Tensor,  # [keys, qk_head_dim] float64, at least one
    problem: Problem,
    algorithm: Algorithm,
) -> tuple[Tensor, Tensor]:
    """Return the bounds of out [rows, kv_lora_rank] and lse [rows] of rows that see ``keys``."""
    rows = rows_of(query, keys, problem, algorithm)
    relative = weight_errors(rows, exponent_errors(query, keys, rows, problem))
    mean = (rows.weight * relative).sum(-1)
    log_sum = log_sum_errors(rows)
    out = _out_errors(rows, relative, log_sum) * (1.0 + mean)[:, None]
    return rounded(rows, out, problem), _lse_bounds(rows, mean, log_sum, problem)


def rows_of(query: Tensor, keys: Tensor, problem: Problem, algorithm: Algorithm) -> Rows:
    """Return what is exact about rows that see ``keys``; the arguments are those of `row_bounds`.

    Raises ValueError where the declared P can leave the range of its dtype.
    """
    _check(problem, algorithm)
    dtype: torch.dtype = getattr(torch, problem.dtype)
    scores = LOG2_E * problem.softmax_scale * (query @ keys.T)
    lse = torch.logsumexp(LN_2 * scores, -1) / LN_2
    weight = torch.exp2(scores - lse[:, None])
    values = keys[:, : problem.dims.kv_lora_rank]
    return Rows(dtype, algorithm, scores, lse, weight, values, weight @ values)


def _check(problem: Problem, algorithm: Algorithm) -> None:
    largest = algorithm.p_scale * 2.0**algorithm.rescale_threshold
    limit = torch.finfo(getattr(torch, problem.dtype)).max
    if largest > limit:
        raise ValueError(
            f"algorithm: p_scale {algorithm.p_scale} and rescale_threshold "
            f"{algorithm.rescale_threshold} let P reach {largest}, above {limit} of {problem.dtype}"
        )


def raw_score_errors(query: Tensor, keys: Tensor, rows: Rows) -> Tensor:  # [rows, keys]
    """Return the error of each query . key: truncated fused steps over the head dimension.

    Derived in docs/tolerance.md, 1; the rule of a step is the tensor core's (`sum_errors`).
    """
    terms = rows.step_terms
    largest_term = query.abs().amax(-1, keepdim=True) * keys.abs().amax(-1)
    divisor = quantum(query, rows.dtype)[:, None] * quantum(keys, rows.dtype)
    queries, of_keys = torch.split(query, terms, -1), torch.split(keys, terms, -1)
    largest_sum = _largest_sum(a @ b.T for a, b in zip(queries, of_keys, strict=True))
    return sum_errors(largest_sum, largest_term, len(queries), terms, divisor)


def _largest_sum(steps: Iterable[Tensor]) -> Tensor:
    """Return what no partial sum of ``steps`` exceeds in magnitude, in whatever order they come.

    That is the larger of the sums of their positive and of their negative parts.
    """
    positive = negative = torch.zeros((), dtype=torch.float64)
    for step in steps:
        positive = positive + step.clamp(min=0.0)
        negative = negative - step.clamp(max=0.0)
    return torch.maximum(positive, negative)


def exponent_errors(query: Tensor, keys: Tensor, rows: Rows, problem: Problem) -> Tensor:
    """Return the error of each exponent, in powers of two: [rows, keys].

    Of its score, and of the float32 operations that turn the score into an exponent. Derived in
    docs/tolerance.md, 2.
    """
    of_score = LOG2_E * problem.softmax_scale * raw_score_errors(query, keys, rows)
    return of_score + SCORE_ROUNDINGS * F32_HALF_ULP * rows.magnitude


def weight_errors(rows: Rows, exponent: Tensor) -> Tensor:  # [rows, keys]
    """Return each weight's relative error before P is cast.

    Of its exponent, of its own ex2 and of one ex2 for each rescale and merge that follows. Derived
    in docs/tolerance.md, 2; the error of ex2.approx is PTX ISA's.
    """
    return torch.expm1(LN_2 * exponent).clamp(max=1e6) + (rows.tiles + 2) * EX2_ERROR


def log_sum_errors(rows: Rows) -> Tensor:  # [rows], in powers of two
    """Return the error of the logarithm of the row sum, given its summands.

    Of the additions within a tile, of one multiplication and two additions for each tile, of the
    combine's additions, of two lg2, and of the operations on the scale of the LSE. Derived in
    docs/tolerance.md, 3; the error of lg2.approx is PTX ISA's.
    """
    tile_n, tiles = rows.algorithm.tile_n, rows.tiles
    additions = tile_n + 3 * tiles + min(tiles, MERGED_SPLITS)
    log2_sum = math.log2(len(rows.values)) + rows.algorithm.rescale_threshold
    scale = (rows.weight * rows.magnitude).sum(-1)
    return (
        LOG2_E * additions * F32_HALF_ULP
        + 2.0 * LG2_ERROR * max(1.0, log2_sum)
        + LSE_ROUNDINGS * F32_HALF_ULP * scale
    )


def _lse_bounds(rows: Rows, mean: Tensor, log_sum: Tensor, problem: Problem) -> Tensor:
    """Return the bounds of the LSE: of the weights' errors and of the logarithm of their sum.

    Were every weight off by its error, the sum would grow by the mean, and its logarithm would
    shrink by no more than it would grow. Derived in docs/tolerance.md, 3.
    """
    bound = torch.log1p(mean) / LN_2 + log_sum
    return bound if problem.lse_base == 2 else LN_2 * bound


def _out_errors(rows: Rows, relative: Tensor, log_sum: Tensor) -> Tensor:  # [rows, latent]
    """Return the error of out before output_scale and the last rounding: the sum of its causes.

    Casts of P (4), errors of weights (5), summing P times values (6), normalisation (7): the
    numbers are those of docs/tolerance.md. Never above what any weights could give.
    """
    half_ulps = _cast_errors(rows, relative)
    cast = _cast_error_sums(rows, half_ulps)
    spread = (rows.weight @ rows.values.square() - rows.out.square()).clamp(min=0.0).sqrt()
    weights = (rows.weight * relative.square()).sum(-1, keepdim=True).sqrt() * spread
    normalisation = LN_2 * log_sum[:, None] + RCP_ERROR + EX2_ERROR + 4.0 * F32_HALF_ULP
    total = cast + weights + accumulation_errors(rows, half_ulps, cast)
    total = total + normalisation * rows.out.abs()
    return torch.minimum(total, rows.out.abs() + 2.0 * rows.values.abs().amax(0))


def _cast_errors(rows: Rows, relative: Tensor) -> Tensor:  # [rows, keys]
    """Return half an ulp of P, as a weight: the largest error of its cast.

    P is relative to a running maximum that lies at most rescale_threshold below the true one, and
    which one is not known. Three facts hold all the same: half an ulp is at most eps/2 of a normal
    P, and below that at most the smallest normal's; rounding never errs by more than the value; and
    where P cannot differ much from 1, it rounds to 1. Derived in docs/tolerance.md, 4.
    """
    finfo, algorithm, p = torch.finfo(rows.dtype), rows.algorithm, rows.p
    floor = finfo.smallest_normal / algorithm.p_scale
    errors = torch.minimum(p, 0.5 * finfo.eps * p.clamp(min=floor))
    one = torch.tensor(algorithm.p_scale)
    if bool(one.to(rows.dtype).to(one.dtype) == one):
        highest = torch.ones_like(p)
        if algorithm.rescale_threshold > 0.0:
            lowest = p.amin(-1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny)
            highest = (p / lowest).clamp(max=2.0**algorithm.rescale_threshold)
        errors = torch.minimum(errors, torch.maximum(1.0 - p, highest - 1.0) + relative)
    return errors * rows.peak


def _cast_error_sums(rows: Rows, half_ulps: Tensor) -> Tensor:  # [rows, latent]
    """Return what the casts of P do to out: Hoeffding's bound, or the plain sum where smaller.

    Equal P share one rounding, and near ones may: keys are grouped by cell, signed within a cell.
    Tiles with maxima of their own split a cell, so its keys never count less than one by one.
    Derived in docs/tolerance.md, 4, from Hoeffding's inequality (1963).
    """
    alone = half_ulps.square() @ rows.values.square()
    cells = cell(rows.algorithm.p_scale * rows.p, rows.dtype)
    chunk = max(1, GROUP_ELEMENTS // cells.shape[1])
    parts = zip(torch.split(cells, chunk), torch.split(half_ulps, chunk), strict=True)
    grouped = torch.cat([_grouped_squares(*part, rows.values) for part in parts])
    likely = HOEFFDING * torch.maximum(alone, grouped).sqrt()
    return torch.minimum(likely, half_ulps @ rows.values.abs())


def _grouped_squares(cells: Tensor, half_ulps: Tensor, values: Tensor) -> Tensor:
    """Return, for each row and latent, the sum over cells of (sum of half_ulps * values)^2.

    The inner sums are in float32, of values scaled to 1: the one costly step of all the bounds.
    """
    num_rows, num_keys = cells.shape
    largest = values.abs().max().clamp(min=torch.finfo(values.dtype).tiny)
    cells = cells - cells.min()
    span = int(cells.max()) + 1
    groups, group = torch.unique(
        (cells + span * torch.arange(num_rows)[:, None]).flatten(), return_inverse=True
    )
    order = group.argsort()
    sums = torch.nn.functional.embedding_bag(
        order % num_keys,
        (values / largest).float(),
        torch.searchsorted(group[order], torch.arange(len(groups))),
        mode="sum",
        per_sample_weights=half_ulps.flatten()[order].float(),
    )
    of_row = torch.split(sums.square(), torch.bincount(groups // span).tolist())
    return largest.square() * torch.stack([squares.sum(0) for squares in of_row])


def accumulation_errors(rows: Rows, half_ulps: Tensor, cast: Tensor) -> Tensor:
    """Return the error of summing P times the values, [rows, latent]: sums, never norms.

    Truncated fused steps over the keys; then one float32 multiplication for each rescale, and a
    multiplication and an addition for each split that is merged. Derived in docs/tolerance.md, 6.
    """
    terms = rows.step_terms
    weights, values = torch.split(rows.weight, terms, -1), torch.split(rows.values, terms)
    largest_sum = _largest_sum(w @ v for w, v in zip(weights, values, strict=True)) + cast
    largest_term = torch.zeros_like(rows.out)
    for w, v in zip(torch.split(rows.weight + half_ulps, terms, -1), values, strict=True):
        term = w.amax(-1, keepdim=True) * v.abs().amax(0)
        largest_term = torch.maximum(largest_term, term)
    exact_divisor = torch.zeros_like(largest_sum)
    truncated = sum_errors(largest_sum, largest_term, len(values), terms, exact_divisor)
    operations = rows.tiles + 2 * min(rows.tiles, MERGED_SPLITS)
    return truncated + operations * F32_HALF_ULP * largest_sum


def rounded(rows: Rows, errors: Tensor, problem: Problem) -> Tensor:
    """Return the bound after output_scale and the rounding to the output's dtype.

    The kernel rounds its own value, which may lie in the binade above that of the exact one.
    Derived in docs/tolerance.md, 8.
    """
    scale = abs(problem.output_scale)
    dtype: torch.dtype = getattr(torch, problem.output_dtype)
    return scale * errors + half_ulp(scale * (rows.out.abs() + errors), dtype)
