"""Judges the catalogue: the suite's default profile against each mutant, until the first kill."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from conformance.judge import Judge, Subject
from conformance.kernel import EngineChoice, UsageError, load_kernel
from conformance.session import device_text
from mutation.processes import in_processes
from mutation.source import ORIGINAL, MutatedKernel, SourceMutant, catalogue
from mutation.steps import PROFILE, Killing, killing, killing_at_random, steps
from reports.records import Case, Measurement, RecordWriter

TOOL = "mutation"
SUBJECT = "optimized"
MOST_SECONDS = 7200.0  # for one mutant, the profile and its compilations
REASON_LENGTH = 300
WARMING = 12  # steps that the original runs first, so that processes share what they compile
_ENGINE = EngineChoice("simulator", "sm_100a", "mutants are judged on the simulator")


def measured(
    mutants: Sequence[SourceMutant],
    known: Mapping[tuple[str, str], Measurement],
    *,
    workers: int,
) -> Iterator[Measurement]:
    """Yield the verdict on each mutant as soon as it is known; ``known`` ones at once.

    Raises RuntimeError where the kernel itself fails a case: then no mutant can be judged.
    """
    yield from (known[SUBJECT, m.id] for m in mutants if (SUBJECT, m.id) in known)
    todo = [m for m in mutants if (SUBJECT, m.id) not in known]
    if not todo:
        return
    original = Subject(SUBJECT, load_kernel(ORIGINAL), _ENGINE)
    cases = steps(original)
    judge = Judge(lambda result: None)
    for case in cases[:WARMING]:
        if (found := killing(judge, original, case)) is not None:
            raise RuntimeError(f"the kernel itself fails {case.property}: {found.reason}")

    def work(mutant: SourceMutant) -> Measurement:
        return _judged(mutant, cases)

    for mutant, result in in_processes(todo, work, workers=workers, seconds=MOST_SECONDS):
        yield result or _measurement(mutant, Killing(("completes",), "its process died"), 0, 0.0)


def _judged(mutant: SourceMutant, cases: Sequence[Case]) -> Measurement:
    """Run the cases until one kills; the mutant compiles in a folder that goes with it."""
    start, number = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        subject = Subject(f"mutant:{mutant.id}", MutatedKernel(mutant, Path(folder)), _ENGINE)
        judge = Judge(lambda result: None)
        found = None
        for case in cases:
            number += 1
            found = killing(judge, subject, case)
            if found is not None:
                break
        else:
            found = killing_at_random(judge, subject)
            number += PROFILE.random_problems
    return _measurement(mutant, found, number, time.monotonic() - start)


def _measurement(
    mutant: SourceMutant, found: Killing | None, cases: int, seconds: float
) -> Measurement:
    detail = {
        "status": "survived" if found is None else "killed",
        "by": [] if found is None else list(found.by),
        "cases": cases,
        "reason": "" if found is None else found.reason[:REASON_LENGTH],
        "faults": list(mutant.faults),
        "says": mutant.says,
        "file": mutant.file,
        "seconds": round(seconds, 1),
    }
    return Measurement(SUBJECT, "mutant", mutant.id, float(found is not None), "killed", detail)


def judge_catalogue(
    only: Sequence[str], known: Mapping[tuple[str, str], Measurement], results: str, workers: int
) -> int:
    """Judge the mutants of these ids, or all; print and record each verdict. 0 if none survives.

    Raises UsageError for an id that is none.
    """
    unknown = [name for name in only if name not in catalogue()]
    if unknown:
        raise UsageError(f"--only: {', '.join(unknown)}: no mutant of mutation/catalogue")
    mutants = [catalogue()[name] for name in only or catalogue()]
    found = []
    with RecordWriter(TOOL, results, device=device_text()) as records:
        for one in measured(mutants, known, workers=workers):
            records.measure(one)
            found.append(one)
            print(line(one, len(found), len(mutants)), flush=True)
        print(score(found))
        print(f"records: {records.path}")
    return int(any(one.detail["status"] == "survived" for one in found))


def line(found: Measurement, number: int, total: int) -> str:
    """One verdict in a line, the ``number``-th of ``total``."""
    detail = found.detail
    by = f" by {', '.join(detail['by'])} in case {detail['cases']}" if detail["by"] else ""
    return f"{number}/{total} {found.name}: {detail['status']}{by} ({detail['seconds']} s)"


def score(found: Iterable[Measurement]) -> str:
    """The score, the cases it took, what killed first, and the survivors."""
    found = list(found)
    killed = [m for m in found if m.detail["status"] == "killed"]
    lines = [f"{len(killed)} of {len(found)} killed: {len(killed) / max(1, len(found)):.1%}"]
    if killed:
        cases = [m.detail["cases"] for m in killed]
        lines.append(f"cases to kill: median {statistics.median(cases):g}, most {max(cases)}")
    first = Counter(name for m in killed for name in m.detail["by"])
    alone = Counter(m.detail["by"][0] for m in killed if len(m.detail["by"]) == 1)
    lines.append("property  kills first  alone in that case")
    lines += [f"{name}  {count}  {alone[name]}" for name, count in first.most_common()]
    lines += [
        f"survived: {m.name} ({', '.join(m.detail['faults'])}): {m.detail['says']}"
        for m in found
        if m.detail["status"] == "survived"
    ]
    return "\n".join(lines)
