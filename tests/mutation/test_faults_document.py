"""The published list of faults is what the data and the docstrings say."""

from pathlib import Path

from mutation import faults_document
from mutation.faults_document import document, faults, mutants_of, shown_by

DOCS = Path(__file__).parents[2] / "docs"


def test_the_document_is_up_to_date():
    assert (DOCS / "faults.md").read_text(encoding="utf-8") == document(), (
        "write it again: python -m mutation.faults_document > docs/faults.md"
    )


def test_every_fault_that_is_named_is_listed():
    ids = [fault.id for fault in faults()]
    assert len(ids) == len(set(ids)) == 83
    assert set(shown_by()) | set(mutants_of()) <= set(ids)


def test_every_fault_has_a_mutant_or_a_property_or_a_reason():
    by_id, mutants = shown_by(), mutants_of()
    for fault in faults():
        assert mutants.get(fault.id) or by_id.get(fault.id) or fault.absent, fault.id


def test_another_docstring_is_another_document(monkeypatch):
    def shows_nothing():
        """Shows one more (M5)."""

    before = document()
    relations = {**faults_document.RELATIONS, "shows_nothing": shows_nothing}
    monkeypatch.setattr(faults_document, "RELATIONS", relations)
    assert document() != before
