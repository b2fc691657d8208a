"""A mutant is told from its kernel by what it does and the kernel does not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from conformance.kernel import RunOptions
from conformance.strategies import Choice
from mutation.trial import ALL_CHECKS, Asked, Case, Trial
from reference.problem import Dims, Problem, Recipe
from simulator.errors import DataRace, Deadlock, Location
from tests.conformance.fake_kernel import FakeKernel, right, unwritten_head, zero_output

PROBLEM = Problem(
    dims=Dims(2, 1), dtype="float8_e4m3fn", page_size=2, seq_lens=(5,), softmax_scale=0.1
)
ASKED = [Asked.of(FakeKernel(), (PROBLEM, Recipe(), Choice(seed=0, num_sms=148, num_splits=1)))]
CASES = (Case(0, "fair"), Case(0, "late"), Case(0, "fair", checks=ALL_CHECKS))


def race(*lines: int) -> SimpleNamespace:
    sides = [SimpleNamespace(writes=True, location=Location(ptx_line=line)) for line in lines]
    return SimpleNamespace(check="races", earlier=sides[0], later=sides[1])


class Scripted(FakeKernel):
    """Right, but for what ``errors`` holds for a policy and whether it is watched."""

    errors: dict[tuple[str, bool], Exception] = {}  # noqa: RUF012

    def run(self, problem, inputs, options: RunOptions):
        error = self.errors.get((options.policy, "races" in options.checks))
        if error is not None:
            raise error
        return right(problem, inputs)


def scripted(**errors) -> Scripted:
    kernel = Scripted()
    named = {tuple(name.split("_")): error for name, error in errors.items()}
    object.__setattr__(kernel, "errors", {(n[0], n[-1] == "watched"): e for n, e in named.items()})
    return kernel


def judged(mutant, kernel=None):
    return Trial(kernel or scripted(), ASKED, CASES).judge(mutant)


def test_the_kernel_itself_survives():
    verdict = judged(scripted())
    assert (verdict.by, verdict.cases) == ("", 3)


@pytest.mark.parametrize("mutant", [zero_output(), unwritten_head()])
def test_a_wrong_output_kills_in_the_first_case(mutant):
    verdict = judged(mutant)
    assert (verdict.by, verdict.cases) == ("wrong", 1)
    assert verdict.reason.startswith("problem 0, fair 0: ")


def test_a_deadlock_kills_in_the_case_that_shows_it():
    verdict = judged(scripted(late=Deadlock("no warp can go on")))
    assert (verdict.by, verdict.cases) == ("Deadlock", 2)


def test_a_race_kills_unless_the_kernel_has_it_too():
    old, new = race(3, 4), race(5, 6)
    kernel = scripted(fair_watched=DataRace([old]))
    assert judged(scripted(fair_watched=DataRace([race(3, 4)])), kernel).by == ""
    turned = race(4, 3)
    assert judged(scripted(fair_watched=DataRace([turned])), kernel).by == ""
    assert judged(scripted(fair_watched=DataRace([old, new])), kernel).by == "races"


def test_a_case_in_which_the_kernel_is_wrong_judges_nothing():
    kernel = scripted(late=Deadlock("no warp can go on"))
    trial = Trial(kernel, ASKED, CASES)
    assert [case.policy for case, _ in trial.refused] == ["late"]
    assert trial.judge(scripted(late=Deadlock("no warp can go on"))).by == ""
