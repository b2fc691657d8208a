"""One worker's search: byte buffers that hypothesis reads cases from, kept if they reach more.

Two ways take turns. **Exploring** changes buffers of the pool and feeds them to `fuzz_one_input`; a
buffer whose case reaches a block, an edge, a plan or a ratio that none had reached joins the pool.
**Climbing** lets hypothesis draw, with the ratio of error and bound as its `target`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Protocol

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.database import ExampleDatabase
from hypothesis.strategies import SearchStrategy

from fuzz.faults import Fault, fault_of, signature_of
from fuzz.jobs import Answer
from reports.records import Case

BUFFER_BYTES = 512  # more than any case takes
EXPLORE, CLIMB = 60, 20  # cases of a turn
FRESH = 0.25  # of the buffers are drawn anew
MOST_CHANGES = 4
SEEDS_KEY = b"buffers that reached something new"


class Executor(Protocol):
    """What runs a case somewhere else."""

    def run(self, case: Case) -> Answer:
        """How the case ends."""

    def close(self) -> None:
        """End it, with the case that it is at."""


Take = Callable[[Answer], bool]
"""Told each answer as it comes; says whether it reached something new."""


class Search:
    """Searches with one executor. ``take`` raises what ends the search.

    ``failed`` is called when the buffer of a case that failed is in the database.
    """

    def __init__(
        self,
        strategy: SearchStrategy[Case],
        executor: Executor,
        take: Take,
        failed: Callable[[], None] = lambda: None,
        *,
        seed: str,
        database: ExampleDatabase,
    ) -> None:
        self._executor = executor
        self._take = take
        self._failed = failed
        self._rng = random.Random(seed)
        self._database = database
        self._is_new = False
        self._pool: list[bytes] = []
        self._strategy = strategy
        judged = holds(strategy, self._judge, database, (Phase.generate, Phase.target), CLIMB)
        self._climb = judged
        self._feed = judged.hypothesis.fuzz_one_input  # type: ignore[attr-defined]

    def run(self) -> None:
        """Search until ``take`` raises."""
        for _ in self.turns():
            pass

    def turns(self) -> Iterator[None]:
        """Search, a case or a climb at a time, without end; buffers that were kept come first."""
        for buffer in sorted(self._database.fetch(SEEDS_KEY), key=lambda b: (len(b), b)):
            self.explore(buffer)
            yield
        while True:
            for _ in range(EXPLORE):
                self.explore(self._next())
                yield
            self._climb_once()
            yield

    def explore(self, buffer: bytes) -> None:
        """Judge the case in a buffer, and keep the buffer if that reached something new."""
        self._is_new = False
        try:
            kept = self._feed(buffer)
        except Fault:
            self._failed()
            return
        if kept and self._is_new:
            self._pool.append(kept)
            self._database.save(SEEDS_KEY, kept)

    def _climb_once(self) -> None:
        try:
            hypothesis.seed(self._rng.getrandbits(64))(self._climb)()
        except Fault:
            self._failed()

    def _judge(self, case: Case) -> None:
        answer = self._executor.run(case)
        self._is_new = self._take(answer)
        ratio = answer.result.ratio
        if ratio is not None and math.isfinite(ratio):
            hypothesis.target(ratio, label="error over bound")
        if answer.result.is_bad:
            raise fault_of(signature_of(answer.result).kind)(case.id)

    def _next(self) -> bytes:
        """A buffer: fresh, or one of the pool with a few changes and a fresh end."""
        if not self._pool or self._rng.random() < FRESH:
            return self._rng.randbytes(BUFFER_BYTES)
        buffer = bytearray(self._rng.choice(self._pool))
        for _ in range(self._rng.randint(1, MOST_CHANGES)):
            self._change(buffer)
        return bytes(buffer) + self._rng.randbytes(BUFFER_BYTES - len(buffer))

    def _change(self, buffer: bytearray) -> None:
        """Change a byte, a bit, a length, or take a stretch from another buffer."""
        at = self._rng.randrange(len(buffer))
        match self._rng.randrange(4):
            case 0:
                buffer[at] = self._rng.randrange(256)
            case 1:
                buffer[at] ^= 1 << self._rng.randrange(8)
            case 2:
                other = self._rng.choice(self._pool)
                end = at + self._rng.randint(1, 8)
                buffer[at:end] = other[at:end]
            case _:
                del buffer[at + 1 :]


def holds(
    strategy: SearchStrategy[Case],
    judge: Callable[[Case], None],
    database: ExampleDatabase | None,
    phases: tuple[Phase, ...],
    most: int,
) -> Callable[[], None]:
    """The hypothesis test that ``judge`` raises for no case; all share its key in a database."""

    @settings(
        max_examples=most,
        database=database,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=phases,
        suppress_health_check=tuple(HealthCheck),
    )
    @given(strategy)
    def every_case_holds(case: Case) -> None:
        judge(case)

    test: Callable[[], None] = every_case_holds
    return test
