"""What a worker does with a case: run it, judge it, and say what it reached.

A job is a method of `Bench` from a case to an `Answer`. Everything here happens in the worker's own
process, where a wrong kernel may do what it likes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from conformance.difference import difference, different_bits
from conformance.judge import Judge
from conformance.kernel import Kernel, Output, RunOptions
from conformance.properties import COMPLETES, Finding
from conformance.schedules import PROPERTY as SAME_UNDER_EVERY_SCHEDULE
from conformance.session import make_subject
from reference.problem import Problem
from reports.records import Case, CaseResult

SAME_AS_BASELINE = "same_as_baseline"
RATIO_STEPS = 10  # the ratio counts for fitness in tenths of the bound
Sizes = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Answer:
    """How one case ended.

    ``result`` is its decisive result: the first bad one of its properties, else the one with the
    worst ratio. ``features`` is what it reached, ``sizes`` how many blocks and edges the programs
    that it ran have, ``instructions`` the warp-instructions of all launches, ``steps`` the
    most that a launch took whose schedule chooses each. ``output`` is what the first run returned,
    where the job hands it on.
    """

    result: CaseResult
    features: frozenset[str] = frozenset()
    sizes: Sizes = field(default_factory=dict)
    instructions: int = 0
    steps: int = 0
    output: Output | None = None


class _Watched:
    """A kernel that remembers its runs and has them say what they covered."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.runs: list[tuple[Problem, RunOptions, Output]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def run(self, problem: Problem, inputs: Any, options: RunOptions) -> Output:
        """Run the call as the kernel does."""
        watched = replace(options, coverage=options.engine == "simulator")
        output = self._kernel.run(problem, inputs, watched)
        self.runs.append((problem, options, output))
        return output


class Bench:
    """A kernel under test on its engine, with what it is compared with."""

    def __init__(self, kernel: str, engine: str) -> None:
        self.subject = make_subject(kernel, engine)
        self._kernel = self.subject.kernel
        self._watched = _Watched(self._kernel)
        self._seen = replace(self.subject, kernel=cast(Kernel, self._watched))
        self._fair: dict[str, Output] = {}

    def compile(self, case: Case) -> None:
        """Compile what the case needs, before its time is counted."""
        problem = Problem.from_json(case.problem)
        if case.engine == "simulator" and self._kernel.supports(problem).ok:
            self._kernel.compile(problem, case.arch)

    def judge(self, case: Case) -> Answer:
        """The verdict of the suite: on all properties of a run, or on one relation."""
        results: list[CaseResult] = []
        self._watched.runs.clear()
        Judge(results.append).judge(self._seen, case)
        return self._answer(_decisive(results))

    def output(self, case: Case) -> Answer:
        """What the kernel returns, with its verdict."""
        answer = self.judge(replace(case, property=COMPLETES))
        if not self._watched.runs:
            return answer
        problem, _, output = self._watched.runs[0]
        splits = output.num_splits or case.num_splits
        splits = splits or self._kernel.plan(problem, case.num_sms).num_splits
        return replace(answer, output=replace(output, launches=(), num_splits=splits))

    def same_as(self, case: Case, wanted: Output, bitwise: bool) -> Answer:
        """Whether the kernel returns what another version of it returned."""
        own = self.output(case)
        if own.result.is_bad or own.output is None:
            return _named(own, case)
        if bitwise:
            found = Finding(different_bits(own.output, wanted, "those of the baseline"))
        else:
            found = difference(case, self._kernel.algorithm, own.output, wanted)
        return replace(own, result=_judged(own.result, case, found), output=None)

    def same_under_its_schedule(self, case: Case) -> Answer:
        """Whether the case's schedule gives a right output, with the bits of the fair schedule."""
        own = self.output(case)
        if own.result.is_bad or own.output is None:
            return _named(own, case)
        fair = replace(case, policy="fair", policy_seed=0)
        if fair.id not in self._fair:
            wanted = self.output(fair).output
            if wanted is None:
                return _named(own, case)
            self._fair[fair.id] = wanted
        bits = different_bits(own.output, self._fair[fair.id], "those of the fair schedule")
        return replace(own, result=_judged(own.result, case, Finding(bits)), output=None)

    def do(self, case: Case, rest: Sequence[Any] = ()) -> Answer:
        """The job that the case's property asks for; ``rest`` are its other arguments."""
        jobs: dict[str, Callable[..., Answer]] = {
            SAME_AS_BASELINE: self.same_as if rest else self.output,
            SAME_UNDER_EVERY_SCHEDULE: self.same_under_its_schedule,
        }
        return jobs.get(case.property, self.judge)(case, *rest)

    def _answer(self, result: CaseResult) -> Answer:
        """What the runs of a case reached."""
        features = set(_ratio_features(result))
        sizes: Sizes = {}
        instructions = steps = 0
        for problem, options, output in self._watched.runs:
            key = repr(self._kernel.specialisation_key(problem))
            features.add(f"plan {key} {self._planned(problem, options)}")
            for launch in output.launches:
                instructions += launch.warp_instructions
                steps = max(steps, launch.steps)
                covered = launch.coverage
                if covered is not None:
                    name = f"{key}/{covered.kernel}"
                    sizes[name] = (covered.num_blocks, covered.num_edges)
                    features |= {f"block {name} {number}" for number in covered.blocks}
                    features |= {f"edge {name} {a}-{b}" for a, b in covered.edges}
        return Answer(result, frozenset(features), sizes, instructions, steps)

    def _planned(self, problem: Problem, options: RunOptions) -> str:
        """What the host decides: splits, to the power of two, and whether it needs a workspace."""
        plan = self._kernel.plan(problem, options.num_sms)
        splits = options.num_splits or plan.num_splits
        asked = "asked" if options.num_splits else "planned"
        return f"splits 2^{splits.bit_length() - 1} {asked}, workspace {plan.workspace_bytes > 0}"


def _decisive(results: Sequence[CaseResult]) -> CaseResult:
    """The first bad result, else the one with the worst ratio."""
    for result in results:
        if result.is_bad:
            return result
    return max(results, key=lambda result: -1.0 if result.ratio is None else result.ratio)


def _named(answer: Answer, case: Case) -> Answer:
    """The answer for the case as it was asked; the property that failed goes into the reason."""
    result = answer.result
    reason = f"{result.case.property}: {result.reason}" if result.is_bad else result.reason
    return replace(answer, result=replace(result, case=case, reason=reason), output=None)


def _judged(own: CaseResult, case: Case, found: Finding) -> CaseResult:
    """The result of a comparison."""
    return replace(
        own,
        case=case,
        verdict="passed" if found.holds else "failed",
        ratio=own.ratio if found.ratio is None else found.ratio,
        element=found.element,
        reason=found.reason or None,
    )


def _ratio_features(result: CaseResult) -> Iterator[str]:
    """How near the bound the case comes, by dtype."""
    if result.ratio is not None and math.isfinite(result.ratio) and not result.is_bad:
        yield f"ratio {result.case.problem['dtype']} {int(result.ratio * RATIO_STEPS)}"
