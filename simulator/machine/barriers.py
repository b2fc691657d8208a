"""The three kinds of barrier: mbarrier objects, named barriers of a CTA, and the cluster barrier.

Source: PTX ISA, "Parallel Synchronization and Communication Instructions", mbarrier, barrier{.cta}
and barrier.cluster.
"""

from __future__ import annotations

from collections.abc import Callable

from simulator.errors import ProtocolError

MAX_COUNT = (1 << 20) - 1
"""The largest arrival count of an mbarrier (PTX ISA, "Phase of the mbarrier object")."""


class Mbarrier:
    """An mbarrier object: a phase ends when no arrival is pending and ``tx`` is zero.

    ``tx`` counts bytes still expected; it goes below zero when data arrive before they are expected,
    as happens to the even CTA of a pair. ``on_phase`` is called when a phase ends.
    """

    __slots__ = ("expected", "name", "on_phase", "pending", "phase", "tx")

    def __init__(self, name: str, expected: int, on_phase: Callable[[], None]) -> None:
        if not 1 <= expected <= MAX_COUNT:
            raise ProtocolError(f"mbarrier {name}: count {expected} is not in 1..{MAX_COUNT}")
        self.name = name
        self.expected = expected
        self.pending = expected
        self.tx = 0
        self.phase = 0
        self.on_phase = on_phase

    def arrive(self, count: int = 1) -> None:
        """``count`` arrivals; ``ProtocolError`` if the phase does not await so many."""
        if count > self.pending:
            raise ProtocolError(f"{count} arrival(s) at {self.describe()}: more than are pending")
        self.pending -= count
        self._settle()

    def expect_tx(self, byte_count: int) -> None:
        """The current phase waits for ``byte_count`` more bytes."""
        self.tx += byte_count
        self._settle()

    def complete_tx(self, byte_count: int) -> None:
        """``byte_count`` bytes have arrived."""
        self.tx -= byte_count
        self._settle()

    def passed(self, parity: int) -> bool:
        """Whether the phase of this parity has ended: true at once for parity 1 of a fresh barrier."""
        return (self.phase & 1) != parity & 1

    def describe(self) -> str:
        """The state in words."""
        return (
            f"mbarrier {self.name} in phase {self.phase} "
            f"({self.pending} of {self.expected} arrivals pending, {self.tx} bytes expected)"
        )

    def _settle(self) -> None:
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.pending = self.expected
            self.on_phase()


class NamedBarrier:
    """One of a CTA's sixteen barriers; ``generation`` counts how often it has opened."""

    __slots__ = ("arrived", "awaited", "generation", "name", "on_open")

    def __init__(self, name: str, on_open: Callable[[], None]) -> None:
        self.name = name
        self.arrived = 0
        self.awaited: int | None = None
        self.generation = 0
        self.on_open = on_open

    def arrive(self, threads: int, awaited: int) -> int:
        """Count ``threads`` in; the generation to wait for. All must await the same number."""
        if self.awaited not in (None, awaited):
            raise ProtocolError(
                f"barrier {self.name}: some threads await {self.awaited} threads, others {awaited}"
            )
        self.awaited = awaited
        self.arrived += threads
        ticket = self.generation
        if self.arrived > awaited:
            raise ProtocolError(f"{self.arrived} threads at {self.describe()}")
        if self.arrived == awaited:
            self.arrived, self.awaited = 0, None
            self.generation += 1
            self.on_open()
        return ticket

    def opened(self, ticket: int) -> bool:
        """Whether the barrier has opened since ``ticket`` was drawn."""
        return self.generation > ticket

    def describe(self) -> str:
        """The state in words."""
        return f"barrier {self.name} ({self.arrived} of {self.awaited} threads have arrived)"


class ClusterBarrier:
    """``barrier.cluster``: opens when every thread of the cluster that has not exited has arrived."""

    def __init__(self, threads: int, on_open: Callable[[], None]) -> None:
        self.threads = threads
        self.arrived = 0
        self.generation = 0
        self.on_open = on_open

    def arrive(self, threads: int) -> int:
        """Count ``threads`` in; the generation to wait for."""
        ticket = self.generation
        self.arrived += threads
        self._settle()
        return ticket

    def exit(self, threads: int) -> None:
        """``threads`` leave the kernel and are awaited no more."""
        self.threads -= threads
        self._settle()

    def opened(self, ticket: int) -> bool:
        """Whether the barrier has opened since ``ticket`` was drawn."""
        return self.generation > ticket

    def describe(self) -> str:
        """The state in words."""
        return f"the cluster barrier ({self.arrived} of {self.threads} threads have arrived)"

    def _settle(self) -> None:
        if self.arrived and self.arrived >= self.threads:
            self.arrived = 0
            self.generation += 1
            self.on_open()
