"""One recorded case, again: what ``--replay`` runs instead of everything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.export import export
from conformance.judge import Subject
from conformance.session import Session
from reports.records import Case


def test_replay(run: Session, subject: Subject, replayed: Case, export_to: Path | None) -> None:
    case = subject.moved(replayed, replayed.property)
    if export_to is not None:
        export(subject, case, export_to)
    result = run.judge(subject, case)
    if result.is_bad:
        pytest.fail(f"{replayed.property} {result.verdict}", pytrace=False)
