"""Mutants of a compiled kernel, each judged on the simulator.

    python -m mutation --kernel tokenspeed-mla-2.0.4-fp8 --heads 128 --synchronisation
    python -m mutation --kernel optimized --heads 128 --sample 500
    python -m mutation --catalogue --workers 2

The first takes every statement that synchronises, the second a sample of all statements, the third
the named edits of our own source in mutation/catalogue, with the suite's default profile.
Each verdict is on disk before the next mutant runs: results/<time>-mutation/records.jsonl. With
--resume FOLDER the verdicts of an earlier run are taken over, which must be of the same sources.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from conformance.kernel import Kernel, UsageError, load_kernel
from conformance.session import device_text, records_to_resume
from mutation import synchronisation
from mutation.catalogued import judge_catalogue
from mutation.operators import OPERATORS, change
from mutation.ptx import Mutant, mutants
from mutation.sample import Compilation, deep_lines
from mutation.trial import Trial, Verdict
from reference.problem import Dims, Problem
from reports.records import Measurement, RecordWriter

TOOL = "mutation"
DTYPES = {"fp8": "float8_e4m3fn", "bf16": "bfloat16", "fp16": "float16"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the mutants that the command line asks for; 0 if all were killed or are equivalent."""
    options = _options(arguments)
    torch.set_num_threads(1)
    try:
        known = _earlier(options.resume)
        if options.catalogue:
            return judge_catalogue(options.only, known, options.results, options.workers)
        kernel = load_kernel(options.kernel)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        run = _sampled(kernel, options) if options.sample else _synchronisation(kernel, options)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    for case, own in run.trial.refused:
        print(f"no case: {case}: the kernel itself is {own.end}")
    part, parts = options.part
    chosen = run.chosen[part - 1 :: parts]
    print(f"{len(chosen)} mutants, {len(run.trial.cases)} cases", flush=True)
    subject = f"{options.kernel} {options.dtype} heads {options.heads} queries {options.queries}"
    with RecordWriter(TOOL, options.results, device=device_text()) as records:
        found = []
        for mutant in chosen:
            measured = known.get((subject, mutant.id))
            if measured is None:
                verdict = run.trial.judge(load_kernel(options.kernel, change(mutant.id)))
                reason = "" if verdict.by else run.equivalence(mutant, verdict)
                measured = _measured(subject, mutant, verdict, reason)
            records.measure(measured)
            found.append(measured)
            print(_line(measured, len(found), len(chosen)), flush=True)
        print(_score(found))
        print(f"records: {records.path}")
    return int(any(m.detail["status"] == "survived" for m in found))


@dataclass(frozen=True, eq=False)
class _Run:
    """Which mutants are judged on which cases, and what makes a survivor an equivalent."""

    trial: Trial
    chosen: Sequence[Mutant]
    equivalence: Callable[[Mutant, Verdict], str]


def _synchronisation(kernel: Kernel, options: argparse.Namespace) -> _Run:
    """Every mutant of what the problems execute; waits first, they are what matters most."""
    asked = synchronisation.problems(kernel, DTYPES[options.dtype], options.heads, options.queries)
    trial = Trial(kernel, asked, synchronisation.cases())
    executed = trial.executed_lines(kernel)
    text = kernel.compile(asked[0].problem, kernel.arches[0]).ptx
    runs = [mutant for mutant in mutants(text) if mutant.line in executed]
    runs.sort(key=lambda mutant: (mutant.kind != "wait", "remove" not in mutant.id))
    return _Run(trial, runs, synchronisation.redundant)


def _sampled(kernel: Kernel, options: argparse.Namespace) -> _Run:
    """A sample of the mutants of the compilation that the options name."""
    dims = Dims(options.heads, options.queries)
    wanted = Problem(dims, DTYPES[options.dtype], options.page_size, (300,), 192**-0.5)
    print("finding out what each problem of the suite executes", flush=True)
    compilation = Compilation.of(kernel, wanted)
    deep = deep_lines(kernel, wanted)

    def equivalence(mutant: Mutant, verdict: Verdict) -> str:
        reason = compilation.equivalence(mutant, deep, kernel.arches[0], options.ptxas)
        if not reason and mutant.kind not in OPERATORS:
            reason = synchronisation.redundant(mutant, verdict)
        return reason

    chosen = compilation.mutants(options.sample, options.seed)
    return _Run(compilation.trial(kernel), chosen, equivalence)


def _measured(subject: str, mutant: Mutant, verdict: Verdict, equivalence: str) -> Measurement:
    status = "killed" if verdict.by else "equivalent" if equivalence else "survived"
    detail = {
        "status": status,
        "by": verdict.by,
        "cases": verdict.cases,
        "reason": verdict.reason or equivalence,
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
    status = Counter(m.detail["status"] for m in found)
    killed, different = status["killed"], len(found) - status["equivalent"]
    lines.append(f"{killed} of {len(found)} killed: {killed / max(1, len(found)):.1%}")
    lines.append(f"without equivalents {killed} of {different}: {killed / max(1, different):.1%}")
    cases = [m.detail["cases"] for m in found if m.detail["status"] == "killed"]
    if cases:
        lines.append(f"cases to kill: median {statistics.median(cases):g}, most {max(cases)}")
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


def _add_catalogue(parser: argparse.ArgumentParser, which: argparse._ActionsContainer) -> None:
    """Add the options of the catalogue: the choice among ``which``, the rest to ``parser``."""
    which.add_argument(
        "--catalogue", action="store_true", help="the named edits of our own source, or --only some"
    )
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="ID", help="mutants of the catalogue; default all"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=os.cpu_count() or 1,
        help="processes that judge the catalogue side by side; default: one for each core",
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kernel", help="a kernel that conformance knows")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--synchronisation",
        action="store_true",
        help="waits, arrivals, expected bytes, commits, fences, barriers, PDL: removed or altered",
    )
    which.add_argument(
        "--sample",
        type=int,
        metavar="N",
        help="N of all mutants of one compilation: comparisons, constants, operations, operands, "
        "addresses, guards, conversions and more beside the above, as many of each kind",
    )
    _add_catalogue(parser, which)
    parser.add_argument("--seed", type=int, default=1, help="of the sample; default 1")
    parser.add_argument(
        "--page-size", type=int, default=64, help="of the compilation sampled; default 64"
    )
    parser.add_argument(
        "--ptxas",
        default=shutil.which("ptxas") or "",
        metavar="PATH",
        help="compares the machine code of survivors; default: the one on PATH. Without one, "
        "no survivor is called equivalent for its machine code",
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
    options = parser.parse_args(arguments)
    if not options.catalogue and options.kernel is None:
        parser.error("--kernel is needed, but for --catalogue")
    if options.workers < 1:
        parser.error(f"--workers must be at least 1, not {options.workers}")
    return options


if __name__ == "__main__":
    sys.exit(main())
