"""What a sign-off asks of a kernel beside judged cases: compilations, findings, executions.

    python -m conformance.evidence --kernel optimized

Writes measurements (`reports.records`) to a folder of its own under results/, one as each is known.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from conformance.judge import Subject, run_options
from conformance.kernel import UsageError, choose_engine, load_kernel
from conformance.known_limits import facts, load_limits
from conformance.properties import COMPLETES
from conformance.resources import resources
from conformance.session import device_text
from conformance.strategies import Drawn, covering_array
from reference.inputs import make_inputs
from reports.records import Measurement, RecordWriter
from simulator.checks import CHECKS
from simulator.errors import CheckFailed, SimulationError
from simulator.launch import Finding, KernelRun

TOOL = "evidence"
AXIS = "simulated steps, not cycles"  # the line of the simulator's trace that is told in words
WATCHED_KEYS = 300  # of a problem that runs under every check, by the interpreter
WATCHED = 4  # problems of so many compilations, if nobody asks for more

# Which error ends a run for each check that does not watch; the others name themselves.
ENDS = {
    "bounds": ("OutOfBounds", "Trap"),
    "initialisation": ("Uninitialised",),
    "deadlock": ("Deadlock", "ProtocolError"),
}


def compilations(subject: Subject, drawn: Sequence[Drawn]) -> Iterator[Measurement]:
    """Yield a measurement for each kernel of each compilation that the problems need."""
    for key, (problem, _, _) in _by_compilation(subject, drawn).items():
        made = subject.kernel.compile(problem, subject.engine.arch)
        columns = sum(map(int, re.findall(r"tcgen05\.alloc[^;]*, (\d+);", made.ptx)))
        for entry in resources(made.host_object):
            detail = {
                "registers": entry.registers,
                "spill_bytes": entry.local_bytes,  # spills lie in local memory, with what else may
                "local_bytes": entry.local_bytes,
                "tmem_cols": columns,
                "ptx_sha256": ptx_digest(made.ptx),
            }
            name = f"{key} {_short(entry.kernel)}"
            yield Measurement(subject.name, "compilation", name, detail=detail)


def sanitizers(
    subject: Subject, drawn: Sequence[Drawn], most: int = WATCHED
) -> Iterator[Measurement]:
    """Yield what each check found in runs of small problems of ``most`` compilations.

    All checks are on. What ran is told on the way, for a run takes seconds.
    """
    small = [entry for entry in drawn if max(entry[0].seq_lens, default=0) <= WATCHED_KEYS]
    findings: dict[str, list[str]] = {check: [] for check in CHECKS}
    watched = dict(list(_by_compilation(subject, small).items())[:most])
    for key, (problem, recipe, choice) in watched.items():
        sys.stderr.write(f"watching {subject.name} {key} under {choice.policy}\n")
        case = subject.case(TOOL, (problem, recipe, replace(choice, checks=tuple(CHECKS))))
        inputs = make_inputs(problem, recipe, choice.seed)
        try:
            subject.kernel.run(problem, inputs, run_options(case))
        except CheckFailed as error:
            for finding in error.findings:
                assert isinstance(finding, Finding)
                findings[finding.check].append(str(finding))
        except SimulationError as error:
            kind = type(error).__name__
            found = [check for check, names in ENDS.items() if kind in names]
            if not found:  # the testbed's own failure: no evidence, which must not look like none
                raise
            findings[found[0]].append(f"{kind}: {error}")
    for check, texts in findings.items():
        detail = {"runs": len(watched), "findings": texts}
        yield Measurement(subject.name, "sanitizer", check, float(len(texts)), "findings", detail)


def executions(subject: Subject, drawn: Sequence[Drawn], folder: Path) -> Iterator[Measurement]:
    """Yield what the longest of the small problems executes, and its timeline, drawn in ``folder``.

    The counts are the simulator's; the timeline counts its steps, which are not cycles.
    """
    small = [entry for entry in drawn if max(entry[0].seq_lens, default=0) <= WATCHED_KEYS]
    if not small:
        return
    problem, recipe, choice = max(small, key=lambda entry: sum(entry[0].seq_lens))
    case = subject.case(TOOL, (problem, recipe, choice))
    inputs = make_inputs(problem, recipe, choice.seed)
    dims = problem.dims
    size = f"{problem.dtype}, H {dims.num_heads}, S {dims.seq_len_q}, K {max(problem.seq_lens)}"
    with tempfile.TemporaryDirectory() as place:
        saved = Path(place) / "call"
        options = replace(run_options(case), profile=True, save_to=saved)
        for run in subject.kernel.run(problem, inputs, options).launches:
            yield _mix(subject.name, size, run)
        if saved.is_dir():
            yield _timeline(subject.name, size, saved, folder)


def _mix(kernel: str, size: str, run: KernelRun) -> Measurement:
    """Return the instruction mix of one launch."""
    profile = run.profile
    assert profile is not None
    detail = {
        "problem": size,
        "classes": dict(profile.by_class.most_common()),
        "special_functions": profile.special_functions,
        "mma_flop": dict(profile.flop),
        "bytes": dict(profile.bytes),
        "worst_bank_conflict": max((a.worst for a in profile.shared.values()), default=None),
    }
    count = float(profile.warp_instructions)
    return Measurement(kernel, "instructions", _short(run.name), count, "warp-instructions", detail)


def _timeline(kernel: str, size: str, saved: Path, folder: Path) -> Measurement:
    """Draw a saved call by the simulator's own command, and return where the drawing lies."""
    file = folder / "timeline.svg"
    command = [sys.executable, "-m", "simulator", "trace", str(saved), "--svg", str(file)]
    command += ["--json", str(saved / "trace.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    words = next(line for line in done.stdout.splitlines() if AXIS in line)
    return Measurement(kernel, "timeline", size, detail={"file": file.name, "text": words})


def ptx_digest(ptx: str) -> str:
    """Return the SHA-256 of a PTX text without the folders of its sources, which differ."""
    kept = (line for line in ptx.splitlines() if not line.lstrip().startswith(".file"))
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()


def runnable(subject: Subject, drawn: Sequence[Drawn]) -> tuple[Drawn, ...]:
    """Return the problems that no known limit says the kernel will not even complete."""

    def completes(entry: Drawn) -> bool:
        case = subject.case(COMPLETES, entry)
        run = facts(case, entry[2].num_splits or 1)
        return not any(limit.concerns(COMPLETES, run) for limit in subject.limits)

    return tuple(entry for entry in drawn if completes(entry))


def _by_compilation(subject: Subject, drawn: Sequence[Drawn]) -> dict[str, Drawn]:
    """Return the first problem of each compilation, by the name of that."""
    first: dict[str, Drawn] = {}
    for entry in drawn:
        first.setdefault(str(subject.kernel.specialisation_key(entry[0])), entry)
    return first


def _short(kernel: str) -> str:
    """Return the part of a mangled name that its author would know it by."""
    match = re.match(r"kernel_cutlass_(.+?)_(?:Config|tensorptr|Tensor|object)", kernel)
    return match[1] if match else kernel[:60]


def main(arguments: Sequence[str] | None = None) -> int:
    """Collect what is asked for, and say where it lies."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.evidence",
        description="Compile what the problems of a profile need and look at the result, run "
        "some of them under every check of the simulator, and count and draw what one executes.",
    )
    parser.add_argument("--kernel", required=True, help="as for the suite")
    parser.add_argument("--profile", default="smoke", help="whose problems; default: smoke")
    parser.add_argument(
        "--watched", type=int, default=WATCHED, metavar="N", help="compilations; default: 4"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="FOLDER")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        kernel = load_kernel(given.kernel)
        engine = choose_engine(kernel, "simulator", None)
        subject = Subject(given.kernel, kernel, engine, load_limits(kernel.name))
        drawn = runnable(subject, covering_array(given.profile, kernel))
    except (UsageError, ValueError) as error:
        parser.error(str(error))
    with RecordWriter(TOOL, given.results, device=device_text()) as writer:
        found = sanitizers(subject, drawn, given.watched)
        drawings = executions(subject, drawn, writer.path.parent)
        for measurement in itertools.chain(compilations(subject, drawn), found, drawings):
            writer.measure(measurement)
            value = "" if measurement.value is None else f": {measurement.value:g}"
            sys.stdout.write(f"{measurement.topic} {measurement.name}{value}\n")
            sys.stdout.flush()
    sys.stdout.write(f"records: {writer.path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
