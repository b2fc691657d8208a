"""What every entry of the instruction table must have, and that no pure one goes untested."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator.isa.families import FAMILIES, TABLE
from simulator.isa.table import Entry, Kind
from simulator.isa.values import BITS, DTYPES, STORAGE
from tests.simulator.isa.instructions import home

ENTRIES = [entry for forms in TABLE.values() for entry in forms]
SECTION = re.compile(r"9\.7(\.\d+)+ [a-z]")
HERE = Path(__file__).parent


def complaints(entries: Iterable[Entry]) -> Iterator[str]:
    """What is wrong with entries taken by themselves."""
    for entry in entries:
        if not SECTION.match(entry.section):
            yield f"{entry.mnemonic}: section {entry.section!r} is not a number and a name"
        if entry.function is not None and not described(entry.function):
            yield f"{entry.mnemonic}: its function has no docstring"
        for slot in (*entry.results, *entry.operands):
            for kind in slot.types:
                if kind not in DTYPES:
                    yield f"{entry.mnemonic}: no type {kind}"
    forms = Counter((e.mnemonic, e.results, e.operands) for e in entries)
    for (mnemonic, *_), count in forms.items():
        if count > 1:
            yield f"{mnemonic}: {count} declarations with one signature"


def described(function: Any) -> bool:
    """Whether the function, not the ``partial`` around it, says what it gives back."""
    inner = function.func if isinstance(function, functools.partial) else function
    return bool(inner.__doc__)


def test_every_entry_has_a_section_a_docstring_and_a_signature_of_its_own():
    assert list(complaints(ENTRIES)) == []


ADD = TABLE["add.s32"][0]


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        ([replace(ADD, section="add")], "section"),
        ([replace(ADD, function=lambda a, b: a)], "docstring"),
        ([replace(ADD, results=(replace(ADD.results[0], types=("s33",)),))], "no type s33"),
        ([ADD, ADD], "2 declarations"),
    ],
)
def test_what_an_entry_lacks_is_seen(entries, complaint):
    assert complaint in " ".join(complaints(entries))


def untested(homes: Iterable[str], texts: dict[str, str]) -> list[str]:
    """Modules of pure instructions that no test file hands to ``Family``.

    ``Family.check`` fails for an entry without an oracle, so that each entry is tested by name.
    """
    names = {name.rpartition(".")[2] for name in homes}
    return sorted(n for n in names if f"Family({n})" not in texts.get(f"test_{n}.py", ""))


def test_every_pure_instruction_has_an_oracle():
    texts = {path.name: path.read_text(encoding="utf-8") for path in HERE.glob("test_*.py")}
    # The address conversions of memory.py make sense only with the memories around them.
    homes = {home(e) for e in ENTRIES if e.kind is Kind.PURE} - {"simulator.isa.memory"}
    assert untested(homes, texts) == []
    assert untested(["simulator.isa.integer"], {}) == ["integer"]


def test_every_declaring_module_is_a_family():
    assert {home(e) for e in ENTRIES if e.function} <= {m.__name__ for m in FAMILIES}


def test_types_agree_with_each_other():
    assert DTYPES.keys() == BITS.keys()
    assert set(BITS.values()) == STORAGE.keys()
    for name, dtype in DTYPES.items():
        assert name == "pred" or BITS[name] % (8 * dtype.itemsize) == 0
