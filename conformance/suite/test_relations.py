"""Each relation between runs, over its share of the covering array.

What each relation says, and which faults it kills, stands in ``conformance.relations``.
"""

from __future__ import annotations

import pytest

from conformance.judge import Subject
from conformance.session import Session


def test_relation(run: Session, subject: Subject, relation_name: str) -> None:
    cases = run.related_cases(subject, relation_name)
    bad = [result.case.id for case in cases if (result := run.judge(subject, case)).is_bad]
    if bad:
        pytest.fail(f"{len(bad)} of {len(cases)} cases: {', '.join(bad)}", pytrace=False)
