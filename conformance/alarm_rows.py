"""Problems for counting false alarms on a kernel that is right, for the profile ``alarms``.

Of each dtype `RUNS` rows drawn freely from the levels of `conformance.matrix`, of at most 2,048
keys, and `LONG_RUNS` of `LONG` keys. A refusal here is either a fault of the kernel or a false
alarm of an oracle: with none in n runs, the upper 95% limit of the rate is 3/n (rule of three:
Hanley and Lippman-Hand, 1983).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from conformance import matrix
from conformance.kernel import Kernel
from reference.problem import DTYPES, Problem

RUNS = 1000
LONG_RUNS = 50
LONG = 16384
CANDIDATES = 1000  # rows that a kernel is offered before its dtype is given up
MOST_LONG_ROWS = 128  # heads x tokens of a long problem: the oracle's time grows with both
_LENGTHS = (*matrix.LEVELS["longest"], 2047, 2048)
_SCALES = (-2.5, 0.0)  # softmax_scale is log-uniform between these powers of ten


def rows(kernel: Kernel) -> Iterator[tuple[int, matrix.Row, Problem]]:
    """Yield (seed, row, problem) for ``kernel``, dtype by dtype: always the same for one kernel.

    Nothing for a dtype of which the kernel takes none of `CANDIDATES` rows.
    """
    seed = 0
    for dtype in DTYPES:
        choice = random.Random(f"alarms/{dtype}")
        for index in range(RUNS + LONG_RUNS):
            drawn = _taken(kernel, dtype, choice, is_long=index >= RUNS)
            if drawn is None:
                break
            yield seed, *drawn
            seed += 1


def _taken(
    kernel: Kernel, dtype: str, choice: random.Random, *, is_long: bool
) -> tuple[matrix.Row, Problem] | None:
    for _ in range(CANDIDATES):
        row = _row(kernel, dtype, choice, is_long=is_long)
        problem = matrix.problem(row, choice.randrange(2**32), _LENGTHS)
        if kernel.supports(problem).ok:
            return row, problem
    return None


def _row(kernel: Kernel, dtype: str, choice: random.Random, *, is_long: bool) -> matrix.Row:
    """Draw a row within the kernel's limits; a long one has one request and few rows."""
    limits = kernel.limits
    row: dict[str, Any] = {factor: choice.choice(v) for factor, v in matrix.LEVELS.items()}
    row |= {
        "dtype": dtype,
        "longest": choice.choice(_LENGTHS),
        "table_tail": choice.choice(limits.table_tails),
        "poison": limits.poison and row["poison"],
        "softmax_scale": 10.0 ** choice.uniform(*_SCALES),
    }
    if is_long:
        fitting = [heads for heads in matrix.LEVELS["num_heads"] if heads <= MOST_LONG_ROWS]
        row |= {"longest": LONG, "world": 1, "batch_size": 1, "num_heads": choice.choice(fitting)}
        row["seq_len_q"] = max(
            tokens
            for tokens in (1, row["seq_len_q"])
            if tokens * row["num_heads"] <= MOST_LONG_ROWS
        )
    return row
