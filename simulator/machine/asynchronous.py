"""Work that proceeds beside the warps: bulk copies, MMAs, and the arrivals that announce their end.

Each engine (the tensor core of a CTA, one bulk copy) completes its own work in order; between
engines any order is legal, and the policy chooses.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from simulator.errors import Location, SimulationError, SimulatorBug
from simulator.events import Observer


@dataclass(frozen=True)
class Engine:
    """An engine that a warp waits for."""

    name: Hashable

    def describe(self) -> str:
        """The engine in words."""
        return f"the {self.name}"


@dataclass(frozen=True)
class _Work:
    number: int
    action: Callable[[], None]
    location: Location
    agent: Hashable
    token: object


class Asynchronous:
    """The pending asynchronous work of one cluster.

    ``completion`` is ``eager`` (at once), ``late`` (only when asked by ``complete_one``),
    ``random`` (``step`` draws) or ``chosen`` (by ``complete``). ``submitted`` and ``completed``
    count.
    """

    def __init__(self, completion: str, rng: random.Random) -> None:
        self._completion = completion
        self._rng = rng
        self._queues: dict[Hashable, deque[_Work]] = {}
        self.observer: Observer | None = None
        self.submitted = 0
        self.completed = 0

    @property
    def is_eager(self) -> bool:
        """Whether work completes at once."""
        return self._completion == "eager"

    @property
    def pending(self) -> int:
        """How many pieces of work have been submitted and are not complete."""
        return self.submitted - self.completed

    def submit(
        self,
        engine: Hashable,
        action: Callable[[], None],
        location: Location,
        agent: Hashable | None = None,
    ) -> None:
        """Issue work to an engine; ``location`` is that of the issuing instruction.

        ``agent`` names what does the work to the observer, by default the engine.
        """
        self.submitted += 1
        agent = engine if agent is None else agent
        token = None if self.observer is None else self.observer.issue(agent)
        work = _Work(self.submitted, action, location, agent, token)
        if self._completion == "eager":
            self._run(work)
        else:
            self._queues.setdefault(engine, deque()).append(work)

    def owes(self, engine: Hashable, ticket: int) -> bool:
        """Whether an engine has yet to complete work from when ``submitted`` was ``ticket``."""
        return engine in self._queues and self._queues[engine][0].number <= ticket

    def engine(self, engine: Hashable) -> Engine:
        """The engine as something to wait for."""
        return Engine(engine)

    def step(self) -> None:
        """Let each engine complete work with even odds, if the policy is random."""
        if self._completion != "random":
            return
        for engine in list(self._queues):
            while engine in self._queues and self._rng.random() < 0.5:
                self._pop(engine)

    def complete_one(self) -> bool:
        """Complete one piece of work, of a random engine; False if none is pending."""
        if not self._queues:
            return False
        self._pop(self._rng.choice(list(self._queues)))
        return True

    @property
    def engines(self) -> list[Hashable]:
        """The engines with pending work, the one that has waited longest first."""
        return list(self._queues)

    def complete(self, engine: Hashable) -> None:
        """Complete the first piece of work of an engine that has some."""
        self._pop(engine)

    def _pop(self, engine: Hashable) -> None:
        queue = self._queues[engine]
        work = queue.popleft()
        if not queue:
            del self._queues[engine]
        self._run(work)

    def _run(self, work: _Work) -> None:
        """Do the work; an error in it belongs to the instruction that issued it."""
        if self.observer is not None:
            self.observer.begin(work.agent, work.token, work.location)
        try:
            work.action()
        except SimulationError as error:
            error.locate(**work.location.__dict__)
            raise
        except Exception as error:
            raise SimulatorBug(f"{type(error).__name__}: {error}", work.location) from error
        if self.observer is not None:
            self.observer.end()
        self.completed += 1
