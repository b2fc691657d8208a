"""Makes a failing case small: hypothesis first, then one step at a time until none fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from unittest import SkipTest

from hypothesis import Phase
from hypothesis.database import ExampleDatabase
from hypothesis.strategies import SearchStrategy

from conformance.kernel import Kernel
from fuzz.faults import fault_of, signature_of
from fuzz.jobs import Answer
from fuzz.reduce import descend
from fuzz.search import holds
from reports.records import Case, CaseResult

MOST_EXAMPLES = 10_000  # so that hypothesis looks at a thousand kept buffers

Run = Callable[[Case], Answer]


class Shrinker:
    """Shrinks cases of ``strategy``; the buffers to begin with are those in ``database``.

    Without a strategy it only goes step by step.
    """

    def __init__(
        self,
        strategy: SearchStrategy[Case] | None,
        kernel: Kernel,
        run: Run,
        database: ExampleDatabase | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._strategy = strategy
        self._kernel = kernel
        self._run = run
        self._database = database
        self._clock = clock
        self._known: dict[str, CaseResult] = {}

    def shrink(self, found: CaseResult, seconds: float) -> tuple[CaseResult, bool]:
        """The smallest failure of the same kind, and whether no one-step reduction of it fails.

        Half of the time is hypothesis', which shrinks what it draws; the steps it cannot draw and
        the proof that none is left follow.
        """
        start = self._clock()
        self._known[found.case.id] = found
        drawn = self._by_hypothesis(found, start + seconds / 2)
        return self.by_steps(drawn, start + seconds)

    def _by_hypothesis(self, found: CaseResult, deadline: float) -> CaseResult:
        if self._strategy is None:
            return found
        kind, best = signature_of(found).kind, found

        def judge(case: Case) -> None:
            nonlocal best
            if self._clock() > deadline and case.id not in self._known:
                return
            result = self.judged(case)
            if result.is_bad and signature_of(result).kind == kind:
                best = result
                raise fault_of(kind)(case.id)

        phases = (Phase.reuse, Phase.shrink)
        try:
            holds(self._strategy, judge, self._database, phases, MOST_EXAMPLES)()
        except fault_of(kind):
            return best
        except SkipTest:  # hypothesis' word for a database that holds nothing to begin with
            return found
        return found

    def by_steps(self, found: CaseResult, deadline: float) -> tuple[CaseResult, bool]:
        """The smallest failure that single steps lead to before the deadline; as `shrink`."""
        kind = signature_of(found).kind
        self._known[found.case.id] = found

        def fails(case: Case) -> bool | None:
            if self._clock() > deadline and case.id not in self._known:
                return None
            result = self.judged(case)
            return result.is_bad and signature_of(result).kind == kind

        case, is_minimal = descend(found.case, self._kernel, fails)
        return self._known[case.id], is_minimal

    def judged(self, case: Case) -> CaseResult:
        """The result of a case, which runs once."""
        if case.id not in self._known:
            self._known[case.id] = self._run(case).result
        return self._known[case.id]
