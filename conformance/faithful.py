"""Oracle B: whether a kernel computes what its own algorithm says, to the last rounding.

`emulations` follows the kernel's declared `Algorithm` through `reference.faithful` and bounds what
is left: sums in float32, approximate functions, keys whose P lies so near a tie of the cast that it
may round either way, and the rounding of the output. docs/tolerance.md, "Oracle B", derives each
term. The LSE contains no cast of P; its emulation is the exact value, and its bound oracle A's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from conformance.rounding import F32_HALF_ULP
from conformance.tolerance import (
    CHUNK_ELEMENTS,
    EX2_ERROR,
    LN_2,
    RCP_ERROR,
    Rows,
    accumulation_errors,
    exponent_errors,
    log_sum_errors,
    rounded,
    rows_of,
    weight_errors,
)
from reference import faithful, masks, paging
from reference.faithful import Walk
from reference.problem import Problem

if TYPE_CHECKING:
    from conformance.kernel import Algorithm
    from reference.inputs import Inputs

MOST_DOUBTS = 8  # decisions of one row that may go either way, each way emulated

Row = tuple[int, int, int]  # request, token, head


@dataclass(frozen=True)
class Emulation:
    """What a kernel's algorithm gives, and by how much a right kernel may differ from that."""

    out: Tensor  # [..., kv_lora_rank] float64, output_scale included, before the last rounding
    bound: Tensor  # the same shape, the last rounding included


@dataclass(frozen=True)
class Emulations:
    """The emulation of a whole call, and what else a right kernel may have decided.

    ``others`` holds, for a row in which a growth of the maximum lies within its error of the
    kernel's threshold, one emulation for each way to decide. ``undecided`` rows have more than
    `MOST_DOUBTS` such places: their emulation means nothing.
    """

    call: Emulation  # [batch, seq_len_q, num_heads, kv_lora_rank]
    others: dict[Row, Emulation]  # each [ways, kv_lora_rank]
    undecided: tuple[Row, ...]

    def nearest(self, got: Tensor) -> Emulation:
        """Return the emulation that lies nearest to ``got``; undecided rows hold ``got`` itself."""
        out, bound = self.call.out.clone(), self.call.bound.clone()
        for row, ways in self.others.items():
            ratios = ((got[row].double() - ways.out).abs() / ways.bound).nan_to_num(nan=math.inf)
            best = int(ratios.amax(-1).argmin())
            out[row], bound[row] = ways.out[best], ways.bound[best]
        for row in self.undecided:
            out[row] = got[row].double()
        return Emulation(out, bound)


@dataclass(frozen=True)
class _Cast:
    """What the errors of one row's weights are made of, whatever its bases."""

    rows: Rows
    exponent: Tensor  # [rows, keys] error of each exponent, in powers of two
    tiles: Tensor  # [keys] the tile of each key
    walk: Walk
    maxima: Tensor  # [rows, tiles] of the scores

    @property
    def base_error(self) -> Tensor:
        """The error of a base, in powers of two: that of the score that it is. [rows]"""
        return self.exponent.amax(-1)


def emulations(
    problem: Problem, inputs: Inputs, algorithm: Algorithm, num_splits: int
) -> Emulations:
    """Return what ``algorithm`` gives for a call with so many splits; 0 where no key is seen.

    Raises ValueError where the declared P can leave the range of its dtype.
    """
    dims = problem.dims
    shape = (problem.batch_size, dims.seq_len_q, dims.num_heads, dims.kv_lora_rank)
    out, bound = torch.zeros(2, *shape, dtype=torch.float64)
    others: dict[Row, Emulation] = {}
    undecided: list[Row] = []
    for request, token, first, cast in _chunks(problem, inputs, algorithm, num_splits):
        base = faithful.bases(cast.maxima, cast.walk)
        heads = slice(first, first + len(base))
        whole = _emulation(cast, base, problem)
        out[request, token, heads], bound[request, token, heads] = whole.out, whole.bound
        slack = 2.0 * cast.base_error
        doubts = faithful.doubtful(cast.maxima, base, cast.walk, slack).any(-1)
        for place in doubts.nonzero().flatten().tolist():
            row = (request, token, first + place)
            ways = faithful.all_bases(
                cast.maxima[place], cast.walk, float(slack[place]), MOST_DOUBTS
            )
            if ways is None:
                undecided.append(row)
            else:
                others[row] = _emulation(
                    _repeated(cast, place, len(ways)), torch.stack(ways), problem
                )
    return Emulations(Emulation(out, bound), others, tuple(undecided))


def _chunks(
    problem: Problem, inputs: Inputs, algorithm: Algorithm, num_splits: int
) -> Iterator[tuple[int, int, int, _Cast]]:
    """Yield request, token, first head, and what is known of the rows from there on."""
    for request, seq_len in enumerate(problem.seq_lens):
        keys = paging.gather(inputs.kv_cache, inputs.block_tables[request], seq_len)
        visible = masks.visible_keys(problem, request)
        walk = _walk(visible, algorithm, num_splits)
        for token, seen in enumerate(visible):
            if not bool(seen.any()):
                continue
            tiles = walk.tiles_of(seen.nonzero().flatten())
            chunk = max(1, CHUNK_ELEMENTS // int(seen.sum()))
            for first in range(0, problem.dims.num_heads, chunk):
                query = inputs.query[request, token, first : first + chunk].to(torch.float64)
                rows = rows_of(query, keys[seen], problem, algorithm)
                exponent = exponent_errors(query, keys[seen], rows, problem)
                maxima = faithful.tile_maxima(rows.scores, tiles, walk.num_tiles)
                yield request, token, first, _Cast(rows, exponent, tiles, walk, maxima)


def _walk(visible: Tensor, algorithm: Algorithm, num_splits: int) -> Walk:
    """Return how the kernel goes through the keys that some token of a request sees."""
    some = visible.any(0).nonzero().flatten() // algorithm.tile_n
    first, last = (int(some[0]), int(some[-1])) if len(some) else (0, -1)
    threshold = algorithm.rescale_threshold
    return Walk(algorithm.tile_n, first, last - first + 1, num_splits, threshold)


def _repeated(cast: _Cast, place: int, times: int) -> _Cast:
    """Return one row of ``cast`` so many times."""
    at = torch.full((times,), place)
    rows = cast.rows
    row = replace(
        rows, scores=rows.scores[at], lse=rows.lse[at], weight=rows.weight[at], out=rows.out[at]
    )
    return replace(cast, rows=row, exponent=cast.exponent[at], maxima=cast.maxima[at])


def _emulation(cast: _Cast, base: Tensor, problem: Problem) -> Emulation:
    """Return the emulation of rows that take these bases, [rows, tiles]."""
    rows, algorithm = cast.rows, cast.rows.algorithm
    of_key = base[:, cast.tiles]
    relative = weight_errors(rows, cast.exponent + cast.base_error[:, None])
    p = algorithm.p_scale * torch.exp2(rows.scores - of_key)
    stored, flips = p, torch.zeros_like(p)
    if algorithm.casts_p:
        stored = faithful.cast(p, rows.dtype)
        higher = faithful.cast(p * (1.0 + relative), rows.dtype)
        lower = faithful.cast(p * (1.0 - relative).clamp(min=0.0), rows.dtype)
        flips = torch.maximum(higher - stored, stored - lower)
    to_weight = torch.exp2(of_key - rows.lse[:, None]) / algorithm.p_scale
    weight, flips = stored * to_weight, flips * to_weight
    emulated = replace(rows, weight=weight, out=weight @ rows.values)
    errors = _errors(emulated, relative, flips, rows)
    return Emulation(problem.output_scale * emulated.out, rounded(emulated, errors, problem))


def _errors(emulated: Rows, relative: Tensor, flips: Tensor, exact: Rows) -> Tensor:
    """Return the error of out before output_scale and the last rounding, [rows, latent].

    Keys that round the other way, errors of the factors that turn P into a weight, summing P times
    the values, and the row sum that divides. All are sums of magnitudes.
    """
    magnitudes = emulated.values.abs()
    flipped = flips @ magnitudes
    factors = (emulated.weight * relative) @ magnitudes
    mean = (exact.weight * relative).sum(-1, keepdim=True)
    normalisation = mean + LN_2 * log_sum_errors(exact)[:, None]
    normalisation = normalisation + RCP_ERROR + EX2_ERROR + 4.0 * F32_HALF_ULP
    total = flipped + factors + accumulation_errors(emulated, flips, flipped)
    return (total + normalisation * emulated.out.abs()) * (1.0 + mean)
