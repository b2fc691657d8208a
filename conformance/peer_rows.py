"""Problems inside the limits of the published kernels, for the profile ``peers``.

Those limits are narrower than the contract, so most rows of `conformance.matrix` are not for these
kernels. Here every row is: no query token without a key, no scale near zero, tables and unused
slots as the kernels need them, and no gaps between the tokens of a query, which some of these
wrappers fold into the heads as if there were none. What decides a compilation is drawn first, and
several problems for each such shape, because compiling one takes longer than running one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from conformance import matrix
from conformance.kernel import Kernel
from reference.problem import PAGE_ORDERS, Problem

SHAPES = 18
PROBLEMS_PER_SHAPE = 6
LONG = 16384
LONG_SHAPES = 2  # of so many shapes the last problem has `LONG` keys
MOST_WORK = 1_200_000  # rows x keys of a problem: about ten seconds of simulation
MOST_ROWS_OF_SMALL_TILE = 64

_SHAPE: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "num_heads": (8, 16, 32, 64, 128),
        "seq_len_q": (1, 2, 3, 4, 8),
        "page_size": (16, 32, 64, 128),
        "causal": (True, False),
        "window_left": (-1, -1, 7, 130),
        "world": (1, 1, 2, 4),
        "interleave_size": (1, 4),
        "is_var_seq": (True, False),
        "enable_pdl": (False, True),
    }
)
_REST: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "splits": (1, 2, 3, 8, 32),
        "rank": ("first", "last"),
        "lse_base": (2,),
        "longest": (63, 64, 65, 127, 128, 129, 255, 256, 257, 640, 700, 1025, 2048, 4096),
        "batch_size": (1, 2, 3),
        "others": ("equal", "mixed"),
        "max_seq_len": ("exact", "loose"),
        "softmax_scale": (192**-0.5, 0.02, 0.25),
        "output_scale": (1.0, -0.5, 3.0),
        "values": ("normal", "magnitudes", "positions", "rising", "falling", "needles"),
        "magnitude": (1.0, 0.1, 4.0),
        "page_order": PAGE_ORDERS,
        "spare_pages": (0, 3),
        "poison": (False,),
        "layout": ("contiguous", "strided", "4-D"),
        "policy": ("fair", "quantum_1", "late", "random"),
    }
)
_LENGTHS = (63, 64, 65, 127, 128, 129, 255, 256, 257, 640, 700, 1025, 2048)


def rows(kernel: Kernel) -> Iterator[tuple[int, matrix.Row, Problem]]:
    """Yield (seed, row, problem) for ``kernel``: always the same, none that it does not take."""
    choice = random.Random(kernel.name)
    seed = 0
    for shape in _shapes(kernel, choice):
        for number in range(PROBLEMS_PER_SHAPE):
            is_long = number == PROBLEMS_PER_SHAPE - 1 and seed < LONG_SHAPES * PROBLEMS_PER_SHAPE
            row, problem = _problem(kernel, shape, choice, is_long=is_long)
            yield seed, row, problem
            seed += 1


def _shapes(kernel: Kernel, choice: random.Random) -> Iterator[matrix.Row]:
    found: list[matrix.Row] = []
    while len(found) < SHAPES:
        shape = {factor: choice.choice(values) for factor, values in _SHAPE.items()}
        if shape not in found and _is_inside(kernel, shape):
            found.append(shape)
            yield shape


def _is_inside(kernel: Kernel, shape: matrix.Row) -> bool:
    """Whether the kernel takes the shape, and none of its known limits lies on it."""
    small = shape["num_heads"] * shape["seq_len_q"] <= MOST_ROWS_OF_SMALL_TILE
    if (small and shape["page_size"] > MOST_ROWS_OF_SMALL_TILE) or (
        shape["window_left"] >= 0 and shape["world"] > 1
    ):
        return False
    row = _row(kernel, shape, random.Random(0))
    return kernel.supports(matrix.problem(row, 0, _LENGTHS)).ok


def _problem(
    kernel: Kernel, shape: matrix.Row, choice: random.Random, *, is_long: bool
) -> tuple[matrix.Row, Problem]:
    """Draw the rest of a row until its work is bearable."""
    while True:
        row = dict(_row(kernel, shape, choice))
        if is_long:
            row |= {"longest": LONG // shape["world"], "batch_size": 1}
        problem = matrix.problem(row, choice.randrange(2**32), _LENGTHS)
        work = problem.dims.num_heads * problem.dims.seq_len_q * sum(problem.seq_lens)
        if is_long or work <= MOST_WORK:
            return row, problem


def _row(kernel: Kernel, shape: matrix.Row, choice: random.Random) -> matrix.Row:
    drawn = {factor: choice.choice(values) for factor, values in _REST.items()}
    tails = choice.choice(kernel.limits.table_tails)
    return {**shape, **drawn, "table_tail": tails, "dtype": _dtype(kernel)}


def _dtype(kernel: Kernel) -> str:
    """The one input dtype that a published kernel is for, by its name."""
    names = {"fp8": "float8_e4m3fn", "bf16": "bfloat16", "fp16": "float16"}
    return names[kernel.name.rsplit("-", 1)[-1]]
