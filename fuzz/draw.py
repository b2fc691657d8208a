"""Draws cases: problem, recipe, schedule and property together. Simplest first, so they shrink."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from conformance import matrix
from conformance.judge import Subject
from conformance.kernel import Kernel
from conformance.properties import COMPLETES
from conformance.relations import GPU_RELATIONS, RELATION_NAMES
from conformance.strategies import Choice, Drawn, problems
from reference.problem import MAX_HEADS, Recipe
from reports.records import Case

WHOLE_RANGE = "matrix"
PROFILES = ("smoke", "default", "deep", WHOLE_RANGE)
LONGEST = 700  # keys of a context on one rank, beside the edges that `conformance.matrix` lists
MOST_REQUESTS = 3
MOST_WORK = 300_000  # rows x keys: about a second of simulation
MOST_STEPS = 2**14  # of a stepwise schedule, where nothing is known of the kernel
# Choosing step by step takes Python between steps: a case then costs what ten others do.
SCHEDULE_SHARE = ("fair",) * 6 + ("fixed",) * 2 + ("random", "any")
FIXED_POLICIES = ("late", "run_to_block", "quantum_1")
MOST_DELAYS = 3
DEEPEST_PCT = 4
RELATION_SHARE = (False, False, False, True)  # a relation costs several runs
# Gigabytes of pool, where one case would cost what a hundred do; and what only a GPU can show.
LEFT_OUT = ("pools_may_be_large", *GPU_RELATIONS)
# Drawn otherwise than as one of its values.
BY_ITSELF = ("dtype", "page_size", "num_heads", "longest", "batch_size", "others", "policy")
Shape = tuple[str, int]  # dtype and page size: with the rows of a tile, what is compiled
SEEDS = st.integers(0, 2**32 - 1)


def cases(
    subject: Subject, profile: str = WHOLE_RANGE, shapes: int | None = None, seed: int = 0
) -> st.SearchStrategy[Case]:
    """The cases of a campaign: most are a run with all its properties, the others a relation.

    ``profile`` names the problems: the shapes of a profile of the suite, or the whole range of the
    contract, of which ``shapes`` leaves so many pairs of dtype and page size, chosen by ``seed``:
    what is compiled anew is then little. Schedules are drawn for the simulator alone. They shrink
    toward the fair schedule.
    """
    kernel = subject.kernel
    if profile == WHOLE_RANGE:
        drawn = _whole_range(kernel, _shapes(shapes, seed))
    else:
        drawn = problems(kernel, profile)
    return _cases(subject, drawn)


@st.composite
def _cases(draw: st.DrawFn, subject: Subject, problems: st.SearchStrategy[Drawn]) -> Case:
    problem, recipe, choice = draw(problems)
    name = COMPLETES
    if draw(st.sampled_from(RELATION_SHARE)):
        name = draw(st.sampled_from([name for name in RELATION_NAMES if name not in LEFT_OUT]))
    case = subject.case(name, (problem, recipe, choice))
    if case.engine != "simulator":
        return case
    policy = draw(st.sampled_from(SCHEDULE_SHARE).flatmap(_schedules_of))
    return replace(case, policy=policy, policy_seed=draw(SEEDS) if _is_seeded(policy) else 0)


def scheduled(case: Case, steps: int) -> st.SearchStrategy[Case]:
    """The case under other schedules; ``steps`` is how many a cluster of it takes."""

    @st.composite
    def draw_one(draw: st.DrawFn) -> Case:
        policy = draw(schedules(steps))
        return replace(case, policy=policy, policy_seed=draw(SEEDS) if _is_seeded(policy) else 0)

    return draw_one()


def schedules(steps: int = MOST_STEPS) -> st.SearchStrategy[str]:
    """Names of policies, the fixed ones first, then those within few delays, then random ones."""
    step = st.integers(0, max(0, steps - 1))
    delays = st.lists(step, min_size=1, max_size=MOST_DELAYS).map(sorted)
    depths = st.integers(1, DEEPEST_PCT)
    return st.one_of(
        st.sampled_from(FIXED_POLICIES),
        delays.map(lambda at: ":".join(["delay", *map(str, at)])),
        st.just("random"),
        depths.map(lambda depth: f"pct:{depth}:{max(1, steps)}"),
    )


def _is_seeded(policy: str) -> bool:
    return policy.partition(":")[0] in ("random", "pct")


def _schedules_of(kind: str) -> st.SearchStrategy[str]:
    """The policies of an entry of `SCHEDULE_SHARE`."""
    if kind == "fixed":
        return st.sampled_from(FIXED_POLICIES)
    return schedules() if kind == "any" else st.just(kind)


@st.composite
def _whole_range(draw: st.DrawFn, kernel: Kernel, shapes: Sequence[Shape]) -> Drawn:
    """A problem that the contract allows and ``kernel`` takes, with all that decides its call."""
    row = {factor: draw(st.sampled_from(_levels(kernel, factor))) for factor in _factors()}
    row["dtype"], row["page_size"] = draw(st.sampled_from(shapes))
    row["num_heads"] = draw(st.sampled_from(_ascending("num_heads")) | st.integers(1, MAX_HEADS))
    length = st.integers(0, LONGEST) | st.sampled_from(_ascending("longest"))
    keys = draw(st.lists(length, min_size=1, max_size=MOST_REQUESTS))
    problem = matrix.problem_of(row, [n * row["world"] for n in keys])
    work = problem.dims.num_heads * problem.dims.seq_len_q * sum(problem.seq_lens)
    assume(work <= MOST_WORK)
    assume(kernel.limits.empty_rows or min(problem.seq_lens) >= problem.dims.seq_len_q)
    assume(kernel.supports(problem).ok)
    names = [entry.name for entry in fields(Recipe) if entry.name in row]
    recipe = Recipe(**{name: row[name] for name in names})
    return problem, recipe, Choice(draw(SEEDS), row["num_sms"], row["num_splits"])


def _shapes(wanted: int | None, seed: int) -> list[Shape]:
    """The pairs of dtype and page size that are drawn, all or so many, in order."""
    levels = matrix.LEVELS
    known = list(itertools.product(levels["dtype"], levels["page_size"]))
    if wanted is None or wanted >= len(known):
        return known
    return sorted(random.Random(seed).sample(known, wanted), key=known.index)


def _factors() -> Sequence[str]:
    """The factors of the whole range that one value each decides."""
    return [factor for factor in matrix.LEVELS if factor not in BY_ITSELF]


def _levels(kernel: Kernel, factor: str) -> Sequence[Any]:
    """The values of a factor that the kernel copes with."""
    if factor == "table_tail":
        return kernel.limits.table_tails
    if factor == "poison" and not kernel.limits.poison:
        return (False,)
    values: Sequence[Any] = matrix.LEVELS[factor]
    return values


def _ascending(factor: str) -> list[int]:
    return sorted(matrix.LEVELS[factor])
