"""The commands of ``python -m fuzz``, each from its options to an exit code."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance.judge import Subject
from conformance.kernel import UsageError
from conformance.replay import find_case
from conformance.schedules import PROBLEMS, PROPERTY, RECIPE
from conformance.session import make_subject, records_to_resume
from conformance.strategies import Choice
from fuzz.baseline import Pair, Speed, find_baseline
from fuzz.campaign import FOUND, NOTHING_FOUND, Budget, Campaign, Hunt
from fuzz.cluster import Cluster
from fuzz.corpus import Corpus, Entry
from fuzz.draw import MOST_STEPS, cases, scheduled
from fuzz.export import export
from fuzz.jobs import SAME_AS_BASELINE
from fuzz.progress import Progress, line
from fuzz.search import Executor
from fuzz.shrink import Shrinker
from fuzz.worker import Limits, Worker
from reports.records import Case, CaseResult


def run(options: argparse.Namespace) -> int:
    """Search for cases that a kernel fails."""
    if options.ray is None:
        return _campaign(options, hunt_of(options))
    cluster = Cluster(options.ray, options.workers, options)
    try:
        return _campaign(options, hunt_of(options), cluster.search)
    finally:
        cluster.close()


def hunt_of(options: argparse.Namespace) -> Hunt:
    """What ``run`` searches with these options."""
    subject = make_subject(options.kernel, options.engine)
    return Hunt(
        f"run {options.kernel} {options.profile} {options.shapes or 'all'}",
        options.kernel,
        subject.kernel,
        cases(subject, options.profile, options.shapes, options.seed),
        lambda: Worker(options.kernel, subject.engine.engine, _limits(options)),
    )


def diff(options: argparse.Namespace) -> int:
    """Compare two versions of a kernel, case by case."""
    subject = make_subject(options.kernel, options.engine)
    baseline = find_baseline(options.baseline, options.kernel)
    speed = Speed()
    drawn = cases(subject, options.profile, options.shapes, options.seed)
    hunt = Hunt(
        f"diff {options.kernel} {options.profile} {options.shapes or 'all'}",
        options.kernel,
        subject.kernel,
        drawn.map(lambda case: replace(case, property=SAME_AS_BASELINE)),
        lambda: Pair(
            options.kernel, baseline, subject.engine.engine, _limits(options),
            bitwise=options.bitwise, on_both=speed.add,
        ),
        {"baseline": options.baseline, "bitwise": options.bitwise},
    )  # fmt: skip
    code = _campaign(options, hunt)
    print(speed.text())
    return code


def schedule(options: argparse.Namespace) -> int:
    """Run one problem under adversarial schedules of warps, CTAs and asynchronous work."""
    subject = make_subject(options.kernel, "simulator")
    case = replace(_problem_of(options, subject), checks=tuple(options.checks.split(",")))
    steps = _steps(options, case)
    print(f"{steps} steps a launch; problem {case.problem}")
    hunt = Hunt(
        f"schedule {options.kernel} {case.id}",
        options.kernel,
        subject.kernel,
        scheduled(case, steps),
        lambda: Worker(options.kernel, "simulator", _limits(options)),
    )
    return _campaign(options, hunt)


def replay(options: argparse.Namespace) -> int:
    """Run cases of the corpus again; 1 if one still fails."""
    failing = 0
    for entry in _entries(options, lambda entry: entry.is_minimal):
        result = _executed(options, entry)
        print(f"{entry.case.id} {entry.signature}: {result.verdict} {result.reason or ''}".rstrip())
        failing += result.is_bad
    return FOUND if failing else NOTHING_FOUND


def minimize(options: argparse.Namespace) -> int:
    """Make cases of the corpus smaller until no one-step reduction fails; 1 if one is not."""
    corpus = _corpus(options)
    corpus.require_writable()
    unfinished = 0
    for entry in _entries(options, lambda entry: not entry.is_minimal):
        name = options.kernel or entry.case.kernel
        executor = _executor(options, entry)
        try:
            kernel = make_subject(name, options.engine).kernel
            shrinker = Shrinker(None, kernel, executor.run, None)
            start = shrinker.judged(replace(entry.case, kernel=name))
            if not start.is_bad:
                print(f"{entry.case.id}: {start.verdict} now")
                continue
            deadline = time.monotonic() + options.shrink_seconds
            result, is_minimal = shrinker.by_steps(start, deadline)
        finally:
            executor.close()
        path = corpus.add(Entry(result, is_minimal, entry.options))
        print(f"{entry.case.id}: {'minimal' if is_minimal else 'smaller'}: {path}")
        unfinished += not is_minimal
    return FOUND if unfinished else NOTHING_FOUND


def export_cases(options: argparse.Namespace) -> int:
    """Write a pytest file for each chosen case; by default for the kernel that mutants are of."""
    for entry in _entries(options, lambda entry: entry.is_minimal):
        kernel = options.kernel or _original(entry.case.kernel)
        print(export(entry, Path(options.cases_folder), kernel))
    return NOTHING_FOUND


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "run": run,
    "diff": diff,
    "schedule": schedule,
    "replay": replay,
    "minimize": minimize,
    "export": export_cases,
}


def _campaign(
    options: argparse.Namespace,
    hunt: Hunt,
    search: Callable[[Campaign, int], None] | None = None,
) -> int:
    """Run a campaign and say what came of it."""
    corpus = _corpus(options)
    corpus.require_writable()
    earlier, seconds = _earlier(options.resume, hunt)
    progress = Progress(_write, sys.stderr.isatty())
    campaign = Campaign(
        hunt, corpus, _budget(options), seed=options.seed, results=Path(options.results),
        progress=progress, earlier=earlier, seconds_before=seconds,
    )  # fmt: skip
    code = campaign.run(options.workers, search)
    progress.tell(line(campaign.growth, campaign.findings))
    for entry in campaign.minimal:
        print(f"{entry.signature}: {entry.case.id}{'' if entry.is_minimal else ' (not minimal)'}")
        print(f"  {entry.result.reason}\n  {json.dumps(entry.case.to_json())}")
        print(f"  python -m fuzz replay {entry.case.id} --corpus {corpus.root}")
    print(f"records: {campaign.records}")
    return code


def _budget(options: argparse.Namespace) -> Budget:
    if options.workers < 1:
        raise UsageError(f"--workers: {options.workers} is below 1")
    return Budget(
        float("inf") if options.minutes is None else 60.0 * options.minutes,
        options.cases,
        options.shrink_seconds,
        options.stop_at_first,
    )


def _earlier(folder: str | None, hunt: Hunt) -> tuple[tuple[CaseResult, ...], float]:
    """The results and the seconds of a campaign to go on with; UsageError for one of another."""
    if folder is None:
        return (), 0.0
    records = records_to_resume(folder)
    others = {result.case.kernel for result in records.results} - {hunt.kernel_name}
    if others:
        raise UsageError(f"--resume: {folder} is about {', '.join(others)}, not {hunt.kernel_name}")
    measured = [m for m in records.measurements if m.topic == "fuzz"]
    return records.results, float(measured[-1].detail["seconds"]) if measured else 0.0


def _problem_of(options: argparse.Namespace, subject: Subject) -> Case:
    """The case whose schedules are tried."""
    if options.case is not None:
        found = find_case(options.case, Path(options.results))
        return subject.moved(found, PROPERTY)
    for problem, splits in PROBLEMS:
        if subject.kernel.supports(problem).ok:
            return subject.case(PROPERTY, (problem, RECIPE, Choice(0, 148, splits)))
    raise UsageError(f"--kernel: {options.kernel!r} takes none of the usual problems: give --case")


def _steps(options: argparse.Namespace, case: Case) -> int:
    """The steps of a launch; UsageError where the fair schedule is wrong by itself."""
    worker = Worker(options.kernel, "simulator", _limits(options))
    try:
        fair = worker.run(replace(case, policy="fair", policy_seed=0))
        if fair.result.is_bad:
            raise UsageError(f"the fair schedule fails by itself: {fair.result.reason}")
        # A run that fails has no count; the search will find that failure too.
        return worker.run(replace(case, policy="pct:1", policy_seed=0)).steps or MOST_STEPS
    finally:
        worker.close()


def _entries(options: argparse.Namespace, usual: Callable[[Entry], bool]) -> list[Entry]:
    """The entries that are named, else the usual ones."""
    corpus = _corpus(options)
    if not options.ids:
        return [entry for entry in corpus.entries() if usual(entry)]
    return [corpus.find(text)[0] for text in options.ids]


def _executed(options: argparse.Namespace, entry: Entry) -> CaseResult:
    executor = _executor(options, entry)
    try:
        name = options.kernel or entry.case.kernel
        return executor.run(replace(entry.case, kernel=name)).result
    finally:
        executor.close()


def _executor(options: argparse.Namespace, entry: Entry) -> Executor:
    """What runs an entry's case as the campaign did that found it."""
    kernel = options.kernel or entry.case.kernel
    if entry.case.property == SAME_AS_BASELINE:
        baseline = find_baseline(str(entry.options.get("baseline")), kernel)
        return Pair(
            kernel, baseline, entry.case.engine, _limits(options),
            bitwise=bool(entry.options.get("bitwise")), on_both=lambda old, new: None,
        )  # fmt: skip
    return Worker(kernel, entry.case.engine, _limits(options))


def _original(kernel: str) -> str:
    """The kernel that a mutant was made of; another kernel's own name."""
    return kernel.split(":")[1] if kernel.startswith("mutant:") else kernel


def _corpus(options: argparse.Namespace) -> Corpus:
    return Corpus(Path(options.corpus), lambda text: print(text, file=sys.stderr))


def _limits(options: argparse.Namespace) -> Limits:
    return Limits(options.case_seconds, options.memory_gib)


def _write(text: str) -> Any:
    sys.stderr.write(text)
    sys.stderr.flush()
