"""Which problems a kernel is judged on: a covering array of them, and random ones.

Both draw structure and a seed, never tensors, and only what the kernel takes (`Kernel.supports`,
`Kernel.limits`). `conformance.factors` lists what they differ in.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from conformance import alarm_rows, matrix, peer_rows
from conformance import refusals as refused
from conformance.factors import Levels, Row, Space, space
from conformance.kernel import Kernel, RunOptions
from reference.problem import DTYPES, Dims, Mask, Problem, Recipe

TILE_KEYS = 128
LONGEST = 700  # keys of a random request
MOST_SMS = 148  # of a B200
LOOSE_KEYS = 300  # by which a loose max_seq_len exceeds the longest request


@dataclass(frozen=True)
class Choice:
    """How a drawn problem is run: the seed of its tensors, SMs, schedule, and what is watched.

    The split count is varied by ``num_sms``, through the kernel's own plan, and ``num_splits`` left
    None: every kernel has a plan, but not every kernel lets its caller choose.
    """

    seed: int
    num_sms: int
    num_splits: int | None = None
    policy: str = "fair"
    policy_seed: int = 0
    checks: tuple[str, ...] = RunOptions().checks


Drawn = tuple[Problem, Recipe, Choice]


def covering_array(profile: str, kernel: Kernel) -> tuple[Drawn, ...]:
    """Return the profile's problems for ``kernel``: always the same, in the same order.

    Every two values of two factors meet in one of them, where the kernel takes both; in the smoke
    profile every value occurs. Raises ValueError for an unknown profile, and for a kernel that
    takes nothing of it.
    """
    if profile == "matrix":
        return tuple(_matrix(kernel))
    if profile == "peers":
        return tuple(_peers(kernel))
    if profile == "alarms":
        return tuple(_alarms(kernel))
    wanted = problem_space(profile, kernel)
    return tuple(
        _drawn(kernel, row, _lengths(kernel, wanted.levels, row, seed), seed)
        for seed, row in enumerate(wanted.rows())
    )


def _matrix(kernel: Kernel) -> Iterator[Drawn]:
    """Yield what ``kernel`` takes of the rows of `conformance.matrix`."""
    for seed, row in enumerate(matrix.rows()):
        problem = matrix.problem(row, seed)
        if kernel.supports(problem).ok:
            choice = Choice(seed, row["num_sms"], row["num_splits"], row["policy"], seed)
            if matrix.is_watched(seed, problem):
                choice = replace(choice, checks=(*choice.checks, "races"))
            yield problem, _recipe(row), choice


def _peers(kernel: Kernel) -> Iterator[Drawn]:
    """Yield the rows of `conformance.peer_rows`."""
    for seed, row, problem in peer_rows.rows(kernel):
        num_sms = _num_sms(kernel, problem, row["splits"])
        yield problem, _recipe(row), Choice(seed, num_sms, None, row["policy"], seed)


def _alarms(kernel: Kernel) -> Iterator[Drawn]:
    """Yield the rows of `conformance.alarm_rows`."""
    for seed, row, problem in alarm_rows.rows(kernel):
        yield problem, _recipe(row), Choice(seed, row["num_sms"], row["num_splits"], row["policy"])


def refusals(kernel: Kernel) -> tuple[Drawn, ...]:
    """Return problems that ``kernel`` does not take: those of `conformance.refusals`."""
    return tuple(
        (problem, _recipe(row), Choice(seed, row["num_sms"]))
        for seed, row, problem in refused.rows(kernel)
    )


def problems(kernel: Kernel, profile: str = "default") -> st.SearchStrategy[Drawn]:
    """Return the random problems that ``kernel`` takes, each with a recipe and a choice.

    They shrink toward one head and query, one request as short as can be, one split and seed 0.
    Shapes are those of the profile's covering array: little is compiled beside it.
    """
    wanted = problem_space(profile, kernel)
    return _random(kernel, wanted.levels, wanted.simplest_shapes_first())


@st.composite
def _random(draw: st.DrawFn, kernel: Kernel, levels: Levels, shapes: tuple[Row, ...]) -> Drawn:
    row = _shape(draw, levels, shapes)
    row |= {
        factor: draw(st.sampled_from(values))
        for factor, values in levels.items()
        if factor not in {*row, "longest", "batch_size", "others"}
    }
    # What a length is drawn from does not depend on the shape, so that a smaller shape can be
    # tried with the lengths as they are.
    edges = sorted({_keys(place, shape) for place in levels["longest"] for shape in shapes})
    length = st.integers(0, LONGEST) | st.sampled_from(edges)
    lengths = draw(st.lists(length, min_size=1, max_size=max(levels["batch_size"])))
    shortest = _shortest(kernel, row)
    seen = tuple(max(shortest, keys) for keys in lengths)
    drawn = _drawn(kernel, row, seen, draw(st.integers(0, 2**32 - 1)))
    assume(kernel.supports(drawn[0]).ok)
    return drawn


def _shape(draw: st.DrawFn, levels: Levels, shapes: tuple[Row, ...]) -> Row:
    """Draw one of ``shapes`` factor by factor, so that each shrinks by itself.

    The number of splits comes first: what fails with some number of splits is then looked for among
    the simpler shapes that have that number.
    """
    left = shapes
    for factor in sorted(shapes[0], key=lambda name: name != "splits"):
        values = [v for v in levels[factor] if any(shape[factor] == v for shape in left)]
        value = draw(st.sampled_from(values))
        left = tuple(shape for shape in left if shape[factor] == value)
    return dict(left[0])


def problem_space(profile: str, kernel: Kernel) -> Space:
    """Return the factors of ``profile`` with the values that ``kernel`` takes."""
    limits = kernel.limits
    overrides: dict[str, tuple[Any, ...]] = {
        "table_tail": limits.table_tails,
        "layout": limits.layouts,
        "lse_base": tuple(base for base in (2, "e") if _takes_base(kernel, base)),
    }
    if not limits.poison:
        overrides["poison"] = (False,)

    def takes(row: Row) -> bool:
        return kernel.supports(_problem(kernel, row, (LONGEST,))).ok

    return space(profile, overrides, takes)


def _takes_base(kernel: Kernel, base: int | str) -> bool:
    """Whether the kernel gives the LSE in ``base``: that of its algorithm, or any asked for."""
    own = kernel.algorithm.lse_base
    asked = (Problem(Dims(128, 1), dtype, 64, (1,), 1.0, lse_base=base) for dtype in DTYPES)
    return base == own or any(kernel.supports(problem).ok for problem in asked)


def _drawn(kernel: Kernel, row: Row, lengths: tuple[int, ...], seed: int) -> Drawn:
    problem = _problem(kernel, row, lengths)
    return problem, _recipe(row), Choice(seed, _num_sms(kernel, problem, row["splits"]))


def _recipe(row: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a row; what it has no factor for stays as it is by default."""
    names = [entry.name for entry in fields(Recipe) if entry.name in row]
    return Recipe(**{name: row[name] for name in names})


def _problem(kernel: Kernel, row: Row, lengths: tuple[int, ...]) -> Problem:
    heads, queries = row["heads_and_queries"]
    longest = max(1, *lengths)
    # The plan sees max_seq_len alone: partitions beyond the keys are then planned, and empty.
    planned = max(longest, TILE_KEYS * row["splits"] if row["splits"] > 1 else 1)
    planned += LOOSE_KEYS if row["loose_max_seq_len"] else 0
    return Problem(
        dims=Dims(heads, queries),
        dtype=row["dtype"],
        page_size=row["page_size"],
        seq_lens=lengths,
        softmax_scale=row["softmax_scale"],
        output_scale=row["output_scale"],
        mask=Mask(row["causal"], row["window_left"]),
        lse_base=row.get("lse_base", kernel.algorithm.lse_base),
        max_seq_len=None if planned == longest else planned,
        is_var_seq=row["is_var_seq"],
        enable_pdl=row["enable_pdl"],
    )


def _lengths(kernel: Kernel, levels: Levels, row: Row, seed: int) -> tuple[int, ...]:
    """Return the lengths of a row's requests, the longest one at a random place."""
    choice = random.Random(seed)
    shortest = _shortest(kernel, row)
    longest = max(shortest, _keys(row["longest"], row))
    shorter = [edge for edge in _edges(levels, row, shortest) if edge <= longest]
    others = {"equal": [longest], "shortest": [shortest], "mixed": shorter}[row["others"]]
    lengths = [longest, *(choice.choice(others) for _ in range(row["batch_size"] - 1))]
    choice.shuffle(lengths)
    return tuple(lengths)


def _shortest(kernel: Kernel, row: Row) -> int:
    """Return the fewest keys with which every query token sees one, 0 if none need be seen."""
    if kernel.limits.empty_rows:
        return 0
    _, queries = row["heads_and_queries"]
    return queries if row["causal"] or row["window_left"] >= 0 else 1


def _edges(levels: Levels, row: Row, shortest: int) -> list[int]:
    """Return the lengths that stand for places of ``levels``, and the shortest, in order."""
    return sorted({shortest, *(max(shortest, _keys(place, row)) for place in levels["longest"])})


def _keys(place: int | str, row: Row) -> int:
    """Return the number of keys that a value of the factor ``longest`` stands for."""
    page, queries = row["page_size"], row["heads_and_queries"][1]
    places = {
        "queries": queries, "queries - 1": queries - 1, "queries + 1": queries + 1,
        "page": page, "page - 1": page - 1, "page + 1": page + 1,
        "window at a tile": TILE_KEYS + max(0, row["window_left"]) + queries - 1,
    }  # fmt: skip
    return places[place] if isinstance(place, str) else place


def _num_sms(kernel: Kernel, problem: Problem, splits: int) -> int:
    """Return the most SMs for which the kernel plans at most ``splits`` splits, at least 1."""
    low, high = 1, MOST_SMS
    while low < high:
        middle = (low + high + 1) // 2
        if kernel.plan(problem, middle).num_splits <= splits:
            low = middle
        else:
            high = middle - 1
    return low
