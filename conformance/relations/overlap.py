"""A relation about grids that overlap, read from the compiled text: no simulation overlaps them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from conformance.properties import Finding
from conformance.relations.question import First, Run

_ENTRY = re.compile(r"\.entry\s+(\w+)")
_ACCESS = re.compile(r"^\s*(?:@!?%?\w+\s+)?(?:(?:ld|st|red|atom)\.global|cp\.(?:async|reduce))")
_WAIT = "griddepcontrol.wait"


def what_may_overlap_waits_first(first: First, run: Run) -> Finding | None:
    """Where a call lets grids overlap, each waits for the one before, ahead of its first access.

    Launched early, a grid may read what the one before still writes: partial results, or lengths
    and pages that the caller's kernel makes. Kills a wait that is missing or comes too late (S1,
    S2, S3, S4). Statements are compared by their place in the PTX. Says nothing of a kernel whose
    compilation knows no programmatic launch, nor of one that wants its inputs ready.
    """
    problem = replace(first.call.problem, enable_pdl=True)
    if first.kernel.limits.inputs_ready or not first.kernel.supports(problem).ok:
        return None
    text = first.kernel.compile(problem, first.kernel.arches[0]).ptx
    if "griddepcontrol" not in text:
        return None
    for name, lines in _kernels(text):
        access = next((n for n, line in enumerate(lines) if _ACCESS.match(line)), None)
        wait = next((n for n, line in enumerate(lines) if _WAIT in line), None)
        if access is not None and (wait is None or wait > access):
            what = "never waits" if wait is None else "waits only after that"
            return Finding(f"{name} accesses memory in {lines[access].strip()!r} and {what}")
    return Finding()


def _kernels(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each kernel's name and the lines of its text."""
    parts = _ENTRY.split(text)
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        yield name, body.split("\n")
