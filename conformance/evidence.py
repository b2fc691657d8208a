"""What a sign-off asks of a kernel beside judged cases: its compilations, and what checks find.

    python -m conformance.evidence --kernel optimized

Writes measurements (`reports.records`) to a folder of its own under results/, one as each is known.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import re
import sys
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
from simulator.launch import Finding

TOOL = "evidence"
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
        description="Compile what the problems of a profile need and look at the result, and run "
        "some of them under every check of the simulator.",
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
        for measurement in itertools.chain(compilations(subject, drawn), found):
            writer.measure(measurement)
            value = "" if measurement.value is None else f": {measurement.value:g}"
            sys.stdout.write(f"{measurement.topic} {measurement.name}{value}\n")
            sys.stdout.flush()
    sys.stdout.write(f"records: {writer.path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
