"""A campaign: searches side by side, one shrinker, and what they found, on disk as it comes.

Searches are threads, each with an executor in a process of its own; one more thread shrinks. All
tell the campaign each answer, which writes it before the next case begins. `Campaign.run` ends when
the budget is spent, after the first finding if so asked, or on Ctrl-C.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis.database import ExampleDatabase
from hypothesis.strategies import SearchStrategy

from conformance.kernel import Kernel
from conformance.session import device_text
from fuzz.corpus import MOST_CASES, Corpus, Entry, StorageError
from fuzz.faults import Signature, signature_of
from fuzz.jobs import Answer
from fuzz.progress import Growth, Progress
from fuzz.search import Executor, Search
from fuzz.shrink import Shrinker
from reports.records import Case, CaseResult, Measurement, RecordWriter

TOOL = "fuzz"
NOTHING_FOUND, FOUND, REFUSED, STORAGE_FULL, INTERRUPTED = 0, 1, 2, 3, 130
MEASURE_SECONDS = 20.0


@dataclass(frozen=True)
class Hunt:
    """What a campaign draws, and where its cases run.

    ``name`` tells hunts that draw alike from others: they share buffers. ``options`` are what a
    replay needs beside a case.
    """

    name: str
    kernel_name: str
    kernel: Kernel
    strategy: SearchStrategy[Case]
    executor: Callable[[], Executor]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Budget:
    """When a campaign ends: after so many seconds or cases, whichever comes first."""

    seconds: float = float("inf")
    cases: int | None = None
    shrink_seconds: float = 120.0
    stop_at_first: bool = False


class _Over(BaseException):
    """The campaign is over; hypothesis lets it pass."""


class Campaign:
    """One campaign. ``earlier`` are the results of a campaign that it goes on with."""

    def __init__(
        self,
        hunt: Hunt,
        corpus: Corpus,
        budget: Budget,
        *,
        seed: int,
        results: Path,
        progress: Progress,
        earlier: Iterable[CaseResult] = (),
        seconds_before: float = 0.0,
    ) -> None:
        self._hunt, self._corpus, self._budget, self.seed = hunt, corpus, budget, seed
        self._progress = progress
        self._before = seconds_before
        self._started = time.monotonic()
        self._measured = self._started
        self._lock = threading.RLock()
        self._over, self._ended = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._growth = Growth()
        self._found: dict[Signature, list[Case]] = {}
        self._minimal: dict[tuple[str, str], Entry] = {}
        self._shrinking: queue.Queue[CaseResult] = queue.Queue()
        self._first_found: float | None = None  # seconds
        self._unshrunk: list[CaseResult] = []
        self._asked: set[tuple[str, str]] = set()
        self._bad: dict[str, Answer] = {}
        self._executors: list[Executor] = []
        self._records = RecordWriter(TOOL, results, device=device_text())
        for result in earlier:
            self._write(Answer(result))

    @property
    def minimal(self) -> tuple[Entry, ...]:
        """The smallest failure of each kind that was found."""
        return tuple(self._minimal.values())

    @property
    def records(self) -> Path:
        """The file that holds all results."""
        return self._records.path

    @property
    def findings(self) -> int:
        """How many faults of different signatures were found."""
        return len(self._found)

    @property
    def growth(self) -> Growth:
        """What was reached so far."""
        return self._growth

    @property
    def database(self) -> ExampleDatabase:
        """The buffers that this campaign shares with others that draw alike."""
        return self._corpus.database(self._hunt.name)

    def tell(self, text: str) -> None:
        """Say something that stays."""
        self._progress.tell(text)

    def run(self, workers: int, search: Callable[[Campaign, int], None] | None = None) -> int:
        """Run so many searches, each by ``search`` or else here; how it ended, as an exit code."""
        with self._records:
            threads = [
                threading.Thread(
                    target=self._guarded, args=(search or Campaign.search, self, number)
                )
                for number in range(workers)
            ]
            shrinker = threading.Thread(target=self._guarded, args=(self._shrink,))
            interrupted = False
            for thread in (*threads, shrinker):
                thread.start()
            try:
                self._wait(threads)
            except KeyboardInterrupt:
                interrupted = True
            self._end(threads, None if interrupted else shrinker)
            with suppress(OSError):
                self._measure()
        return self._code(interrupted)

    def take(self, answer: Answer) -> bool:
        """Write an answer down; whether it reached something new. Raises what ends a search."""
        with self._lock:
            if self._over.is_set():
                raise _Over
            is_new = self._write(answer)
            if answer.result.is_bad:
                self._keep(answer)
            self._progress.show(self._growth, len(self._found))
            if time.monotonic() - self._measured > MEASURE_SECONDS:
                self._measure()
            if self._is_spent():
                self._over.set()
                # A case that failed is first raised to hypothesis, which keeps its buffer.
                if not answer.result.is_bad:
                    raise _Over
        return is_new

    def _write(self, answer: Answer) -> bool:
        try:
            self._records.write(answer.result)
        except (OSError, ValueError) as error:  # a closed file is a ValueError
            raise StorageError(f"{self._records.path} cannot be written: {error}") from error
        return self._growth.add(answer, self._before + time.monotonic() - self._started)

    def _keep(self, answer: Answer) -> None:
        """Put a failing case into the corpus, and have the first of its kind shrunk."""
        result = answer.result
        signature = signature_of(result)
        self._bad[result.case.id] = replace(answer, features=frozenset(), output=None)
        known = self._found.setdefault(signature, [])
        if self._first_found is None:
            self._first_found = round(self._growth.seconds, 1)
        if not known:
            self._progress.tell(f"found {signature}: {result.reason}\n  {result.case.id}")
        if len(known) < MOST_CASES:
            known.append(result.case)
            self._corpus.add(Entry(result, False, self._hunt.options))
        if signature.kind not in self._asked:
            self._asked.add(signature.kind)
            self._unshrunk.append(result)

    def shrink_found(self) -> None:
        """Have what was found shrunk, now that its buffer is in the database."""
        with self._lock:
            for result in self._unshrunk:
                self._shrinking.put(result)
            self._unshrunk.clear()
            if self._found and self._budget.stop_at_first:
                self._over.set()

    def _is_spent(self) -> bool:
        cases = self._budget.cases
        return (cases is not None and self._growth.cases >= cases) or self._seconds_left() <= 0

    def _seconds_left(self) -> float:
        return self._budget.seconds - self._before - (time.monotonic() - self._started)

    def search(self, number: int) -> None:
        """Search in this thread, with a worker, until the campaign is over."""
        executor = self._executor()
        # A campaign that is resumed draws on, instead of drawing the same again.
        seed = f"{self.seed} {number} {self._growth.cases}"
        Search(
            self._hunt.strategy, executor, self.take, self.shrink_found,
            seed=seed, database=self.database,
        ).run()  # fmt: skip

    def _shrink(self) -> None:
        """Shrink what is found until the search is over and nothing is left."""
        shrinker = None
        while True:
            try:
                found = self._shrinking.get(timeout=0.2)
            except queue.Empty:
                if self._over.is_set():
                    return
                continue
            if shrinker is None:
                shrinker = Shrinker(
                    self._hunt.strategy, self._hunt.kernel, self._judged(), self.database
                )
            result, is_minimal = shrinker.shrink(found, self._budget.shrink_seconds)
            entry = Entry(result, is_minimal, self._hunt.options)
            path = self._corpus.add(entry)
            with self._lock:
                self._minimal[signature_of(found).kind] = entry
            word = "minimal" if is_minimal else "smallest in the time given"
            self._progress.tell(f"{word}: {path}\n  {result.reason}")

    def _judged(self) -> Callable[[Case], Answer]:
        """Runs cases of the shrinker, each once; they are no cases of the search."""
        executor = self._executor()
        return lambda case: self._bad.get(case.id) or executor.run(case)

    def _executor(self) -> Executor:
        executor = self._hunt.executor()
        with self._lock:
            self._executors.append(executor)
        return executor

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        """Run a thread's work; what it raises ends the campaign."""
        try:
            work(*arguments)
        except _Over:
            return
        except BaseException as error:
            # A worker that is ended in mid-case fails, as it should.
            if not self._ended.is_set() or isinstance(error, StorageError):
                self._error = self._error or error
            self._over.set()

    def _wait(self, threads: Iterable[threading.Thread]) -> None:
        """Wait for the end; a thread that is waited for without a limit would hold up Ctrl-C."""
        while not self._over.wait(timeout=0.5):
            if self._seconds_left() <= 0 or not any(thread.is_alive() for thread in threads):
                self._over.set()

    def _end(self, searches: Iterable[threading.Thread], shrinker: threading.Thread | None) -> None:
        """Let the shrinker finish, if it is given, then end all workers and threads."""
        self._over.set()
        try:
            while shrinker is not None and shrinker.is_alive() and self._error is None:
                shrinker.join(timeout=0.5)
        except KeyboardInterrupt:
            self._progress.tell("interrupted: the smallest failures so far are kept")
        self._ended.set()
        with self._lock:
            executors = list(self._executors)
        for executor in executors:
            executor.close()
        for thread in searches:
            thread.join(timeout=10)

    def _measure(self) -> None:
        """Write down how far the campaign is; the last such line counts."""
        self._measured = time.monotonic()
        self._records.measure(
            Measurement(
                self._hunt.kernel_name,
                "fuzz",
                f"{self._hunt.name} seed {self.seed}",
                float(self._growth.cases),
                "cases",
                {
                    "cases": self._growth.cases,
                    "findings": len(self._found),
                    "first_finding_seconds": self._first_found,
                    "seconds": round(self._before + self._measured - self._started, 1),
                    "growth": self._growth.points(),
                    "instructions": self._growth.instructions,
                    **self._growth.counts(),
                },
            )
        )

    def _code(self, interrupted: bool) -> int:
        if isinstance(self._error, StorageError):
            self._progress.tell(f"stopped: {self._error}")
            return STORAGE_FULL
        if self._error is not None and not isinstance(self._error, KeyboardInterrupt):
            raise self._error
        if interrupted:
            return INTERRUPTED
        return FOUND if self._found else NOTHING_FOUND
