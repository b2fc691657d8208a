"""Vector clocks: what each agent knows of the others' progress.

An agent is whatever runs by itself: a warp, the tensor core of a CTA, a bulk copy. A clock is an
array of counters, one an agent; an access with counter c of agent a happened before an agent whose
clock holds at least c for a. Source: Mattern, "Virtual Time and Global States", 1988; the counters
advance as in FastTrack (Flanagan and Freund, 2009): at each release, not at each access.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

Clock = npt.NDArray[np.int32]


class Clocks:
    """The clocks of the agents that have appeared so far; at most ``capacity`` agents."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.names: list[Hashable] = []
        self._numbers: dict[Hashable, int] = {}
        self._clocks: list[Clock] = []

    def number(self, agent: Hashable) -> int:
        """The agent's number, given when it first appears."""
        found = self._numbers.get(agent)
        if found is None:
            found = self._numbers[agent] = len(self.names)
            if found >= self.capacity:
                raise OverflowError(f"more than {self.capacity} agents")
            self.names.append(agent)
            clock = np.zeros(self.capacity, np.int32)
            clock[found] = 1
            self._clocks.append(clock)
        return found

    def of(self, number: int) -> Clock:
        """What an agent knows; changed in place by ``acquire`` and ``advance``."""
        return self._clocks[number]

    def acquire(self, number: int, other: Clock | None) -> None:
        """From now on the agent knows what ``other`` says."""
        if other is not None:
            np.maximum(self._clocks[number], other, out=self._clocks[number])

    def advance(self, number: int) -> Clock:
        """A copy of the agent's clock for a release; what it does next is not part of it."""
        clock = self._clocks[number]
        released = clock.copy()
        clock[number] += 1
        return released


def joined(first: Clock | None, second: Clock) -> Clock:
    """What both say together."""
    return second.copy() if first is None else np.maximum(first, second)


class History:
    """The last accesses to each of ``size`` granules of a memory.

    Of writes the last one is kept, of reads the last one by each agent that reads at all: with
    vector clocks that is enough to find a race for every unordered pair.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._writer: npt.NDArray[np.int16] = np.full(size, -1, np.int16)
        self._write_stamp: npt.NDArray[np.int32] = np.zeros(size, np.int32)
        self._write_site: npt.NDArray[np.int32] = np.zeros(size, np.int32)
        self._reads: dict[int, tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]] = {}

    def read(
        self, where: Any, number: int, clock: Clock, stamp: int, site: int
    ) -> tuple[int, int] | None:
        """Note a read; the (agent, site) of a write that is not ordered before it, if any.

        ``clock`` is what the reader knows, ``stamp`` the counter by which others know the read.
        """
        conflict = self._unordered_write(where, clock)
        if number not in self._reads:
            self._reads[number] = (np.zeros(self._size, np.int32), np.zeros(self._size, np.int32))
        stamps, sites = self._reads[number]
        stamps[where] = stamp
        sites[where] = site
        return conflict

    def write(
        self, where: Any, number: int, clock: Clock, stamp: int, site: int
    ) -> tuple[int, int] | None:
        """Note a write; the (agent, site) of an access that is not ordered before it, if any."""
        conflict = self._unordered_write(where, clock) or self._unordered_read(where, clock)
        self._writer[where] = number
        self._write_stamp[where] = stamp
        self._write_site[where] = site
        return conflict

    def _unordered_write(self, where: Any, clock: Clock) -> tuple[int, int] | None:
        writers = self._writer[where]
        late = (writers >= 0) & (self._write_stamp[where] > clock[writers])
        if not late.any():
            return None
        first = int(np.argmax(late))
        return int(writers[first]), int(self._write_site[where][first])

    def _unordered_read(self, where: Any, clock: Clock) -> tuple[int, int] | None:
        for reader, (stamps, sites) in self._reads.items():
            late = stamps[where] > clock[reader]
            if late.any():
                return reader, int(sites[where][int(np.argmax(late))])
        return None
