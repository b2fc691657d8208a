"""The progress line: rewritten on a terminal, now and then elsewhere."""

from dataclasses import dataclass, field

import pytest

from conformance.progress import CLEAR_LINE, PLAIN_SECONDS, Progress
from reports.records import CaseResult
from tests.conformance import cases


@dataclass
class Clock:
    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class Desk:
    """A progress line with its clock and what it wrote."""

    is_terminal: bool
    clock: Clock = field(default_factory=Clock)
    written: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.progress = Progress(3, self.written.append, self.is_terminal, self.clock)

    def run(self, seconds: float, ratio: float, verdict: str = "passed") -> None:
        self.clock.seconds += seconds
        self.progress.update(CaseResult(cases.case(3, property_name="completes"), "passed"))
        self.progress.update(CaseResult(cases.case(3), verdict, ratio=ratio))


def test_a_terminals_line_is_rewritten_at_each_result() -> None:
    desk = Desk(is_terminal=True)
    desk.run(65.0, 0.25)
    desk.run(5.0, 0.125)
    assert "\n" not in "".join(desk.written)
    assert all(text.startswith(CLEAR_LINE) for text in desk.written)
    assert (
        desk.written[-1] == f"{CLEAR_LINE}2/3 runs, 1:10, worst error/bound 0.25, 0 failures, fake"
    )
    desk.progress.finish()
    assert desk.written[-1] == CLEAR_LINE


def test_a_line_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    desk = Desk(is_terminal=True)
    desk.run(1.0, 0.25)
    assert desk.written[-1] == f"{CLEAR_LINE}1/3 runs, 0:01, wor"


def test_elsewhere_a_plain_line_comes_now_and_then() -> None:
    desk = Desk(is_terminal=False)
    for _ in range(30):
        desk.run(1.0, 0.5)
    desk.progress.finish()
    assert len(desk.written) == 30 // PLAIN_SECONDS
    assert desk.written[0] == "15/15 runs, 0:15, worst error/bound 0.5, 0 failures, fake\n"


def test_failures_are_counted_and_infinite_ratios_are_not_shown() -> None:
    desk = Desk(is_terminal=True)
    desk.run(1.0, float("inf"), "failed")
    desk.run(1.0, 4.0, "unexpected_pass")
    desk.run(1.0, 1e9, "expected_failure")
    assert desk.written[-1].endswith("worst error/bound 4, 2 failures, fake")


def test_the_total_grows_with_a_search_for_a_minimal_case() -> None:
    desk = Desk(is_terminal=True)
    for _ in range(4):
        desk.run(1.0, 0.5)
    assert "4/4 runs" in desk.written[-1]
