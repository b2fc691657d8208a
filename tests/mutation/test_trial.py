"""A mutant is told from its kernel by what it does and the kernel does not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from conformance.kernel import RunOptions
from conformance.strategies import Choice
from mutation.trial import ALL_CHECKS, Asked, Case, Trial
from reference.problem import Dims, Problem, Recipe
from simulator.errors import Deadlock, Location, SimulatorBug, Unsupported
from simulator.launch import Extent, launch_kernel
from tests.conformance.fake_kernel import FakeKernel, right, unwritten_head, zero_output
from tests.simulator.ptx_text import module

PROBLEM = Problem(
    dims=Dims(2, 1), dtype="float8_e4m3fn", page_size=2, seq_lens=(5,), softmax_scale=0.1
)
ASKED = [Asked.of(FakeKernel(), (PROBLEM, Recipe(), Choice(seed=0, num_sms=148, num_splits=1)))]
CASES = (Case(0, "fair"), Case(0, "late"), Case(0, "fair", checks=ALL_CHECKS))


def race(*lines: int) -> SimpleNamespace:
    sides = [SimpleNamespace(writes=True, location=Location(ptx_line=line)) for line in lines]
    return SimpleNamespace(check="races", earlier=sides[0], later=sides[1])


def launched(*findings: SimpleNamespace, products: int = 5) -> SimpleNamespace:
    return SimpleNamespace(name="decode", counts={"products": products}, findings=findings)


class Scripted(FakeKernel):
    """Right, but for what ``script`` holds for a policy and whether it is watched.

    That is an error to raise, or what the simulator tells of the launch.
    """

    script: dict[tuple[str, bool], Exception | SimpleNamespace] = {}  # noqa: RUF012

    def run(self, problem, inputs, options: RunOptions):
        said = self.script.get((options.policy, "races" in options.checks), launched())
        if isinstance(said, Exception):
            raise said
        return replace(right(problem, inputs), launches=(said,))


def scripted(**script) -> Scripted:
    kernel = Scripted()
    named = {tuple(name.split("_")): said for name, said in script.items()}
    object.__setattr__(kernel, "script", {(n[0], n[-1] == "watched"): s for n, s in named.items()})
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
    kernel = scripted(fair_watched=launched(old))
    assert judged(scripted(fair_watched=launched(race(3, 4))), kernel).by == ""
    turned = race(4, 3)
    assert judged(scripted(fair_watched=launched(turned)), kernel).by == ""
    assert judged(scripted(late=launched(old)), kernel).by == ""
    assert judged(scripted(fair_watched=launched(old, new)), kernel).by == "races"


def test_a_survivor_is_alike_only_if_it_makes_and_counts_the_same():
    assert judged(scripted()).is_alike
    assert not judged(scripted(late=launched(products=6))).is_alike
    old = launched(race(3, 4))
    assert judged(scripted(late=launched()), scripted(late=old)).is_alike
    assert not judged(scripted(late=Deadlock("no warp can go on"))).is_alike


def test_what_the_simulator_refuses_is_refused_and_its_own_faults_say_nothing():
    refused = judged(scripted(late=Unsupported("a lane that is diverged")))
    assert (refused.by, refused.cases) == ("Unsupported", 2)
    broken = judged(scripted(late=SimulatorBug("KeyError: 3")))
    assert (broken.by, broken.reason) == ("", "problem 0, late 0: SimulatorBug: KeyError: 3")


def test_a_case_in_which_the_kernel_is_wrong_judges_nothing():
    kernel = scripted(late=Deadlock("no warp can go on"))
    trial = Trial(kernel, ASKED, CASES)
    assert [case.policy for case, _ in trial.refused] == ["late"]
    assert trial.judge(scripted(late=Deadlock("no warp can go on"))).by == ""


def test_a_case_without_end_is_stopped_inside_the_simulator(monkeypatch):
    """The simulator makes errors of its own of what goes wrong in an instruction."""
    monkeypatch.setattr("mutation.trial.SECONDS", 1)

    class Endless(FakeKernel):
        def run(self, problem, inputs, options: RunOptions):
            extent = Extent((1, 1, 1), (32, 1, 1))
            launch_kernel(module("LOOP: bra LOOP;"), extent, [], executor="interpreter")

    assert judged(Endless()).by == "hang"
