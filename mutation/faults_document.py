"""Public faults of this family, and what here stands for each, as a document.

    python -m mutation.faults_document > docs/faults.md

``conformance/faults.toml`` has the faults, and a sentence where one cannot occur here. Mutants are
those of the catalogue that name the fault. What is meant to show it is read from the docstrings of
the properties, the relations and the kinds of values, which name faults by their ids in brackets.
"""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from conformance import refusals
from conformance.properties import PROPERTIES, REFUSED_OR_RIGHT
from conformance.relations import RELATIONS
from mutation.source import ROOT, catalogue
from reference.values import VALUES

FAULTS = ROOT / "conformance" / "faults.toml"
_IDS = re.compile(r"\(([A-Z]\d+(?:,\s+[A-Z]\d+)*)\)")
_INTRODUCTION = """\
# Public faults of kernels of this family

Made by `python -m mutation.faults_document`; a test keeps it true. Each fault was reported in
public, where the link leads. *Mutants* bring it back in our own source: they are the edits of
`mutation/catalogue` that name it, and `nox -s mutation -- --catalogue` shows which the suite kills.
*Meant to show it* are the properties and relations of the suite, and the kinds of values, whose
docstrings name it: what they were made for, not a measurement. Where a fault cannot occur in our
kernels, a sentence says why.
"""


@dataclass(frozen=True)
class Fault:
    """One reported fault; ``kind`` is its class, as mask or paging."""

    id: str
    kind: str
    project: str
    reports: tuple[str, ...]
    absent: str = ""  # why it cannot occur here, where nothing stands for it


def faults() -> tuple[Fault, ...]:
    """Return every fault, in the order of the file."""
    entries = tomllib.loads(FAULTS.read_text(encoding="utf-8"))["fault"]
    return tuple(
        Fault(
            entry["id"],
            entry["class"],
            entry["project"],
            tuple(entry["reports"]),
            entry.get("absent", ""),
        )
        for entry in entries
    )


def shown_by() -> Mapping[str, list[str]]:
    """Return what names each fault, by its id."""
    named: dict[str, Callable[..., object]] = {
        **PROPERTIES,
        **RELATIONS,
        REFUSED_OR_RIGHT: refusals.rows,
    }
    named |= {f"values {name}": kind for name, kind in VALUES.items()}
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, function in named.items():
        for group in _IDS.findall(inspect.getdoc(function) or ""):
            for fault in re.split(r",\s+", group):
                found[fault].append(name)
    return found


def mutants_of() -> Mapping[str, list[str]]:
    """Return the ids of the catalogue's mutants that stand for each fault, by its id."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for mutant in catalogue().values():
        for fault in mutant.faults:
            found[fault].append(mutant.id)
    return found


def document() -> str:
    """Return the document as Markdown."""
    return "\n".join([_INTRODUCTION, *_rows()]) + "\n"


def _rows() -> Iterator[str]:
    by_id, mutants = shown_by(), mutants_of()
    yield "| fault | class | project | reported | mutants | meant to show it |"
    yield "|---|---|---|---|---|---|"
    for fault in faults():
        links = ", ".join(f"[{n}]({url})" for n, url in enumerate(fault.reports, start=1))
        names = "; ".join(filter(None, (", ".join(by_id.get(fault.id, ())), fault.absent)))
        edits = ", ".join(mutants.get(fault.id, ()))
        yield f"| {fault.id} | {fault.kind} | {fault.project} | {links} | {edits} | {names} |"


if __name__ == "__main__":
    sys.stdout.write(document())
