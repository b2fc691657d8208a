"""What the simulator executes, as a document: ``python -m simulator.instruction_document``.

Written from the instruction table, so that it cannot promise more than there is.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from simulator.codegen.families import translation
from simulator.isa.families import FAMILIES, TABLE
from simulator.isa.table import Entry

_INTRODUCTION = """\
# Instructions

Written by `python -m simulator.instruction_document` from the instruction table; a test keeps it
true. A mnemonic that is not here is `Unsupported`, and the simulator says so before it runs
anything.

*Forms* counts exact mnemonics with their operand shapes, *native* how many of them the native
executor translates (the rest run through the interpreter's function there too). *Tests* names the
files that exercise the family.
"""
_TYPES = re.compile(r"\.(?:pred|[busf]\d+(?:x2)?|bf16(?:x2)?|f16x2)\b")


def document(tests: Path) -> str:
    """The document as Markdown; ``tests`` is the folder in which test files are looked for."""
    lines = [_INTRODUCTION]
    for family in FAMILIES:
        name = family.__name__.rpartition(".")[2]
        summary = (inspect.getdoc(family) or "").partition("\n")[0]
        lines += [f"## {name}", "", summary, "", f"Tests: {_tests(name, tests)}", ""]
        lines += ["| PTX ISA section | types | forms | native |", "|---|---|---|---|"]
        lines += [*_rows(family), ""]
    return "\n".join(lines)


def _rows(family: ModuleType) -> Iterator[str]:
    """One row for each section of the PTX ISA that the family's declarations cite."""
    sections: dict[str, list[Entry]] = {}
    for entry in (e for forms in TABLE.values() for e in forms):
        if _home(entry) == family.__name__:
            sections.setdefault(entry.section, []).append(entry)
    for section, entries in sorted(sections.items(), key=lambda item: _numbers(item[0])):
        types = sorted({t[1:] for e in entries for t in _TYPES.findall(e.mnemonic)})
        native = sum(translation(e) is not None for e in entries)
        yield f"| {section} | {' '.join(types)} | {len(entries)} | {native} |"


def _numbers(section: str) -> list[int]:
    """The number of a section, to sort by."""
    return [int(n) for n in section.partition(" ")[0].split(".")]


def _home(entry: Entry) -> str:
    """The module in which an entry was declared."""
    function = getattr(entry.function, "func", entry.function)
    return str(getattr(function, "__module__", ""))


def _tests(family: str, tests: Path) -> str:
    """The test files that bear the family's name or load its module."""
    found = [
        path
        for path in sorted(tests.rglob("test_*.py"))
        if f"isa.{family}" in (text := path.read_text(encoding="utf-8"))
        or f"import {family}" in text
        or path.stem in (f"test_{family}", *_TESTED_IN.get(family, ()))
    ]
    return ", ".join(f"`{path.relative_to(tests.parent)}`" for path in found) or "none"


_TESTED_IN = {
    "memory": ("test_memory_instructions",),
    "control": ("test_divergence", "test_schedule"),
    "tcgen05": (
        "test_packed_transfers",
        "test_peer_kernels",
        "test_tensor_core",
        "test_tensor_memory",
    ),
    "bulk_copy": ("test_bulk_copy", "test_cp_async", "test_native_bulk_copy"),
    "synchronisation": ("test_cluster_barrier", "test_native_synchronisation"),
}


def main() -> None:
    """Write the document to standard output."""
    sys.stdout.write(document(Path(__file__).parents[1] / "tests"))


if __name__ == "__main__":
    main()
