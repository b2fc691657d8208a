"""Runs a mutant on the simulator and says what tells it from the kernel it was made of.

A mutant is killed by the first case in which it does something that the kernel does not do in the
same case: a wrong output, an error, a deadlock, or a finding of a check. What the kernel itself is
found to do in any case does not count, and a case in which it is wrong judges no mutant.
"""

from __future__ import annotations

import copy
import hashlib
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.kernel import Kernel, Output, RunOptions
from conformance.properties import (
    Finding,
    Observation,
    Oracles,
    every_element_written,
    inputs_unchanged,
)
from conformance.strategies import Drawn
from reference.inputs import Inputs, make_inputs
from reference.problem import Problem
from simulator.checks import CHECKS
from simulator.errors import SimulationError, SimulatorBug

SECONDS = 60  # of this process for one case of a mutant: many times what the kernel takes
ALL_CHECKS = tuple(CHECKS)
USUAL_CHECKS = RunOptions().checks


class TooLong(BaseException):
    """A case took longer than `SECONDS`; no ``Exception``, which the simulator takes for a bug."""


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
    """How a run ended: ``end`` is right, wrong, hang or the name of an error.

    ``findings`` are what the checks found, each as something that can be compared. ``facts`` are
    the bytes that came out, and the counts of copies and products of each launch.
    """

    end: str
    reason: str = ""
    findings: frozenset[Any] = frozenset()
    facts: Any = None


@dataclass(frozen=True)
class Verdict:
    """What came of a mutant: ``by`` names what killed it, "" if nothing did; ``cases`` have run.

    ``is_alike`` says that it did and made the same as the kernel in each of them.
    """

    by: str
    cases: int
    reason: str = ""
    is_alike: bool = False


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
        self.cases = tuple((c, o) for c, o in outcomes if o.end == "right")
        self.refused = tuple((c, o) for c, o in outcomes if o.end != "right")
        self._known = frozenset[Any]().union(*(o.findings for _, o in outcomes))

    def executed_lines(self, kernel: Kernel) -> frozenset[int]:
        """The PTX lines that some problem executes, under the fair schedule."""
        lines: set[int] = set()
        for asked in self._asked:
            lines |= executed_lines(kernel, asked)
        return frozenset(lines)

    def judge(self, mutant: Kernel) -> Verdict:
        """Run a mutant until something tells it from the kernel."""
        is_alike = True
        for number, (case, own) in enumerate(self.cases, start=1):
            found = self.run(mutant, case)
            if new := found.findings - self._known:
                by = " ".join(sorted({check for check, _ in new}))
                return Verdict(by, number, f"{case}: {_told(new)}")
            if found.end == SimulatorBug.__name__:  # says nothing of the mutant
                return Verdict("", number, f"{case}: {found.end}: {found.reason}")
            if found.end != "right":
                return Verdict(found.end, number, f"{case}: {found.reason}")
            is_alike = is_alike and found.facts == own.facts
        return Verdict("", len(self.cases), is_alike=is_alike)

    def run(self, kernel: Kernel, case: Case) -> Outcome:
        """Run one case and say how it ends."""
        asked = self._asked[case.problem]
        given = copy.deepcopy(asked.inputs)
        options = replace(
            asked.options,
            policy=case.policy,
            policy_seed=case.seed,
            checks=case.checks,
            on_finding="collect",
        )
        try:
            with limited(SECONDS):
                output = kernel.run(asked.problem, given, options)
        except SimulationError as error:
            return Outcome(type(error).__name__, error.message[:300])
        except TooLong:
            return Outcome("hang", f"more than {SECONDS} s")
        found = _findings(output)
        if reason := _wrong(asked, given, output):
            return Outcome("wrong", reason[:300], found)
        return Outcome("right", "", found, _facts(output))


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


def _findings(output: Output) -> frozenset[Any]:
    """What watching checks found: each by its check and the lines of its accesses.

    Which of two accesses came first is the schedule's, and not part of it.
    """
    return frozenset(
        (
            finding.check,
            frozenset(
                (side.location.ptx_line, side.writes)
                for side in (finding.later, finding.earlier)
                if side is not None
            ),
        )
        for launched in output.launches
        for finding in launched.findings
    )


def _facts(output: Output) -> Any:
    """What came out, byte by byte, and what each launch counted."""
    made = [
        hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).digest()
        for tensor in (output.out, output.lse)
    ]
    return made, [(launched.name, launched.counts) for launched in output.launches]


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise `TooLong` in the block after so many seconds of processor time.

    By the clock on the wall a busy machine would kill mutants.
    """

    def stop(*_: object) -> None:
        raise TooLong(f"more than {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
