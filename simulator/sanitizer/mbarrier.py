"""mbarriers: what an mbarrier object may be used for while it lives.

Three rules of the PTX ISA, 9.7.13.15 mbarrier, that no count inside the object can show:

* Nothing but mbarrier operations may touch the bytes of a live object.
* Someone must have seen a phase end before anybody arrives in the next one ("Phase of the mbarrier
  object": at least one test_wait or try_wait returns true before an arrive-on of the next phase).
* A wait is for the current phase or the one before. Once two phases have ended, the parity that a
  waiter asks about means another phase than the one it wants: it was lapped.

Whatever a count does show (an object never made, too many arrivals, bytes that nobody expected or
that never came) is always an error: see ``simulator.machine.barriers``. Arrivals that are still
pending when the kernel ends are legal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.events import GRANULE_BYTES
from simulator.machine.barriers import Mbarrier
from simulator.sanitizer.finding import Access, Findings
from simulator.sanitizer.witness import Witness

_GRANULES = 2
"""An mbarrier object has 8 bytes."""


@dataclass
class _Object:
    """A live object: who made it, the last phase seen to have ended, and what ended the last."""

    barrier: Mbarrier
    place: tuple[int, int]
    made: Access
    seen: int = -1
    ended: Access | None = None


class MbarrierCheck(Witness):
    """Watches the mbarrier objects of one cluster."""

    name = "mbarriers"

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._objects: dict[int, _Object] = {}
        self._owners: dict[int, dict[int, _Object]] = {}
        self._live: dict[int, npt.NDArray[np.bool_]] = {}
        self._asked: dict[tuple[object, int], tuple[int, int]] = {}

    # 1. Its memory

    def initialised(self, barrier: Any, offset: int) -> None:
        """From now on the bytes are the object's."""
        memory = self.warp.cta.shared
        if id(memory) not in self._live:
            self._live[id(memory)] = np.zeros(-(-memory.size // GRANULE_BYTES) + _GRANULES, bool)
        first = offset // GRANULE_BYTES
        made = _Object(barrier, (id(memory), first), self.access("initialisation"))
        self._objects[id(barrier)] = made
        self._live[id(memory)][first : first + _GRANULES] = True
        owners = self._owners.setdefault(id(memory), {})
        owners.update({first + i: made for i in range(_GRANULES)})

    def invalidated(self, barrier: object) -> None:
        """The bytes are free again."""
        memory, first = self._objects.pop(id(barrier)).place
        self._live[memory][first : first + _GRANULES] = False
        self._asked = {key: value for key, value in self._asked.items() if key[1] != id(barrier)}

    def shared_access(self, memory: object, granules: npt.NDArray[np.int64], write: bool) -> None:
        """An access that is no mbarrier operation."""
        live = self._live.get(id(memory))
        if live is None:
            return
        touched = granules[live[granules]]
        if touched.size:
            owner = self._owners[id(memory)][int(touched.reshape(-1)[0])]
            self.note(_TOUCHED, self.access("write" if write else "read"), owner.made)

    # 2. Its phases

    def opened(self, barrier: object) -> None:
        """A phase has ended."""
        found = self._objects.get(id(barrier))
        if found is not None:
            found.ended = self.access("arrival")

    def signalled(self, barrier: Any, step: str) -> None:
        """An arrival needs somebody to have seen the phase before."""
        found = self._objects.get(id(barrier))
        if step == "arrive" and found is not None and found.seen < barrier.phase - 1:
            self.note(_UNSEEN, self.access("arrival"), found.ended)

    def asked(self, barrier: Any, parity: int, over: bool) -> None:
        """A wait, or one more look of it."""
        found = self._objects.get(id(barrier))
        if found is None:
            return
        key = (self.warp, id(barrier))
        before = self._asked.pop(key, None)
        if before is not None and before[0] == parity and barrier.phase >= before[1] + 2:
            self.note(_LAPPED, self.access("wait"), found.ended)
        if over:
            found.seen = barrier.phase - 1
        else:
            self._asked[key] = (parity, barrier.phase)


_TOUCHED = "an access other than by mbarrier operations touches a live mbarrier object"
_UNSEEN = (
    "an arrival at an mbarrier whose phase before has ended without any wait having returned true"
)
_LAPPED = (
    "two phases of an mbarrier have ended since this wait began: its parity no longer means the "
    "phase that it is for"
)
