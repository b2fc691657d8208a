"""The whole range that the contract allows, for the profile ``matrix``: pairwise, then at random.

`conformance.factors` saves compilations, so that a kernel of many specialisations can be judged in
minutes. Here everything varies freely: rows are added until every two values of two factors have
met, and then random ones until there are `ROWS`. Always the same rows, for every kernel.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from reference.dcp import owned_positions
from reference.problem import DTYPES, LAYOUTS, PAGE_ORDERS, TABLE_TAILS, Dcp, Dims, Mask, Problem
from reference.values import VALUES

Row = Mapping[str, Any]

ROWS = 2200
CANDIDATES = 40  # random rows of which the best joins the covering array
SEED = 4
WATCHED = 24  # of so many rows one runs with the race check
WATCHED_KEYS = 300  # and has at most so many: the check takes the interpreter

LEVELS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "dtype": DTYPES,
        "num_heads": (1, 6, 12, 16, 24, 32, 48, 64, 96, 128),
        "seq_len_q": (1, 2, 3, 4, 8),
        "page_size": (2, 4, 8, 16, 32, 64, 128),
        "num_splits": (1, 2, 3, 8, 32, None),
        "causal": (True, False),
        "window_left": (-1, 0, 7, 130),
        "world": (1, 2, 4, 8),
        "interleave_size": (1, 4),
        "rank": ("first", "last"),
        "is_var_seq": (True, False),
        "enable_pdl": (False, True),
        "lse_base": (2, "e"),
        "longest": (
            0, 1, 2, 7, 63, 64, 65, 127, 128, 129, 255, 256, 257, 640, 700, 1023, 1025, 1500,
        ),
        "batch_size": (1, 2, 3),
        "others": ("equal", "empty", "mixed"),
        "max_seq_len": ("exact", "loose"),
        "softmax_scale": (192**-0.5, 0.02, 0.25, 0.0),
        "output_scale": (1.0, -0.5, 3.0),
        "values": tuple(VALUES),
        "magnitude": (1.0, 0.1, 4.0),
        "page_order": PAGE_ORDERS,
        "table_tail": TABLE_TAILS,
        "spare_pages": (0, 3),
        "poison": (False, True),
        "layout": LAYOUTS,
        "num_sms": (148, 8),
        "policy": ("fair", "run_to_block", "quantum_1", "late", "random"),
    }
)  # fmt: skip


@functools.cache
def rows() -> tuple[Row, ...]:
    """Return the rows: factor -> value. The first ones make all pairs meet."""
    choice = random.Random(SEED)
    covering = list(_covering(choice))
    free = [_random_row(choice) for _ in range(ROWS - len(covering))]
    return (*covering, *free)


def problem(row: Row, seed: int, lengths: Sequence[int] = LEVELS["longest"]) -> Problem:
    """Return the problem of a row; ``seed`` draws from ``lengths`` what the row leaves open."""
    return problem_of(row, _contexts(row, random.Random(seed), lengths))


def problem_of(row: Row, contexts: Sequence[int]) -> Problem:
    """Return the problem of a row whose requests have these whole contexts, in keys."""
    world = row["world"]
    dcp = Dcp()
    if world > 1:
        rank = 0 if row["rank"] == "first" else world - 1
        dcp = Dcp(world, rank, row["interleave_size"], tuple(contexts))
    owned = tuple(len(owned_positions(keys, dcp)) for keys in contexts)
    loose = 300 if row["max_seq_len"] == "loose" else 0
    return Problem(
        dims=Dims(row["num_heads"], row["seq_len_q"]),
        dtype=row["dtype"],
        page_size=row["page_size"],
        seq_lens=owned,
        softmax_scale=row["softmax_scale"],
        output_scale=row["output_scale"],
        mask=Mask(row["causal"], row["window_left"]),
        dcp=dcp,
        lse_base=row["lse_base"],
        max_seq_len=max(1, *owned) + loose if loose else None,
        is_var_seq=row["is_var_seq"],
        enable_pdl=row["enable_pdl"],
    )


def with_contexts(problem: Problem, contexts: Sequence[int]) -> Problem:
    """Return the problem with other whole contexts, and as many keys here as follow from them."""
    whole = problem.dcp.causal_seqs is None
    dcp = Dcp() if whole else replace(problem.dcp, causal_seqs=tuple(contexts))
    owned = tuple(len(owned_positions(keys, dcp)) for keys in contexts)
    longest = problem.max_seq_len
    return replace(
        problem,
        dcp=dcp,
        seq_lens=owned,
        max_seq_len=None if longest is None else max(longest, 1, *owned),
    )


def is_watched(index: int, drawn: Problem) -> bool:
    """Return whether the row of this index also runs under the race check."""
    return index % WATCHED == 0 and max(drawn.seq_lens, default=0) <= WATCHED_KEYS


def _contexts(row: Row, choice: random.Random, lengths: Sequence[int]) -> tuple[int, ...]:
    """Return the requests' whole contexts, the longest at a random place.

    The values of ``longest`` are the keys of a rank, so that its edges are met with any world.
    """
    longest = row["longest"] * row["world"]
    if row["world"] > 1 and row["longest"]:
        longest -= choice.randrange(row["world"])
    shorter = [keys * row["world"] for keys in lengths if keys <= row["longest"]]
    others = {"equal": [longest], "empty": [0], "mixed": shorter}[row["others"]]
    contexts = [longest, *(choice.choice(others) for _ in range(row["batch_size"] - 1))]
    choice.shuffle(contexts)
    return tuple(contexts)


def _random_row(choice: random.Random) -> Row:
    return {factor: choice.choice(values) for factor, values in LEVELS.items()}


def _covering(choice: random.Random) -> Iterator[Row]:
    """Yield rows in which all pairs meet: each has a pair that had not met, and many such pairs."""
    apart = {
        pair
        for first, second in itertools.combinations(LEVELS, 2)
        for pair in itertools.product(
            [(first, value) for value in LEVELS[first]],
            [(second, value) for value in LEVELS[second]],
        )
    }
    while apart:
        pair = min(apart, key=repr)
        candidates = [{**_random_row(choice), **dict(pair)} for _ in range(CANDIDATES)]
        best = max(candidates, key=lambda row: len(apart & _pairs(row)))
        apart -= _pairs(best)
        yield best


def _pairs(row: Row) -> set[tuple[tuple[str, Any], tuple[str, Any]]]:
    return set(itertools.combinations([(factor, row[factor]) for factor in LEVELS], 2))
