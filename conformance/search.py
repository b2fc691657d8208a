"""Searches random problems for one that a kernel fails, and shrinks it."""

from __future__ import annotations

import time

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings

from conformance.judge import Judge, Subject
from conformance.profiles import Profile
from conformance.strategies import Drawn, problems
from reports.records import CaseResult


class Falsified(AssertionError):
    """A case fails its property; raised to hypothesis, which then looks for a smaller one."""


def smallest_failure(
    judge: Judge, subject: Subject, property_name: str, profile: Profile, seed: int
) -> CaseResult | None:
    """Return the smallest failure found among ``profile.random_problems`` problems, or None.

    The same seed draws the same problems for each property, so that properties share runs. Once a
    case failed, hypothesis looks for a smaller one for ``profile.shrink_seconds``: after that, only
    cases whose verdict is known count, which ends its search. It ends on the smallest failure.
    """
    if profile.random_problems == 0:
        return None
    found: CaseResult | None = None
    deadline = float("inf")

    @hypothesis.seed(seed)
    @settings(
        max_examples=profile.random_problems,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=tuple(HealthCheck),
    )
    @given(problems(subject.kernel, profile.name))
    def holds(drawn: Drawn) -> None:
        nonlocal found, deadline
        hypothesis.assume(subject.kernel.supports(drawn[0]).ok)
        case = subject.case(property_name, drawn)
        if time.monotonic() > deadline and not judge.knows(case):
            return
        result = judge.judge(subject, case)
        if result.is_bad:
            found = result
            deadline = min(deadline, time.monotonic() + profile.shrink_seconds)
            raise Falsified(case.id)

    try:
        holds()
    except Falsified:
        return found
    return None
