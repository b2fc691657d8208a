"""Runs a mutant on the simulator and says what tells it from the kernel it was made of.

A mutant is killed by the first case in which it does something that the kernel does not do in the
same case: a wrong output, an error, a deadlock, or a finding of a check. The kernel's own findings
do not count, and a case in which the kernel itself is wrong judges no mutant.
"""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from conformance.kernel import Kernel, Output, RunOptions
from conformance.properties import (
    Finding,
    Observation,
    Oracles,
    every_element_written,
    inputs_unchanged,
)
from conformance.strategies import Choice, Drawn
from reference.inputs import Inputs, make_inputs
from reference.problem import Dims, Mask, Problem, Recipe
from simulator.checks import CHECKS
from simulator.errors import ProgramError

SECONDS = 60  # for one case of a mutant: some hundred times what the kernel takes
ALL_CHECKS = tuple(CHECKS)
USUAL_CHECKS = RunOptions().checks


class TooLong(Exception):
    """A case took longer than `SECONDS`."""


@dataclass(frozen=True)
class Case:
    """One run: a problem of ``problems`` by its number, a schedule, and what is watched."""

    problem: int
    policy: str
    seed: int = 0
    checks: tuple[str, ...] = USUAL_CHECKS

    def __str__(self) -> str:
        watched = " watched" if self.checks == ALL_CHECKS else ""
        return f"problem {self.problem}, {self.policy} {self.seed}{watched}"


@dataclass(frozen=True)
class Outcome:
    """How a run ended: ``end`` is right, wrong, hang or an error's name, ``where`` a PTX line.

    ``findings`` are those of checks that let a run go on, each as something that can be compared.
    """

    end: str
    where: int | None = None
    findings: frozenset[Any] = frozenset()
    reason: str = ""


@dataclass(frozen=True)
class Verdict:
    """What came of a mutant: ``by`` names what killed it, "" if nothing did; ``cases`` have run."""

    by: str
    cases: int
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Asked:
    """One call that mutants are asked, with its inputs and what its answer must be."""

    problem: Problem
    inputs: Inputs
    options: RunOptions
    oracles: Oracles

    @classmethod
    def of(cls, kernel: Kernel, drawn: Drawn) -> Asked:
        """The call of a drawn problem, with the number of splits that ``kernel`` runs it with."""
        problem, recipe, choice = drawn
        inputs = make_inputs(problem, recipe, choice.seed)
        splits = choice.num_splits or kernel.plan(problem, choice.num_sms).num_splits
        options = RunOptions(num_sms=choice.num_sms, num_splits=choice.num_splits)
        return cls(problem, inputs, options, Oracles(problem, inputs, kernel.algorithm, splits))


class Trial:
    """The cases of a kernel, each about one of ``asked``, and what the kernel itself does in it."""

    def __init__(self, kernel: Kernel, asked: Sequence[Asked], cases: Sequence[Case]) -> None:
        self._asked = tuple(asked)
        outcomes = [(case, self.run(kernel, case)) for case in cases]
        self.cases = tuple((c, o) for c, o in outcomes if o.end in ("right", "findings"))
        self.refused = tuple((c, o) for c, o in outcomes if o.end not in ("right", "findings"))

    def executed_lines(self, kernel: Kernel) -> frozenset[int]:
        """The PTX lines that some problem executes, under the fair schedule."""
        lines: set[int] = set()
        for asked in self._asked:
            lines |= executed_lines(kernel, asked)
        return frozenset(lines)

    def judge(self, mutant: Kernel) -> Verdict:
        """Run a mutant until something tells it from the kernel."""
        for number, (case, own) in enumerate(self.cases, start=1):
            found = self.run(mutant, case)
            new = found.findings - own.findings
            if found.end not in ("right", "findings"):
                return Verdict(found.end, number, f"{case}: {found.reason}")
            if new:
                by = " ".join(sorted({check for check, _ in new}))
                return Verdict(by, number, f"{case}: {_told(new)}")
        return Verdict("", len(self.cases))

    def run(self, kernel: Kernel, case: Case) -> Outcome:
        """Run one case and say how it ends."""
        asked = self._asked[case.problem]
        given = copy.deepcopy(asked.inputs)
        options = replace(
            asked.options, policy=case.policy, policy_seed=case.seed, checks=case.checks
        )
        try:
            with limited():
                output = kernel.run(asked.problem, given, options)
        except ProgramError as error:
            if found := _findings(error):
                return Outcome("findings", None, found, error.message[:300])
            return Outcome(type(error).__name__, error.ptx_line, reason=error.message[:300])
        except TooLong:
            return Outcome("hang", reason=f"more than {SECONDS} s")
        reason = _wrong(asked, given, output)
        return Outcome("wrong", reason=reason[:300]) if reason else Outcome("right")


def executed_lines(kernel: Kernel, asked: Asked) -> frozenset[int]:
    """The PTX lines that one call executes, under the fair schedule."""
    options = replace(asked.options, coverage=True)
    launches = kernel.run(asked.problem, copy.deepcopy(asked.inputs), options).launches
    covered = [launched.coverage for launched in launches if launched.coverage is not None]
    return frozenset[int]().union(*(coverage.ptx_lines for coverage in covered))


def _wrong(asked: Asked, given: Inputs, output: Output) -> str:
    """Say what the suite's properties have against an output, "" if nothing."""
    oracles = asked.oracles
    seen = Observation(
        asked.problem, oracles.algorithm, asked.inputs, given, output, oracles.num_splits
    )
    checks: tuple[Callable[[], Finding], ...] = (
        lambda: every_element_written(seen),
        lambda: oracles.exact(output),
        lambda: oracles.faithful(output),
        lambda: inputs_unchanged(seen),
    )
    return next((found.reason for check in checks if not (found := check()).holds), "")


def _told(findings: Iterable[Any]) -> str:
    """Findings in words: the check and the PTX lines."""
    return "; ".join(
        f"{check} at PTX lines {sorted(line or 0 for line, _ in sides)}"
        for check, sides in findings
    )


def _findings(error: ProgramError) -> frozenset[Any]:
    """What watching checks found: each by its check and the lines of its accesses.

    Which of two accesses came first is the schedule's, and not part of it. Empty for other errors.
    """
    found: tuple[Any, ...] = getattr(error, "findings", ())
    return frozenset(
        (
            getattr(finding, "check", "races"),
            frozenset(
                (side.location.ptx_line, side.writes)
                for side in (finding.later, finding.earlier)
                if side is not None
            ),
        )
        for finding in found
    )


@contextmanager
def limited(seconds: int = SECONDS) -> Iterator[None]:
    """Raise `TooLong` in the block after so many seconds."""

    def stop(*_: object) -> None:
        raise TooLong(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def synchronisation_cases() -> tuple[Case, ...]:
    """The cases for mutants of synchronisation, the quickest and most telling first.

    Problem 0 has several tiles in a split, problem 1 one: some kernels are wrong under
    ``run_to_block`` with several. Problem 2 has so many that every ring of stages is used again.
    """
    watched = replace(Case(0, "fair"), checks=ALL_CHECKS)
    return (
        Case(0, "fair"),
        Case(2, "late"),
        Case(0, "late"),
        Case(0, "run_to_block"),
        Case(1, "run_to_block"),
        watched,
        Case(0, "quantum_1"),
        *(Case(0, "random", seed) for seed in range(3)),
        replace(watched, policy="late"),
        replace(watched, policy="run_to_block"),
        *(Case(0, "pct:2:16384", seed) for seed in range(4)),
        *(Case(1, "pct:3:8192", seed) for seed in range(4)),
        replace(watched, policy="quantum_1"),
        replace(watched, policy="random", seed=1),
        replace(watched, problem=1),
        *(Case(2, "random", seed) for seed in range(2)),
        replace(watched, problem=2),
        replace(watched, problem=2, policy="late"),
    )


def synchronisation_problems(kernel: Kernel, dtype: str, heads: int, queries: int) -> list[Asked]:
    """Three calls with two splits each: of three and two tiles, of one tile, of ten.

    Inputs are drawn with seed 0 of the recipe with the fewest limits.
    """
    recipe = Recipe(table_tail="tile", poison=False)
    choice = Choice(seed=0, num_sms=RunOptions().num_sms, num_splits=2)
    return [
        Asked.of(kernel, (_synchronised(dtype, heads, queries, keys), recipe, choice))
        for keys in (600, 256, 2500)
    ]


def _synchronised(dtype: str, heads: int, queries: int, keys: int) -> Problem:
    return Problem(
        dims=Dims(heads, queries),
        dtype=dtype,
        page_size=32,
        seq_lens=(keys,),
        softmax_scale=192**-0.5,
        mask=Mask(causal=True),
        enable_pdl=True,
    )
