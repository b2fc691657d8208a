"""``trace``: a timeline of warps, TMA and MMA as Chrome/Perfetto JSON and as SVG."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from simulator.commands.options import CALL_HELP, add_schedule, exit_code, session
from simulator.drawing import AXIS, chrome_trace, description, svg
from simulator.errors import SimulationError
from simulator.timeline import Recorders

POLICY = "late"


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "trace",
        help="draw warps, TMA and MMA over simulated steps: Chrome/Perfetto JSON and SVG",
        description=f"Execute a call and record who does what when. The axis counts {AXIS}: in a "
        "step each warp has at most one turn. The policy is late unless another is asked for: "
        "asynchronous work is then in flight for as long as the program lets it. The JSON opens in "
        "ui.perfetto.dev and chrome://tracing. A call that fails is drawn up to its failure.",
    )
    parser.add_argument("call", metavar="CALL", help=CALL_HELP)
    add_schedule(parser, POLICY)
    parser.add_argument(
        "--clusters", type=int, default=1, metavar="N", help="of each kernel; default: the first"
    )
    parser.add_argument(
        "--json", type=Path, default=Path("trace.json"), metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument(
        "--svg",
        type=Path,
        metavar="FILE",
        help="the first cluster of each kernel: FILE, FILE-2 ...",
    )
    parser.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    """Execute the command; the exit code."""
    if given.clusters < 1:
        raise ValueError(f"--clusters: {given.clusters} is below 1")
    recorders, failed = Recorders(given.clusters), None
    try:
        session(given).launch(watch=recorders)
    except SimulationError as error:
        failed = error
    timelines = recorders.timelines
    given.json.write_text(json.dumps(chrome_trace(timelines)) + "\n", encoding="utf-8")
    sys.stdout.write(f"{given.json}: {sum(len(t.slices) for t in timelines)} slices\n")
    for number, timeline in enumerate(timelines, 1):
        sys.stdout.write(description(timeline) + "\n")
        if given.svg is not None:
            suffix = "" if number == 1 else f"-{number}"
            path = given.svg.with_stem(given.svg.stem + suffix)
            path.write_text(svg(timeline), encoding="utf-8")
            sys.stdout.write(f"  {path}\n")
    if failed is not None:
        sys.stdout.write(f"{type(failed).__name__}: {failed}\n")
    return exit_code(failed)
