"""``coverage``: what of a kernel's PTX and source calls never execute."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simulator.commands.options import CALL_HELP, add_schedule, session
from simulator.coverage import Coverage, merged, never_executed

DIGITS = 16  # of a hash


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "coverage",
        help="basic blocks, branch sides and source lines that no call executed",
        description="Execute calls and tell what none of them executed. Calls of one compilation "
        "are merged; a source line counts as executed if any compilation executed it.",
    )
    parser.add_argument("calls", metavar="CALL", nargs="+", help=CALL_HELP)
    add_schedule(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON too")
    parser.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    """Execute the command; the exit code."""
    found: dict[tuple[str, str], Coverage] = {}
    for name in given.calls:
        asked = session(given, name)
        digest = hashlib.sha256(asked.call.ptx.encode()).hexdigest()[:DIGITS]
        for one in asked.launch(coverage=True).kernels:
            assert one.coverage is not None
            key = (digest, one.name)
            found[key] = merged(found[key], one.coverage) if key in found else one.coverage
    facts = {
        "calls": given.calls,
        "kernels": [
            {"ptx_sha256": digest, **coverage.to_json()} for (digest, _), coverage in found.items()
        ],
        "source_lines_never_executed": list(never_executed(found.values())),
    }
    if given.json is not None:
        given.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write("\n".join(_lines(facts)) + "\n")
    return 0


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    for one in facts["kernels"]:
        yield f"{one['kernel']} (PTX {one['ptx_sha256']})"
        yield (
            f"  {one['executed']} of {one['blocks']} basic blocks, "
            f"{one['edges_followed']} of {one['edges']} edges"
        )
        for block in one["uncovered"]:
            first, last = block["ptx_lines"]
            sources = ", ".join(block["sources"]) or "no line information"
            yield f"  never executed: PTX lines {first}-{last}, {sources}"
            yield f"    {block['text']}"
        for branch in one["one_way"]:
            source = branch["source"] or "no line information"
            yield f"  never {branch['never']}: PTX line {branch['ptx_line']}, {source}"
            yield f"    {branch['text']}"
    lines = facts["source_lines_never_executed"]
    yield f"source lines never executed: {len(lines)}"
    yield from (f"  {line}" for line in lines)
