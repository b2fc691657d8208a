"""Says how far a session is: one rewritten line on a terminal, else a plain line now and then."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from conformance.properties import COMPLETES, REFUSED_OR_RIGHT
from conformance.relations import RELATIONS
from reports.records import CaseResult

PLAIN_SECONDS = 15.0
CLEAR_LINE = "\r\x1b[2K"


@dataclass
class Progress:
    """Counts runs as their results come and says so through ``write``.

    ``total`` is what is planned; the search for a minimal case may add to it. ``is_terminal``
    chooses between the two forms, and ``clock`` gives seconds.
    """

    total: int
    write: Callable[[str], None]
    is_terminal: bool
    clock: Callable[[], float] = time.monotonic
    done: int = 0
    failures: int = 0
    worst: float = 0.0
    _started: float = field(init=False)
    _written: float = field(init=False)

    def __post_init__(self) -> None:
        self._started = self._written = self.clock()

    def update(self, result: CaseResult) -> None:
        """Take note of one result; the first one of a run counts it, and so does a relation's."""
        if result.case.property in (COMPLETES, REFUSED_OR_RIGHT, *RELATIONS):
            self.done += 1
            self.total = max(self.total, self.done)
        expected = result.verdict == "expected_failure"
        if result.ratio is not None and math.isfinite(result.ratio) and not expected:
            self.worst = max(self.worst, result.ratio)
        self.failures += result.is_bad
        self._show(result.case.kernel)

    def finish(self) -> None:
        """Leave the terminal's line to whoever writes next."""
        if self.is_terminal:
            self.write(CLEAR_LINE)

    def text(self, kernel: str) -> str:
        """Return the line: runs, time, worst ratio, failures so far and the kernel at work."""
        elapsed = int(self.clock() - self._started)
        return (
            f"{self.done}/{self.total} runs, {elapsed // 60}:{elapsed % 60:02d}, "
            f"worst error/bound {self.worst:.3g}, {self.failures} failures, {kernel}"
        )

    def _show(self, kernel: str) -> None:
        if self.is_terminal:
            columns = shutil.get_terminal_size().columns  # a wrapped line cannot be rewritten
            self.write(CLEAR_LINE + self.text(kernel)[: columns - 1])
        elif self.clock() - self._written >= PLAIN_SECONDS:
            self._written = self.clock()
            self.write(self.text(kernel) + "\n")
