"""The published list of instructions is what the table says."""

from __future__ import annotations

from pathlib import Path

from simulator import instruction_document
from simulator.isa.table import TABLE

ROOT = Path(__file__).parents[2]


def test_the_document_is_up_to_date():
    published = (ROOT / "docs/simulator/coverage.md").read_text(encoding="utf-8")
    assert published == instruction_document.document(ROOT / "tests"), (
        "write it again: python -m simulator.instruction_document > docs/simulator/coverage.md"
    )


def test_every_form_is_counted_once():
    rows = [
        line.split("|")
        for line in instruction_document.document(ROOT / "tests").splitlines()
        if line.startswith("| 9")
    ]
    assert sum(int(row[3]) for row in rows) == sum(len(forms) for forms in TABLE.values())


def test_every_family_has_tests():
    assert "Tests: none" not in instruction_document.document(ROOT / "tests")


def test_an_instruction_more_changes_the_document(monkeypatch):
    before = instruction_document.document(ROOT / "tests")
    monkeypatch.setitem(TABLE, "add.invented", TABLE["add.u32"])
    assert instruction_document.document(ROOT / "tests") != before
