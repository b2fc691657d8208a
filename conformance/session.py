"""One session of the suite: which kernels it judges, on which cases, and what came of them."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from conformance.covered import Covered
from conformance.judge import Judge, Subject
from conformance.kernel import Kernel, UsageError, choose_engine, device_arch, load_kernel
from conformance.known_limits import load_limits
from conformance.profiles import Profile
from conformance.progress import Progress
from conformance.properties import REFUSED_OR_RIGHT
from conformance.relations import GPU_RELATIONS, RELATION_NAMES
from conformance.search import smallest_failure
from conformance.strategies import Drawn, covering_array, refusals
from reports.records import (
    RECORDS_FILE,
    Case,
    CaseResult,
    RecordError,
    Records,
    RecordWriter,
    RunHeader,
    read_records,
)

TOOL = "conformance"


@dataclass(frozen=True)
class Screen:
    """Where the progress line goes, and whether it can be rewritten there."""

    write: Callable[[str], None]
    is_terminal: bool


class Session:
    """What the tests of the suite share; each result is on disk before the next run starts."""

    def __init__(
        self,
        subjects: tuple[Subject, ...],
        profile: Profile,
        screen: Screen,
        *,
        seed: int,
        results_folder: Path,
        replayed: Case | None = None,
        resumed: Records | None = None,
    ) -> None:
        self.subjects = subjects
        self.profile = profile
        self.seed = seed
        self.replayed = replayed
        self.results: list[CaseResult] = []
        self._covered = Covered()
        self._judge = Judge(self._take, self._covered.add)
        self._screen = screen
        self._results_folder = results_folder
        self._resumed = resumed

    @cached_property
    def records(self) -> RecordWriter:
        """The writer of this session's records; a session that judges nothing makes no file."""
        return RecordWriter(TOOL, self._results_folder, device=device_text())

    @cached_property
    def progress(self) -> Progress:
        """The progress line, whose time starts with its first use."""
        return Progress(self._planned_runs(), self._screen.write, self._screen.is_terminal)

    def resume(self) -> None:
        """Take over what an earlier session recorded, if this one goes on with it."""
        if self._resumed is not None:
            self._judge.remember(self._resumed.results)

    def judge(self, subject: Subject, case: Case) -> CaseResult:
        """Return how ``case`` ends for its property; a run made before is not made again."""
        return self._judge.judge(subject, case)

    def covering_cases(self, subject: Subject, property_name: str) -> list[Case]:
        """Return the cases of the covering array, those that share a compilation side by side."""
        return [subject.case(property_name, drawn) for drawn in self._arrays[subject.name]]

    def related_cases(self, subject: Subject, relation_name: str) -> list[Case]:
        """Return the cases of the covering array that a relation starts from: its own share.

        A relation costs a run or more beside the first one, so each case has one relation. One that
        only a GPU can show has a single case elsewhere, which says so.
        """
        cases = self.covering_cases(subject, relation_name)
        shared = RELATION_NAMES
        if subject.engine.engine != "cuda":
            shared = tuple(name for name in RELATION_NAMES if name not in GPU_RELATIONS)
        if relation_name not in shared:
            return cases[:1]
        return cases[shared.index(relation_name) :: len(shared)]

    def refusal_cases(self, subject: Subject) -> list[Case]:
        """Return cases that the kernel does not take; the suite sees whether it refuses them."""
        return [subject.case(REFUSED_OR_RIGHT, drawn) for drawn in refusals(subject.kernel)]

    def smallest_random_failure(self, subject: Subject, property_name: str) -> CaseResult | None:
        """Return the smallest failure among random problems, None where all have the property."""
        return smallest_failure(self._judge, subject, property_name, self.profile, self.seed)

    @cached_property
    def _arrays(self) -> dict[str, list[Drawn]]:
        """The covering array of each kernel by its name, in the order in which it is run."""
        return {subject.name: self._array(subject.kernel) for subject in self.subjects}

    def _array(self, kernel: Kernel) -> list[Drawn]:
        drawn = covering_array(self.profile.name, kernel)
        keys = [kernel.specialisation_key(problem) for problem, _, _ in drawn]
        order = sorted(range(len(drawn)), key=lambda index: keys.index(keys[index]))
        return [drawn[index] for index in order]

    def close(self) -> None:
        """End the records and the progress line, where they were begun."""
        if self.results:
            for measurement in self._covered.measurements():
                self.records.measure(measurement)
            self.records.close()
            self.progress.finish()

    def _take(self, result: CaseResult) -> None:
        self.records.write(result)
        self.results.append(result)
        self.progress.update(result)

    def _planned_runs(self) -> int:
        if self.replayed is not None:
            return len(self.subjects)
        # Each case of the array runs once by itself, and once more in its relation.
        return sum(
            2 * len(self._arrays[subject.name]) + self.profile.random_problems + len(subject.limits)
            for subject in self.subjects
        )


def make_subject(name: str, engine: str) -> Subject:
    """Return the kernel that ``--kernel`` spells ``name``, on the engine asked for.

    Raises UsageError for an unknown kernel and for an engine that this machine lacks.
    """
    kernel = load_kernel(name)
    return Subject(
        name, kernel, choose_engine(kernel, engine, device_arch()), load_limits(kernel.name)
    )


def records_to_resume(text: str) -> Records:
    """Return the records of the run in the folder or file ``text``, to go on with it.

    UsageError where they cannot be read, and where they come from other sources than this session:
    results of two revisions in one record would be nobody's.
    """
    path = Path(text)
    try:
        records = read_records(path / RECORDS_FILE if path.is_dir() else path)
    except (OSError, RecordError) as error:
        raise UsageError(f"--resume: {error}") from error
    then, now = records.header, RunHeader.collect(TOOL, "")
    if then.dirty or now.dirty or then.revision != now.revision:
        raise UsageError(
            f"--resume: {path} was made of revision {then.revision}{_changed(then)}, this is "
            f"{now.revision}{_changed(now)}: a run goes on only with the sources it began with"
        )
    return records


def _changed(header: RunHeader) -> str:
    return " with changes" if header.dirty else ""


def device_text() -> str:
    """Return this machine in words."""
    text = f"{platform.machine()} CPU, {os.cpu_count()} threads"
    if torch.cuda.is_available():
        text += f"; {torch.cuda.get_device_name()} ({device_arch()})"
    return text
