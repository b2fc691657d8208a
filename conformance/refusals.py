"""Problems that a kernel says it does not take, to see whether it refuses them or gets them right.

What is wrong in this field is rarely refused: a flag that a kernel ignores gives numbers. So the
suite also asks for what `Kernel.supports` denies, with `RunOptions.ask_anyway`: a call may end in
an error of the wrapper, or in a right result, and in nothing else.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from conformance import matrix
from conformance.kernel import Kernel
from reference.problem import Dims, Problem

CANDIDATES = 600  # rows that are looked through
MOST_PER_REASON = 2
_BEYOND: tuple[dict[str, Any], ...] = (
    {"kv_lora_rank": 256},
    {"qk_rope_head_dim": 32},
    {"seq_len_q": 17},
    {},
)
"""What replaces a row's dimensions, one after the other: none of it is in the contract but {}."""


def rows(kernel: Kernel) -> Iterator[tuple[int, matrix.Row, Problem]]:
    """Yield (seed, row, problem) that ``kernel`` does not take, few for each reason it gives.

    Always the same. Kills flags that are taken and ignored, and checks of architecture, size or
    dtype that are missing (A1, A2, L4, L6). Nothing for a kernel that takes whatever the contract
    allows and more.
    """
    choice = random.Random("refusals")
    seen: dict[str, int] = {}
    for seed in range(CANDIDATES):
        row: dict[str, Any] = {factor: choice.choice(v) for factor, v in matrix.LEVELS.items()}
        row |= {"longest": choice.choice((1, 64, 129, 257)), "policy": "fair"}
        problem = matrix.problem(row, seed, (1, 64, 129))
        problem = _beyond(problem, _BEYOND[seed % len(_BEYOND)])
        support = kernel.supports(problem)
        kind = re.sub(r"\d+", "#", support.reason)
        if support.ok or seen.get(kind, 0) == MOST_PER_REASON:
            continue
        seen[kind] = seen.get(kind, 0) + 1
        yield seed, row, problem


def _beyond(problem: Problem, dims: dict[str, int]) -> Problem:
    values = {
        "num_heads": problem.dims.num_heads,
        "seq_len_q": problem.dims.seq_len_q,
        "kv_lora_rank": problem.dims.kv_lora_rank,
        "qk_rope_head_dim": problem.dims.qk_rope_head_dim,
    }
    return replace(problem, dims=Dims(**{**values, **dims}))
