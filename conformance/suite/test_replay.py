"""One recorded case, again: what ``--replay`` runs instead of everything else."""

from __future__ import annotations

import pytest

from conformance.judge import Subject
from conformance.session import Session
from reports.records import Case


def test_replay(run: Session, subject: Subject, replayed: Case) -> None:
    result = run.judge(subject, subject.moved(replayed, replayed.property))
    if result.is_bad:
        pytest.fail(f"{replayed.property} {result.verdict}", pytrace=False)
