"""Public faults of this family, and what here is meant to show each, as a document.

    python -m conformance.faults_document > docs/faults.md

``faults.toml`` has the faults. What shows one is read from the docstrings of the properties, the
relations and the kinds of values, which name faults by their ids in brackets.
"""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from conformance import refusals
from conformance.properties import PROPERTIES, REFUSED_OR_RIGHT
from conformance.relations import RELATIONS
from reference.values import VALUES

FAULTS = Path(__file__).with_name("faults.toml")
_IDS = re.compile(r"\(([A-Z]\d+(?:,\s+[A-Z]\d+)*)\)")
_INTRODUCTION = """\
# Public faults of kernels of this family

Made by `python -m conformance.faults_document`; a test keeps it true. Each fault was reported in
public, where the link leads. *Meant to show it* are the properties and relations of the suite, and
the kinds of values, whose docstrings name it. That is a claim about what they were made for, not a
measurement: no mutant stands for these faults yet. Faults with an empty cell have nothing that was
made for them.
"""


@dataclass(frozen=True)
class Fault:
    """One reported fault; ``kind`` is its class, as mask or paging."""

    id: str
    kind: str
    project: str
    reports: tuple[str, ...]


def faults() -> tuple[Fault, ...]:
    """Return every fault, in the order of the file."""
    entries = tomllib.loads(FAULTS.read_text(encoding="utf-8"))["fault"]
    return tuple(
        Fault(entry["id"], entry["class"], entry["project"], tuple(entry["reports"]))
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


def document() -> str:
    """Return the document as Markdown."""
    return "\n".join([_INTRODUCTION, *_rows()]) + "\n"


def _rows() -> Iterator[str]:
    by_id = shown_by()
    yield "| fault | class | project | reported | meant to show it |"
    yield "|---|---|---|---|---|"
    for fault in faults():
        links = ", ".join(f"[{n}]({url})" for n, url in enumerate(fault.reports, start=1))
        names = ", ".join(by_id.get(fault.id, ()))
        yield f"| {fault.id} | {fault.kind} | {fault.project} | {links} | {names} |"


if __name__ == "__main__":
    sys.stdout.write(document())
