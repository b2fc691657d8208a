"""Runs a kernel on a case and gives the verdicts: one run, one result for each property.

The kernel runs before the oracle, on buffers that hold poison, so that it cannot return what
somebody computed before it. A judge remembers its runs: properties that look at the same run share
it, and each run is recorded once.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from conformance.kernel import EngineChoice, Kernel, Output, RunOptions, UsageError
from conformance.known_limits import KnownLimit, expected, facts
from conformance.properties import (
    COMPLETES,
    PROPERTIES,
    PROPERTY_NAMES,
    REFUSED_OR_RIGHT,
    Finding,
    Observation,
    matches_float64,
)
from conformance.relations import RELATIONS, Call, First
from conformance.strategies import Drawn
from reference.inputs import Inputs, make_inputs
from reference.problem import Problem, Recipe
from reports.records import Case, CaseResult
from simulator.errors import SimulationError, SimulatorBug, Unsupported

Verdicts = dict[str, CaseResult]
BY_ITSELF = {*RELATIONS, REFUSED_OR_RIGHT}
"""What is judged by runs of its own; the properties look at one run together."""


@dataclass(frozen=True)
class Subject:
    """A kernel under test as this session runs it; ``name`` is how ``--kernel`` spells it."""

    name: str
    kernel: Kernel
    engine: EngineChoice
    limits: tuple[KnownLimit, ...] = ()

    def case(self, property_name: str, drawn: Drawn) -> Case:
        """Return the case that runs a drawn problem on this kernel and engine."""
        problem, recipe, choice = drawn
        return Case(
            kernel=self.name,
            engine=self.engine.engine,
            arch=self.engine.arch,
            property=property_name,
            problem=problem.to_json(),
            recipe=recipe.to_json(),
            seed=choice.seed,
            policy=choice.policy,
            policy_seed=choice.policy_seed,
            checks=choice.checks,
            num_sms=choice.num_sms,
            num_splits=choice.num_splits,
        )

    def moved(self, case: Case, property_name: str) -> Case:
        """Return ``case``, which may come from elsewhere, for this kernel and engine."""
        return replace(
            case,
            kernel=self.name,
            engine=self.engine.engine,
            arch=self.engine.arch,
            property=property_name,
        )


class Judge:
    """Judges cases of one session; ``on_result`` is told each result as soon as it is known.

    ``on_output`` is given what the runs that the properties look at returned.
    """

    def __init__(
        self,
        on_result: Callable[[CaseResult], None],
        on_output: Callable[[Subject, Output], None] = lambda subject, output: None,
    ) -> None:
        self._on_result = on_result
        self._on_output = on_output
        self._runs: dict[str, Verdicts] = {}

    def remember(self, results: Iterable[CaseResult]) -> None:
        """Take over the runs of an earlier session, so that they need not be made again.

        A run of which some property's result is missing was cut short and does not count.
        """
        runs: dict[str, Verdicts] = {}
        for result in results:
            if result.case.property in BY_ITSELF:
                self._runs[result.case.id] = {result.case.property: result}
                self._on_result(result)
                continue
            runs.setdefault(_run_id(result.case), {})[result.case.property] = result
        for run_id, verdicts in runs.items():
            if verdicts.keys() == set(PROPERTY_NAMES):
                self._runs[run_id] = verdicts
                for name in PROPERTY_NAMES:
                    self._on_result(verdicts[name])

    def knows(self, case: Case) -> bool:
        """Return whether this case has run, so that judging it again costs nothing."""
        return _run_id(case) in self._runs

    def judge(self, subject: Subject, case: Case) -> CaseResult:
        """Return how ``case`` ends for its property; the run is made if it has not been."""
        run_id = _run_id(case)
        if run_id not in self._runs:
            if case.property == REFUSED_OR_RIGHT:
                results = _refused(subject, case)
            elif case.property in RELATIONS:
                results = _related(subject, case)
            else:
                results = _verdicts(subject, case, self._on_output)
            self._runs[run_id] = results
            for result in results.values():
                self._on_result(result)
        return self._runs[run_id][case.property]


def run_options(case: Case) -> RunOptions:
    """Return the options that ``case`` runs with; UsageError for a value out of its limit."""
    return RunOptions(
        engine=case.engine,
        num_sms=case.num_sms,
        num_splits=case.num_splits,
        policy=case.policy,
        policy_seed=case.policy_seed,
        checks=case.checks,
    )


def _run_id(case: Case) -> str:
    """Return what results are kept under: properties of a run share it, others have their own."""
    return case.id if case.property in BY_ITSELF else replace(case, property="").id


def _refused(subject: Subject, case: Case) -> Verdicts:
    """Return whether the kernel refuses what it does not take, or gets it right.

    Any error but that of a program that runs and is wrong counts as a refusal, and is told.
    """
    problem, recipe = Problem.from_json(case.problem), Recipe.from_json(case.recipe)
    options = replace(run_options(case), ask_anyway=True)
    inputs = make_inputs(problem, recipe, case.seed)
    given = copy.deepcopy(inputs)
    start = time.perf_counter()
    outcome = _attempt(subject.kernel, problem, given, options)
    done = replace(CaseResult(case, "passed"), seconds=time.perf_counter() - start)
    if isinstance(outcome, Output):
        run = Observation(problem, subject.kernel.algorithm, inputs, given, outcome, num_splits=1)
        result = _checked(done, matches_float64, run)
        result = replace(result, reason=result.reason or "not refused, and right")
    elif isinstance(outcome, SimulationError):
        result = _with_error(done, outcome)
    else:
        result = replace(done, reason=f"refused: {type(outcome).__name__}: {outcome}")
    return {case.property: expected(result, subject.limits, facts(case, case.num_splits or 1))}


def _related(subject: Subject, case: Case) -> Verdicts:
    """Return the result for the relation that the case names.

    Skipped where it says nothing of the problem, where the kernel does not take what it asks for,
    where the first run fails by itself, which other properties say, and where a known limit says
    that the kernel does not complete a call, or gets it wrong.
    """
    skipped = CaseResult(case, "skipped")
    problem, recipe = Problem.from_json(case.problem), Recipe.from_json(case.recipe)
    support = subject.kernel.supports(problem)
    if not support.ok:
        return {case.property: replace(skipped, reason=support.reason)}
    call = Call(problem, make_inputs(problem, recipe, case.seed), run_options(case))
    start = time.perf_counter()
    outcome = _attempt(subject.kernel, problem, call.inputs, call.options)
    if isinstance(outcome, Exception):
        return {case.property: replace(skipped, reason=f"the run itself: {outcome}")}
    splits = outcome.num_splits or _num_splits(subject.kernel, problem, case)
    first = First(subject.kernel, call, outcome, splits, recipe, case.seed)

    def run(other: Call) -> Output:
        asked = facts(replace(case, problem=other.problem.to_json()), splits)
        for limit in subject.limits:
            if any(limit.concerns(name, asked) for name in (COMPLETES, matches_float64.__name__)):
                raise UsageError(f"what it asks for is beyond known limit {limit.id}")
        return subject.kernel.run(other.problem, other.inputs, other.options)

    try:
        finding = RELATIONS[case.property](first, run)
    except UsageError as error:
        return {case.property: replace(skipped, reason=str(error))}
    except Exception as error:  # a wrong program may raise anything
        result = _with_error(replace(skipped, seconds=time.perf_counter() - start), error)
    else:
        if finding is None:
            return {case.property: replace(skipped, reason="says nothing of this problem")}
        result = _found(skipped, finding, start)
    return {case.property: expected(result, subject.limits, facts(case, splits))}


def _verdicts(
    subject: Subject, case: Case, on_output: Callable[[Subject, Output], None]
) -> Verdicts:
    """Run the kernel and return the result for each property."""
    problem, recipe = Problem.from_json(case.problem), Recipe.from_json(case.recipe)
    results = {name: CaseResult(replace(case, property=name), "skipped") for name in PROPERTY_NAMES}
    support = subject.kernel.supports(problem)
    if not support.ok:
        return _with_reason(results, support.reason)

    options = replace(run_options(case), coverage=case.engine == "simulator")
    inputs = make_inputs(problem, recipe, case.seed)
    given = copy.deepcopy(inputs)
    start = time.perf_counter()
    outcome = _attempt(subject.kernel, problem, given, options)
    seconds = time.perf_counter() - start
    run = facts(case, _num_splits(subject.kernel, problem, case))

    if isinstance(outcome, UsageError):
        return _with_reason(results, str(outcome))
    if isinstance(outcome, Exception):
        ended = _with_error(replace(results[COMPLETES], seconds=seconds), outcome)
        results[COMPLETES] = expected(ended, subject.limits, run)
        return results
    on_output(subject, outcome)
    done = replace(results[COMPLETES], verdict="passed", seconds=seconds)
    results[COMPLETES] = expected(done, subject.limits, run)
    ran_with = outcome.num_splits or _num_splits(subject.kernel, problem, case)
    observation = Observation(
        problem, subject.kernel.algorithm, inputs, given, outcome, num_splits=ran_with
    )
    for name, check in PROPERTIES.items():
        checked = _checked(results[name], check, observation)
        results[name] = expected(checked, subject.limits, run)
    return results


def _with_reason(results: Verdicts, reason: str) -> Verdicts:
    return {name: replace(result, reason=reason) for name, result in results.items()}


def _attempt(
    kernel: Kernel, problem: Problem, inputs: Inputs, options: RunOptions
) -> Output | Exception:
    """Return the kernel's output, or what it raised: a wrong program may raise anything."""
    try:
        return kernel.run(problem, inputs, options)
    except Exception as error:
        return error


def _checked(
    result: CaseResult, check: Callable[[Observation], Finding], observation: Observation
) -> CaseResult:
    start = time.perf_counter()
    try:
        finding = check(observation)
    except Exception as error:  # an output of the wrong shape, say
        return _with_error(result, error)
    return _found(result, finding, start)


def _found(result: CaseResult, finding: Finding, start: float) -> CaseResult:
    return replace(
        result,
        verdict="passed" if finding.holds else "failed",
        ratio=finding.ratio,
        element=finding.element,
        bias=finding.bias,
        seconds=time.perf_counter() - start,
        reason=finding.reason or finding.note or None,
    )


def _with_error(result: CaseResult, error: Exception) -> CaseResult:
    """Tell a wrong program (failed) from a testbed that could not judge it (error)."""
    wrong = isinstance(error, SimulationError) and not isinstance(error, Unsupported | SimulatorBug)
    return replace(
        result,
        verdict="failed" if wrong else "error",
        error_class=type(error).__name__,
        ptx_line=error.ptx_line if isinstance(error, SimulationError) else None,
        reason=f"{type(error).__name__}: {error}",
    )


def _num_splits(kernel: Kernel, problem: Problem, case: Case) -> int:
    if case.num_splits is not None:
        return case.num_splits
    return kernel.plan(problem, case.num_sms).num_splits
