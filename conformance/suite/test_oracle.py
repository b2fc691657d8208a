"""Each property over the covering array of problems, then over random ones.

The tests of one kernel share their runs: a case runs once, and every property looks at that run.
What each property says, and which faults it kills, stands in ``conformance.properties``.
"""

from __future__ import annotations

import pytest

from conformance.judge import Subject
from conformance.properties import COMPLETES
from conformance.session import Session


def test_covering_array(run: Session, subject: Subject, property_name: str) -> None:
    """All pairs of the settings that choose code paths: sizes, lengths, pages, splits.

    Every case runs, also after a failure: which of them fail says where to look.
    """
    results = [run.judge(subject, case) for case in run.covering_cases(subject, property_name)]
    bad = [result.case.id for result in results if result.is_bad]
    if bad:
        pytest.fail(f"{len(bad)} of {len(results)} cases: {', '.join(bad)}", pytrace=False)
    if property_name == COMPLETES and all(result.verdict == "skipped" for result in results):
        pytest.fail(f"{subject.name} takes no problem of profile {run.profile.name}", pytrace=False)


def test_random_problems(run: Session, subject: Subject, property_name: str) -> None:
    """Random problems; a failure is shrunk toward few keys, one head and one split."""
    smallest = run.smallest_random_failure(subject, property_name)
    if smallest is not None:
        pytest.fail(f"smallest case: {smallest.case.id}", pytrace=False)
