"""Every native form of a pure instruction against the table's own function, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.codegen.families import FAMILIES, translation
from simulator.codegen.image import forms
from simulator.codegen.translations import TRANSLATIONS
from simulator.interpreter import Interpreter
from simulator.isa.families import TABLE
from simulator.isa.table import Entry, Kind
from simulator.native import NativeExecutor
from tests.simulator.codegen.machine import Bench
from tests.simulator.isa.instructions import draw, draw_value

ENTRIES = [e for forms in TABLE.values() for e in forms if e.kind is Kind.PURE and translation(e)]
TEMPLATES = list(dict.fromkeys(e.template for e in ENTRIES))
MASKS = (None, np.arange(32) % 3 == 0, np.arange(32) == 17, np.arange(32) < 31)


def sample(template: str) -> list[Entry]:
    """The entries of a template, or about forty of them, which differ in every variable."""
    entries = [e for e in ENTRIES if e.template == template]
    return entries[:: max(1, len(entries) // 40) | 1]


def operands(entry: Entry, rng: np.random.Generator) -> list[Any]:
    drawn = [draw(s, rng) for s in entry.operands]
    if entry.mnemonic.startswith("lop3"):
        drawn[3] = np.full(32, rng.integers(256), np.uint32)
    return drawn


def fill(bench: Bench, entry: Entry, rng: np.random.Generator, *, places: bool) -> None:
    """The instruction with registers; with ``places`` also with each operand as a literal,
    wide, and guarded, which is the same code for every instruction."""
    for _ in range(4):
        bench.add(entry, operands(entry, rng))
    if not places:
        return
    for leaf in range(sum(len(s.types) for s in entry.operands)):
        bench.add(entry, operands(entry, rng), immediate=leaf)
    if not any(t.endswith("x2") for s in (*entry.operands, *entry.results) for t in s.types):
        bench.add(entry, operands(entry, rng), wider=True)
    if bench._live:
        guard = draw_value("pred", rng)
        bench.add(entry, operands(entry, rng), guard=(guard, bool(rng.integers(2))))


@pytest.mark.parametrize("live", [True, False], ids=["live", "local"])
@pytest.mark.parametrize("template", TEMPLATES)
def test_form_equals_the_table(template: str, live: bool) -> None:
    rng = np.random.default_rng(len(template))
    for mask in MASKS if live else MASKS[:2]:
        bench = Bench(live=live)
        for number, entry in enumerate(sample(template)):
            fill(bench, entry, rng, places=number % 8 == 0)
        _, expected = bench.run(Interpreter, mask)
        runner, actual = bench.run(NativeExecutor, mask)
        assert len(forms(runner.program)) > 0
        assert not runner._single, "an operation ran in Python"
        seen = mask if mask is not None and not live else np.ones(32, bool)
        for (operation, _), want, got in zip(bench.targets, expected, actual, strict=True):
            same = want.reshape(32, -1)[seen] == got.reshape(32, -1)[seen]
            assert same.all(), f"{operation.entry.mnemonic} {operation.sources}: {got}, not {want}"


def test_no_translation_is_for_an_instruction_that_the_table_lacks() -> None:
    assert FAMILIES
    assert sorted(TRANSLATIONS.keys() - TABLE.keys()) == []
    for mnemonic, entered in TRANSLATIONS.items():
        for form, _ in entered:
            known = [(e.results, e.operands) for e in TABLE[mnemonic]]
            assert form is None or form in known, f"{mnemonic} with {form}"
