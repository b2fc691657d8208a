"""Mutants of a kernel's synchronisation, each judged on the simulator.

    python -m mutation --kernel tokenspeed-mla-2.0.4-fp8 --heads 128 --synchronisation

Each verdict is on disk before the next mutant runs: results/<time>-mutation/records.jsonl. With
--resume FOLDER the verdicts of an earlier run are taken over, which must be of the same sources.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch

from conformance.kernel import Kernel, UsageError, load_kernel
from conformance.session import device_text, records_to_resume
from mutation.ptx import Mutant, Mutation, mutants
from mutation.trial import (
    Trial,
    Verdict,
    synchronisation_cases,
    synchronisation_problems,
)
from reference.problem import Problem
from reports.records import Measurement, RecordWriter

TOOL = "mutation"
DTYPES = {"fp8": "float8_e4m3fn", "bf16": "bfloat16", "fp16": "float16"}

IMPLIED = {
    "pdl_launch-remove": "PTX ISA, griddepcontrol: a grid that never launches its dependents does "
    "so when it completes, so the removal only makes them start later"
}
"""Changes that the PTX ISA defines to be harmless, by kind and change."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the mutants that the command line asks for; 0 if all were killed or are equivalent."""
    options = _options(arguments)
    torch.set_num_threads(1)
    try:
        kernel = load_kernel(options.kernel)
        known = _earlier(options.resume)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    problems = synchronisation_problems(DTYPES[options.dtype], options.heads, options.queries)
    trial = Trial(kernel, problems, synchronisation_cases())
    for case, own in trial.refused:
        print(f"no case: {case}: the kernel itself is {own.end}")
    part, parts = options.part
    chosen = _chosen(kernel, trial, problems[0][0])[part - 1 :: parts]
    print(f"{len(chosen)} mutants of statements that run, {len(trial.cases)} cases", flush=True)
    subject = f"{options.kernel} {options.dtype} heads {options.heads} queries {options.queries}"
    with RecordWriter(TOOL, options.results, device=device_text()) as records:
        found = []
        for mutant in chosen:
            measured = known.get((subject, mutant.id))
            if measured is None:
                made = load_kernel(options.kernel, Mutation(mutant.id))
                measured = _measured(subject, mutant, trial.judge(made))
            records.measure(measured)
            found.append(measured)
            print(_line(measured, len(found), len(chosen)), flush=True)
        print(_score(found))
        print(f"records: {records.path}")
    return int(any(m.detail["status"] == "survived" for m in found))


def _chosen(kernel: Kernel, trial: Trial, problem: Problem) -> list[Mutant]:
    """The mutants of what the problems execute; waits first, they are what matters most."""
    executed = trial.executed_lines(kernel)
    text = kernel.compile(problem, kernel.arches[0]).ptx
    runs = [mutant for mutant in mutants(text) if mutant.line in executed]
    return sorted(runs, key=lambda mutant: (mutant.kind != "wait", "remove" not in mutant.id))


def _measured(subject: str, mutant: Mutant, verdict: Verdict) -> Measurement:
    change = f"{mutant.kind}-{mutant.id.rsplit('-', 1)[1]}"
    status = "killed" if verdict.by else "equivalent" if change in IMPLIED else "survived"
    detail = {
        "status": status,
        "by": verdict.by,
        "cases": verdict.cases,
        "reason": verdict.reason or IMPLIED.get(change, ""),
        "where": f"PTX line {mutant.line}",
        "kind": mutant.kind,
        "before": mutant.before.strip(),
        "after": mutant.after.strip(),
    }
    return Measurement(subject, "mutant", mutant.id, float(bool(verdict.by)), "killed", detail)


def _line(measured: Measurement, number: int, total: int) -> str:
    detail = measured.detail
    by = f" by {detail['by']} in case {detail['cases']}" if detail["by"] else ""
    return f"{number}/{total} {measured.name}: {detail['status']}{by}, {detail['where']}"


def _score(found: Iterable[Measurement]) -> str:
    """The score by kind of statement, and the survivors with what was changed."""
    found = list(found)
    lines = ["kind  mutants  killed  equivalent  survived"]
    for kind in sorted({m.detail["kind"] for m in found}):
        counts = Counter(m.detail["status"] for m in found if m.detail["kind"] == kind)
        lines.append(
            f"{kind}  {counts.total()}  {counts['killed']}  {counts['equivalent']}  "
            f"{counts['survived']}"
        )
    killed = sum(m.detail["status"] == "killed" for m in found)
    lines.append(f"{killed} of {len(found)} killed")
    lines += list(_survivors(found))
    return "\n".join(lines)


def _survivors(found: Iterable[Measurement]) -> Iterator[str]:
    for measured in found:
        if measured.detail["status"] == "survived":
            detail = measured.detail
            yield f"survived: {measured.name}, {detail['where']}: {detail['before']}"
            yield f"    became: {detail['after'] or '(nothing)'}"


def _earlier(folder: str | None) -> dict[tuple[str, str], Measurement]:
    """The verdicts of an earlier run by kernel and mutant; UsageError if of other sources."""
    if folder is None:
        return {}
    measured = records_to_resume(folder).measurements
    return {(m.kernel, m.name): m for m in measured if m.topic == "mutant"}


def _part(text: str) -> tuple[int, int]:
    """``I/N`` as two numbers; ValueError, which argparse reports, for another text."""
    part, parts = (int(word) for word in text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(text)
    return part, parts


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kernel", required=True, help="a kernel that conformance knows")
    parser.add_argument(
        "--synchronisation",
        action="store_true",
        required=True,
        help="waits, arrivals, expected bytes, commits, fences, barriers, PDL: removed or altered",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="fp8", help="input dtype; default fp8")
    parser.add_argument("--heads", type=int, default=128, help="query heads; default 128")
    parser.add_argument("--queries", type=int, default=1, help="query tokens; default 1")
    parser.add_argument(
        "--part",
        type=_part,
        default=(1, 1),
        metavar="I/N",
        help="judge every Nth mutant from the Ith: so N processes share the work",
    )
    parser.add_argument("--results", default="results", help="folder for records; default results")
    parser.add_argument("--resume", metavar="FOLDER", help="records of a run to go on with")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
