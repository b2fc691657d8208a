"""``run``: execute a call, and print outcome, counts, outputs and what the checks found."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simulator.artefact import contents, lies_inside
from simulator.commands.options import (
    CALL_HELP,
    PROGRAM_WRONG,
    Session,
    add_checks,
    add_schedule,
    exit_code,
    session,
)
from simulator.errors import SimulationError
from simulator.launch import KernelRun, Result, Tensor

DIGITS = 16  # of a hash that are shown


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "run",
        help="execute a call; print outcome, counts, outputs and findings",
        description="Execute a call. What is printed but for the last line, the time, depends on "
        "the call and the options alone, so that two runs can be compared line by line. "
        "Exit code: 0 if all is well, 1 if the kernel or its arguments are wrong or a check found "
        "something, 2 for wrong use, 3 if the simulator lacks something.",
    )
    parser.add_argument("call", metavar="CALL", help=CALL_HELP)
    add_schedule(parser)
    add_checks(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--save-outputs",
        type=Path,
        metavar="FOLDER",
        help="write each tensor that the call changed as NAME.npy; elements of a type that numpy "
        "lacks (bfloat16, float8) as integers of their bits",
    )
    parser.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    """Execute the command; the exit code."""
    asked = session(given)
    tensors = [tensor for tensor in asked.call.tensors if lies_inside(tensor)]
    before = [contents(tensor).tobytes() for tensor in tensors]
    started = time.perf_counter()
    result, error = _attempt(asked)
    seconds = time.perf_counter() - started
    changed = {
        tensor.name or f"argument {number}": tensor
        for number, (tensor, old) in enumerate(zip(tensors, before, strict=True))
        if contents(tensor).tobytes() != old
    }
    facts = {
        **asked.facts,
        "outcome": "passed" if error is None else type(error).__name__,
        "reason": None if error is None else "\n".join([str(error), *_notes(error)]),
        "launches": [launch_facts(one) for one in result.kernels],
        "findings": [str(finding) for finding in result.findings],
        "outputs": {name: _output(tensor) for name, tensor in changed.items()},
        "seconds": round(seconds, 3),
    }
    sys.stdout.write(json.dumps(facts, indent=1) + "\n" if given.json else _text(facts))
    if given.save_outputs is not None:
        _save(given.save_outputs, changed)
    return exit_code(error) or (PROGRAM_WRONG if result.findings else 0)


def _attempt(asked: Session) -> tuple[Result, SimulationError | None]:
    try:
        return asked.launch(), None
    except SimulationError as error:
        return Result(()), error


def _notes(error: SimulationError) -> list[str]:
    """What the checks had found before the error."""
    return getattr(error, "__notes__", [])


def launch_facts(one: KernelRun) -> dict[str, Any]:
    """One launch as JSON values."""
    return {
        "kernel": one.name,
        "grid": list(one.grid),
        "block": list(one.block),
        "cluster": list(one.cluster),
        "warp_instructions": one.warp_instructions,
        "polls": one.polls,
        "counts": dict(sorted(one.counts.items())),
    }


def _output(tensor: Tensor) -> dict[str, Any]:
    digest = hashlib.sha256(contents(tensor).tobytes()).hexdigest()
    return {"dtype": tensor.dtype, "shape": list(tensor.shape), "sha256": digest}


def _save(folder: Path, changed: Mapping[str, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensor in changed.items():
        np.save(folder / f"{name.replace('/', '_')}.npy", contents(tensor))


def _text(facts: Mapping[str, Any]) -> str:
    return "\n".join(_lines(facts)) + "\n"


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"call      {facts['call']}"
    yield f"schedule  policy {facts['policy']}, seed {facts['seed']}"
    yield f"checks    {', '.join(facts['checks'])}"
    yield f"engine    {facts['engine']}, accumulation {facts['accumulation']}"
    for number, one in enumerate(facts["launches"], 1):
        sizes = ", ".join(f"{key} {tuple(one[key])}" for key in ("grid", "block", "cluster"))
        yield f"launch {number}  {one['kernel']}"
        yield f"          {sizes}"
        counts = {"warp-instructions": one["warp_instructions"], "polls": one["polls"]}
        counts |= one["counts"]
        yield "          " + ", ".join(f"{value:,} {name}" for name, value in counts.items())
    for name, output in facts["outputs"].items():
        size = f"{output['dtype']}{output['shape']}"
        yield f"output    {name} {size} sha256 {output['sha256'][:DIGITS]}"
    yield f"findings  {len(facts['findings'])}"
    for text in facts["findings"]:
        yield from (f"  {line}" for line in text.splitlines())
    yield f"outcome   {facts['outcome']}"
    yield from (f"  {line}" for line in (facts["reason"] or "").splitlines())
    yield f"time      {facts['seconds']:.3f} s of this machine"
