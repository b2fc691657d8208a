"""tensor_order: TMEM by the letter of the PTX memory model, 9.7.16.6 (tcgen05).

It asks what ``races`` asks of TMEM, and beside it that

* ``tcgen05.ld`` is asynchronous: it has read only when the warp has waited for it with
  ``tcgen05.wait::ld`` (9.7.16.8.5);
* between threads, a barrier orders tcgen05 operations only with ``tcgen05.fence`` (9.7.16.11): one
  of ``before_thread_sync`` between the loads and stores of a thread and its arrival, and one of
  ``after_thread_sync`` between the wait of a thread and its operations. ``tcgen05.commit`` arrives
  without the first.

Many public kernels leave these out and are right all the same: ptxas keeps track of the registers
that a load writes, and operations are issued in order. So this check is in the preset ``all`` only.
"""

from __future__ import annotations

import numpy as np

from simulator.events import Observer
from simulator.machine.warp import Mask
from simulator.sanitizer.clocks import Clock
from simulator.sanitizer.finding import Findings
from simulator.sanitizer.race import RaceCheck


class TensorOrderCheck(RaceCheck):
    """Watches the TMEM of one cluster."""

    name = "tensor_order"
    sentence = "no wait or fence of tcgen05 orders two accesses to {}"
    waited_for = (False, True)

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._after: dict[int, Clock] = {}  # what a warp knew at its last fence after a wait
        self._before: dict[int, Clock] = {}  # and at its last fence before an arrival

    shared_access = Observer.shared_access
    initialised = Observer.initialised
    signalled = Observer.signalled
    exited = Observer.exited

    def fenced(self, fence: str, mask: Mask | None) -> None:
        """What the warp has learnt orders its operations, or what it has done can be told."""
        known = self._clocks.of(self._warp_number).copy()
        if fence == "tcgen05.fence::after_thread_sync":
            self._after[self._warp_number] = known
        elif fence == "tcgen05.fence::before_thread_sync":
            self._before[self._warp_number] = known

    def _usable(self, known: Clock) -> Clock:
        fenced = self._after.get(self._warp_number)
        usable = np.zeros_like(known) if fenced is None else fenced.copy()
        own = self._own()
        usable[own] = known[own]
        return usable

    def _told(self, known: Clock) -> Clock:
        fenced = self._before.get(self._warp_number)
        transfers = self._own()[1:]
        known[transfers] = 0 if fenced is None else fenced[transfers]
        return known

    def _own(self) -> list[int]:
        """The numbers of the acting warp, of its loads and of its stores."""
        names = (self._tensor_engine(name) for name in ("tcgen05.ld", "tcgen05.st"))
        return [self._warp_number, *(self._clocks.number(name) for name in names)]
