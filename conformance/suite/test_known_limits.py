"""Each known limit of a kernel is shown by its example, and by nothing that passes.

A limit that no longer shows is a failure: either the kernel was cured and the limit must go, or the
suite lost the power to see it.
"""

from __future__ import annotations

import pytest

from conformance.judge import Subject
from conformance.known_limits import KnownLimit
from conformance.session import Session


def test_known_limit(run: Session, subject: Subject, limit: KnownLimit) -> None:
    for property_name in limit.properties:
        case = subject.moved(limit.example, property_name)
        result = run.judge(subject, case)
        if result.verdict != "expected_failure" or limit.id not in (result.reason or ""):
            text = f"{limit.id}: {property_name} {result.verdict}, case {case.id}: {result.reason}"
            pytest.fail(text, pytrace=False)
