"""named_barriers: a warp that arrives twice at a barrier of its CTA before it opens.

The count of ``bar.sync`` and ``bar.arrive`` is that of the threads which take part; a warp that
comes a second time is counted as if it were another one, and opens the barrier for some who have
not been waited for. PTX ISA, 9.7.13.1 bar, barrier: a warp must be kept from executing more barrier
instructions than intended before the barrier is reset.

Counts that differ or are no multiple of 32, and more threads than awaited, are always errors; a
barrier that waits for warps which have exited shows as a deadlock. A barrier at which some have
arrived when the CTA ends is legal.
"""

from __future__ import annotations

from simulator.machine.barriers import NamedBarrier
from simulator.machine.warp import Warp
from simulator.sanitizer.finding import Access, Findings
from simulator.sanitizer.witness import Witness


class NamedBarrierCheck(Witness):
    """Watches the named barriers of one cluster."""

    name = "named_barriers"

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._arrived: dict[int, dict[Warp, Access]] = {}
        self._counts: dict[int, int] = {}

    def release(self, barrier: object) -> None:
        """Threads arrive; those that only leave the kernel do not change the count."""
        if not isinstance(barrier, NamedBarrier):
            return
        if barrier.arrived == self._counts.get(id(barrier), 0):
            return
        self._counts[id(barrier)] = barrier.arrived
        arrived = self._arrived.setdefault(id(barrier), {})
        here = self.access("arrival")
        if self.warp in arrived:
            self.note(_TWICE, here, arrived[self.warp])
        arrived[self.warp] = here

    def opened(self, barrier: object) -> None:
        """All have arrived; the barrier begins anew."""
        self._arrived.pop(id(barrier), None)
        self._counts.pop(id(barrier), None)


_TWICE = "a warp arrives at a barrier a second time before the barrier has opened"
