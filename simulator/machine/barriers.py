"""The three kinds of barrier: mbarrier objects, named barriers of a CTA, and the cluster barrier.

Source: PTX ISA, "Parallel Synchronization and Communication Instructions", mbarrier, barrier{.cta}
and barrier.cluster.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from simulator.errors import ProtocolError
from simulator.events import Observer
from simulator.machine.room import room

MAX_COUNT = (1 << 20) - 1
"""The largest arrival count and tx-count of an mbarrier (PTX ISA, "Contents of the mbarrier")."""


class Mbarrier(ctypes.Structure):
    """An mbarrier object: a phase ends when no arrival is pending and ``tx`` is zero.

    ``tx`` counts bytes still expected; it goes below zero when data arrive before they are
    expected, as happens to the even CTA of a pair. ``on_phase`` is called when a phase ends. The
    counts lie in a C structure, which native code reads and writes too; ``offset`` is where native
    code made the object.
    """

    _fields_ = tuple(
        (field, ctypes.c_int64) for field in ("expected", "pending", "tx", "phase", "offset")
    )
    offset: int
    expected: int
    pending: int
    tx: int
    phase: int

    def __init__(
        self,
        name: str,
        expected: int,
        on_phase: Callable[[], None],
        observer: Observer | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= expected <= MAX_COUNT:
            raise ProtocolError(f"mbarrier {name}: count {expected} is not in 1..{MAX_COUNT}")
        self.name = name
        self.expected = expected
        self.pending = expected
        self.tx = 0
        self.phase = 0
        self.on_phase = on_phase
        self.observer = observer
        self._room: object = None

    @classmethod
    def at(cls, address: int, name: str, on_phase: Callable[[], None], room: object) -> Mbarrier:
        """The object that native code has made at an address, in ``room``."""
        barrier = cls.from_address(address)
        barrier.name, barrier.on_phase, barrier.observer = name, on_phase, None
        barrier._room = room
        return barrier

    def arrive(self, count: int = 1) -> None:
        """``count`` arrivals; ``ProtocolError`` if the phase does not await so many."""
        if count > self.pending:
            raise ProtocolError(f"{count} arrival(s) at {self.describe()}: more than are pending")
        self._signal("arrive")
        self.pending -= count
        self._release()
        self._settle()

    def expect_tx(self, byte_count: int) -> None:
        """The current phase waits for ``byte_count`` more bytes."""
        self._require_room(byte_count)
        self._signal("expect")
        self.tx += byte_count
        self._settle()

    def complete_tx(self, byte_count: int) -> None:
        """``byte_count`` bytes have arrived."""
        self._require_room(-byte_count)
        self._signal("complete")
        self.tx -= byte_count
        self._release()
        self._settle()

    def passed(self, parity: int) -> bool:
        """Whether the phase of this parity has ended; so has that before the first, of parity 1."""
        over = (self.phase & 1) != parity & 1
        if self.observer is not None:
            self.observer.asked(self, parity & 1, over)
            if over:
                self.observer.acquire(self)
        return over

    def _require_room(self, change: int) -> None:
        if abs(self.tx + change) > MAX_COUNT:
            raise ProtocolError(
                f"{self.describe()}: {change:+} bytes leave the range of {MAX_COUNT} bytes"
            )

    def describe(self) -> str:
        """The state in words."""
        return (
            f"mbarrier {self.name} in phase {self.phase} "
            f"({self.pending} of {self.expected} arrivals pending, tx-count {self.tx} bytes)"
        )

    def _signal(self, step: str) -> None:
        if self.observer is not None:
            self.observer.signalled(self, step)

    def _release(self) -> None:
        if self.observer is not None:
            self.observer.release(self)

    def _settle(self) -> None:
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.pending = self.expected
            if self.observer is not None:
                self.observer.opened(self)
            self.on_phase()


def _seen(barrier: NamedBarrier | ClusterBarrier, is_open: bool) -> bool:
    """Tell the observer that the acting warp has found the barrier open, if it has."""
    if is_open and barrier.observer is not None:
        barrier.observer.acquire(barrier)
    return is_open


class MbarrierTable(dict[int, Mbarrier]):
    """The mbarrier objects of a CTA by offset.

    ``addresses`` repeats them for native code: by offset / 8 the object's address, 0 for none. It
    is None while there has been no object.
    """

    def __init__(self, shared_bytes: int) -> None:
        super().__init__()
        self._shared_bytes = shared_bytes
        self.addresses: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None

    def __setitem__(self, offset: int, barrier: Mbarrier) -> None:
        super().__setitem__(offset, barrier)
        if self.addresses is None:
            self.addresses = room(-(-self._shared_bytes // 8), np.int64)
        if offset < self._shared_bytes:
            self.addresses[offset // 8] = ctypes.addressof(barrier)

    def adopt(self, barrier: Mbarrier) -> None:
        """Enter an object that native code has made and has put into ``addresses``."""
        super().__setitem__(barrier.offset, barrier)

    def __delitem__(self, offset: int) -> None:
        super().__delitem__(offset)
        if self.addresses is not None and offset < self._shared_bytes:
            self.addresses[offset // 8] = 0


class NamedBarrier(ctypes.Structure):
    """One of a CTA's sixteen barriers; ``generation`` counts how often it has opened.

    ``awaiting`` is the number of threads awaited, -1 while no thread has arrived; ``everyone`` is 1
    if the last to arrive named no number, so that threads which exit are awaited no more. All this
    lies in a C structure, which native code reads and writes too.
    """

    _fields_ = tuple(
        (field, ctypes.c_int64) for field in ("arrived", "awaiting", "generation", "everyone")
    )
    arrived: int
    awaiting: int
    generation: int
    everyone: int

    def __init__(
        self, name: str, on_open: Callable[[], None], observer: Observer | None = None
    ) -> None:
        super().__init__()
        self.name = name
        self.awaiting = -1
        self.on_open = on_open
        self.observer = observer

    def start(self) -> None:
        """Forget all arrivals."""
        self.arrived, self.awaiting, self.generation, self.everyone = 0, -1, 0, 0

    @property
    def awaited(self) -> int | None:
        """The number of threads awaited; None while no thread has arrived."""
        return None if self.awaiting < 0 else self.awaiting

    def arrive(self, threads: int, awaited: int, *, everyone: bool = False) -> int:
        """Count ``threads`` in; the generation to wait for. All must await the same number."""
        self.everyone = everyone
        if self.awaiting not in (-1, awaited):
            raise ProtocolError(
                f"barrier {self.name}: some threads await {self.awaited} threads, others {awaited}"
            )
        self.awaiting = awaited
        self.arrived += threads
        ticket = self.generation
        if self.arrived > awaited:
            raise ProtocolError(f"{self.arrived} threads at {self.describe()}")
        if self.observer is not None:
            self.observer.release(self)
        if self.arrived == awaited:
            self.arrived, self.awaiting = 0, -1
            self.generation += 1
            if self.observer is not None:
                self.observer.opened(self)
            self.on_open()
        return ticket

    def opened(self, ticket: int) -> bool:
        """Whether the barrier has opened since ``ticket`` was drawn."""
        return _seen(self, self.generation > ticket)

    def excuse(self, threads: int) -> None:
        """``threads`` leave the kernel: if everyone is awaited, they no longer are."""
        if self.everyone and self.awaiting >= 0:
            self.awaiting -= threads
            self.arrive(0, self.awaiting, everyone=True)

    def describe(self) -> str:
        """The state in words."""
        return f"barrier {self.name} ({self.arrived} of {self.awaited} threads have arrived)"


class ClusterBarrier(ctypes.Structure):
    """``barrier.cluster``: opens when all threads of the cluster that have not exited arrived.

    The counts lie in a C structure, which native code reads and writes too.
    """

    _fields_ = tuple((field, ctypes.c_int64) for field in ("threads", "arrived", "generation"))
    threads: int
    arrived: int
    generation: int

    def __init__(
        self, threads: int, on_open: Callable[[], None], observer: Observer | None = None
    ) -> None:
        super().__init__()
        self.threads = threads
        self.on_open = on_open
        self.observer = observer

    def arrive(self, threads: int) -> int:
        """Count ``threads`` in; the generation to wait for."""
        ticket = self.generation
        self.arrived += threads
        if self.observer is not None:
            self.observer.release(self)
        self._settle()
        return ticket

    def exit(self, threads: int, ticket: int | None) -> None:
        """``threads`` leave the kernel and are awaited no more; ``ticket`` if they had arrived."""
        self.threads -= threads
        if ticket is not None and not self.opened(ticket):
            self.arrived -= threads
        self._settle()

    def opened(self, ticket: int) -> bool:
        """Whether the barrier has opened since ``ticket`` was drawn."""
        return _seen(self, self.generation > ticket)

    def describe(self) -> str:
        """The state in words."""
        return f"the cluster barrier ({self.arrived} of {self.threads} threads have arrived)"

    def _settle(self) -> None:
        if self.arrived and self.arrived >= self.threads:
            self.arrived = 0
            self.generation += 1
            if self.observer is not None:
                self.observer.opened(self)
            self.on_open()
