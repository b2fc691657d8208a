"""The suite's default profile as steps for mutants: the same cases, those that tell most first.

A step is one run with all its properties, or one relation, or one refusal. Two orders are mixed:
runs go round the dtypes and tiles, relations round their names. Each starts with the shapes that
most cases share, because a mutant compiles each shape anew, and there with several tokens and
tiles, the smallest first. Random problems come last.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from conformance.judge import Judge, Subject
from conformance.profiles import PROFILES
from conformance.properties import COMPLETES, PROPERTY_NAMES
from conformance.relations import GPU_RELATIONS, RELATION_NAMES
from conformance.search import smallest_failure
from conformance.session import Screen, Session
from mutation.trial import SECONDS, TooLong, limited
from reference.problem import Problem
from reports.records import Case

PROFILE = PROFILES["default"]
TILE_KEYS = 128
SMALL_TILE = 64  # rows up to which FP8 has a tile of its own
RUNS_A_RELATION = 1  # runs between a relation and the next

T = TypeVar("T")


@dataclass(frozen=True)
class Killing:
    """What a step says of a mutant: the properties that it fails, and the first one's reason."""

    by: tuple[str, ...]
    reason: str


def steps(original: Subject) -> tuple[Case, ...]:
    """The cases of the default profile for our kernel, in the order in which mutants meet them."""
    with tempfile.TemporaryDirectory() as folder:
        session = Session(
            (original,), PROFILE, Screen(lambda _: None, False), seed=PROFILE.seed,
            results_folder=Path(folder),
        )  # fmt: skip
        runs = session.covering_cases(original, COMPLETES)
        related = {
            name: session.related_cases(original, name)
            for name in reversed(RELATION_NAMES)  # those of the host, which cost least, are last
            if name not in GPU_RELATIONS
        }
        refusals = session.refusal_cases(original)

    def shape(case: Case) -> Hashable:
        return original.kernel.specialisation_key(Problem.from_json(case.problem))

    common = Counter(map(shape, runs))

    def in_order(cases: Iterable[Case]) -> list[Case]:
        return sorted(cases, key=lambda case: (-common[shape(case)], _telling(case)))

    kinds: dict[Hashable, list[Case]] = {}
    for case in in_order(runs):
        problem = Problem.from_json(case.problem)
        is_small = problem.dims.num_heads * problem.dims.seq_len_q <= SMALL_TILE
        kinds.setdefault((problem.dtype, is_small), []).append(case)
    relations = [*(in_order(cases) for cases in related.values()), refusals]
    return tuple(_mixed(_round(kinds.values()), _round(relations), RUNS_A_RELATION))


def _telling(case: Case) -> tuple[bool, bool, int]:
    """A key that puts problems of several tiles and tokens first, and of these the quickest."""
    problem = Problem.from_json(case.problem)
    rows = problem.dims.num_heads * problem.dims.seq_len_q
    longest = max((0, *problem.seq_lens))
    return longest <= TILE_KEYS, problem.dims.seq_len_q == 1, sum(problem.seq_lens) * rows


def killing(judge: Judge, subject: Subject, case: Case) -> Killing | None:
    """What a step says of a mutant; None if it passes."""
    names = PROPERTY_NAMES if case.property == COMPLETES else (case.property,)
    try:
        with limited(SECONDS):
            results = [judge.judge(subject, replace(case, property=name)) for name in names]
    except TooLong as error:
        return Killing((COMPLETES,), f"TooLong: {error}")
    except Exception as error:  # of the mutated host, outside what the judge expects to fail
        return Killing((COMPLETES,), f"{type(error).__name__}: {error}")
    bad = [result for result in results if result.is_bad]
    if not bad:
        return None
    return Killing(tuple(result.case.property for result in bad), bad[0].reason or "")


def killing_at_random(judge: Judge, subject: Subject) -> Killing | None:
    """What the random problems say of a mutant; None if it passes."""
    quick = replace(PROFILE, shrink_seconds=0.0)
    for name in PROPERTY_NAMES:
        result = smallest_failure(judge, subject, name, quick, PROFILE.seed)
        if result is not None:
            return Killing((name,), result.reason or "")
    return None


def _round(groups: Iterable[Iterable[T]]) -> Iterator[T]:
    """Yield one of each group in turn, until all are empty."""
    for turn in itertools.zip_longest(*groups):
        yield from (one for one in turn if one is not None)


def _mixed(many: Iterator[T], few: Iterator[T], count: int) -> Iterator[T]:
    """Yield ``count`` of ``many``, then one of ``few``, and so on; then what is left."""
    while batch := list(itertools.islice(many, count)):
        yield from batch
        yield from itertools.islice(few, 1)
    yield from few
