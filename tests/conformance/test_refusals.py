"""What a kernel does not take: an error or a right result passes, wrong numbers do not."""

from dataclasses import dataclass, replace

import pytest

from conformance.judge import Judge
from conformance.kernel import Output, RunOptions, Support
from conformance.properties import REFUSED_OR_RIGHT
from conformance.refusals import MOST_PER_REASON, rows
from conformance.strategies import refusals
from reference.inputs import Inputs
from reference.problem import Problem
from tests.conformance import cases
from tests.conformance.fake_kernel import FakeKernel, right


@dataclass(frozen=True)
class NoWindow(FakeKernel):
    """Says that it has no window; what it does when asked anyway is ``does``."""

    does: str = "refuses"
    dtypes: tuple[str, ...] = ("float16", "bfloat16", "float8_e4m3fn")

    def supports(self, problem: Problem) -> Support:
        if problem.mask.window_left >= 0:
            return Support(False, f"window_left {problem.mask.window_left}: no window")
        return Support(True)

    def run(self, problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        assert options.ask_anyway
        if self.does == "refuses":
            raise ValueError("window_left must be -1")
        if self.does == "ignores":
            return right(replace(problem, mask=replace(problem.mask, window_left=-1)), inputs)
        return right(problem, inputs)


@pytest.mark.parametrize(
    ("does", "verdict", "reason"),
    [
        ("refuses", "passed", "refused: ValueError: window_left must be -1"),
        ("obeys", "passed", "not refused, and right"),
        ("ignores", "failed", "out"),
    ],
)
def test_what_is_not_taken(does, verdict, reason):
    kernel = NoWindow(does=does)
    subject = cases.subject(kernel)
    judge = Judge(lambda result: None)
    found = [
        judge.judge(subject, subject.case(REFUSED_OR_RIGHT, drawn)) for drawn in refusals(kernel)
    ]
    assert verdict in {result.verdict for result in found}
    assert all(reason in (result.reason or "") for result in found if result.verdict == verdict)


def test_few_problems_for_each_reason():
    drawn = list(rows(NoWindow()))
    assert len(drawn) == MOST_PER_REASON
    assert all(problem.mask.window_left >= 0 for _, _, problem in drawn)
    assert drawn == list(rows(NoWindow()))


def test_a_kernel_that_takes_all_is_asked_nothing():
    assert not list(rows(FakeKernel(dtypes=("float16", "bfloat16", "float8_e4m3fn"))))
