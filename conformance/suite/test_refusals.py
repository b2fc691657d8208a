"""What a kernel does not take, it refuses or gets right: nothing is silently wrong."""

from __future__ import annotations

import pytest

from conformance.judge import Subject
from conformance.session import Session


def test_refused_or_right(run: Session, subject: Subject) -> None:
    cases = run.refusal_cases(subject)
    bad = [result.case.id for case in cases if (result := run.judge(subject, case)).is_bad]
    if bad:
        pytest.fail(f"{len(bad)} of {len(cases)} cases: {', '.join(bad)}", pytrace=False)
