"""``profile``: what a call executed, counted, and what each pipe of a B200 would take at least."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from simulator.commands.options import CALL_HELP, add_schedule, session
from simulator.commands.running import launch_facts
from simulator.estimate import SMS, estimate
from simulator.launch import KernelRun
from simulator.profile import CLASSES

UNKNOWN = "no line information"


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "profile",
        help="count instructions, bytes, bank conflicts, MMA work; estimate cycles of each pipe",
        description="Execute a call by the interpreter and count: warp-instructions by class and "
        "by source line, bytes that lanes, TMA and tensor core move, FLOP of MMAs with their "
        "padding, bank conflicts of shared-memory accesses by lanes. The cycles are an ESTIMATE: "
        "what each pipe of a B200 alone would take, from published throughputs. No timing is "
        "simulated.",
    )
    parser.add_argument("call", metavar="CALL", help=CALL_HELP)
    add_schedule(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--lines", type=int, default=15, metavar="N", help="rows of the longer tables; default: 15"
    )
    parser.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    """Execute the command; the exit code."""
    if given.lines < 1:
        raise ValueError(f"--lines: {given.lines} is below 1")
    asked = session(given)
    result = asked.launch(executor="interpreter", profile=True)
    facts = {**asked.facts, "launches": [profile_facts(one) for one in result.kernels]}
    text = json.dumps(facts, indent=1) if given.json else "\n".join(_lines(facts, given.lines))
    sys.stdout.write(text + "\n")
    return 0


def profile_facts(one: KernelRun) -> dict[str, Any]:
    """The profile of one launch as JSON values."""
    profile = one.profile
    assert profile is not None
    ctas = one.grid[0] * one.grid[1] * one.grid[2]
    place = {line.number: line for line in profile.lines}
    return {
        **launch_facts(one),
        "by_class": {name: profile.by_class[name] for name in CLASSES if profile.by_class[name]},
        "by_source": dict(profile.by_source.most_common()),
        "bytes": dict(sorted(profile.bytes.items())),
        "mma_flop_by_kind": dict(profile.flop),
        "special_functions": profile.special_functions,
        "shared_accesses": [
            {
                "ptx_line": number,
                "text": place[number].text,
                "source": place[number].source,
                "executed": access.executed,
                "bytes": access.bytes,
                "wavefronts": access.wavefronts,
                "degree": round(access.degree, 3),
                "worst_degree": round(access.worst, 3),
            }
            for number, access in sorted(profile.shared.items())
        ],
        "estimated_cycles": {
            "what": f"cycles that each pipe alone would take on a B200 of {SMS} SMs; no timing is "
            "simulated",
            "pipes": [
                {
                    "pipe": entry.pipe.name,
                    "work": entry.work,
                    "unit": entry.pipe.unit,
                    "per_cycle_and_sm": entry.pipe.per_cycle,
                    "cycles": round(entry.cycles, 1),
                    "source": entry.pipe.source,
                }
                for entry in estimate(profile, ctas)
            ],
        },
    }


def _lines(facts: Mapping[str, Any], most: int) -> Iterator[str]:
    yield f"call      {facts['call']}"
    yield f"schedule  policy {facts['policy']}, seed {facts['seed']}"
    for number, one in enumerate(facts["launches"], 1):
        yield f"\nlaunch {number}  {one['kernel']}"
        yield "          " + ", ".join(
            f"{key} {tuple(one[key])}" for key in ("grid", "block", "cluster")
        )
        yield from _launch_lines(one, most)


def _launch_lines(one: Mapping[str, Any], most: int) -> Iterator[str]:
    total = sum(one["by_class"].values()) or 1
    rows = [(name, f"{n:,}", f"{n / total:.1%}") for name, n in one["by_class"].items()]
    rows.sort(key=lambda row: -int(row[1].replace(",", "")))
    yield from _table("warp-instructions by class", ("class", "count", "share"), rows)
    sources = list(one["by_source"].items())
    rows = [(_short(name), f"{n:,}", f"{n / total:.1%}") for name, n in sources[:most]]
    yield from _table(f"by source line, {min(most, len(sources))} of {len(sources)}",
                      ("line", "count", "share"), rows)  # fmt: skip
    moved = [(name.replace("_", " "), f"{size:,}") for name, size in one["bytes"].items()]
    yield from _table("bytes moved", ("what", "bytes"), moved)
    work = [(f"kind::{kind}", f"{flop:,}") for kind, flop in one["mma_flop_by_kind"].items()]
    yield from _table("MMA FLOP, padding included", ("kind", "FLOP"), work)
    yield f"\nspecial-function operations: {one['special_functions']:,}"
    accesses = sorted(one["shared_accesses"], key=lambda a: -a["wavefronts"])
    conflicts = [
        (
            str(a["ptx_line"]),
            _short(a["source"] or UNKNOWN),
            f"{a['executed']:,}",
            f"{a['wavefronts']:,}",
            f"{a['degree']:.2f}",
            f"{a['worst_degree']:.0f}",
        )
        for a in accesses[:most]
    ]
    yield from _table(
        "shared memory by lanes: bank conflicts (degree 1 is none)",
        ("PTX line", "source", "executed", "wavefronts", "degree", "worst"),
        conflicts,
    )
    pipes = [
        (p["pipe"], f"{p['work']:,.0f} {p['unit']}", f"{p['per_cycle_and_sm']:g}",
         f"{p['cycles']:,.0f}")
        for p in one["estimated_cycles"]["pipes"]
    ]  # fmt: skip
    yield from _table(
        f"ESTIMATE, {one['estimated_cycles']['what']}",
        ("pipe", "work", "a cycle and SM", "cycles"),
        pipes,
    )
    for name in dict.fromkeys(p["source"] for p in one["estimated_cycles"]["pipes"]):
        yield f"  {name}"


def _short(source: str) -> str:
    """The last two parts of a path: enough to know a file by."""
    return "/".join(source.split("/")[-2:])


def _table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table with numbers to the right; nothing where there are no rows."""
    shown = [tuple(headings), *rows]
    if len(shown) == 1:
        return
    widths = [max(len(row[column]) for row in shown) for column in range(len(headings))]
    yield f"\n{title}"
    for row in shown:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  " + "  ".join(cells)
