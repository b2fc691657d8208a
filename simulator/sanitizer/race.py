"""races: accesses to shared memory and TMEM that nothing orders, by happens-before.

Two accesses to the same granule race if at least one writes and neither happens before the other.
What orders: the program order of a warp; an arrival and a wait that sees the phase it ended; the
barriers of CTA and cluster; the issue of asynchronous work before that work, and the work before
what waits for its arrival. An asynchronous operation knows what its issuer knew when it issued.
``tcgen05.st`` is asynchronous too, and done when the warp has waited for it with ``tcgen05.wait``;
``tcgen05.ld`` is taken as done at once: ``tensor_order`` is stricter.

Ends are accesses as well. Freed TMEM columns, and the shared memory and mbarrier objects of a CTA
of which all threads have exited, are somebody else's from then on: whatever still uses them then
must have been waited for. This is what the waits at the end of a kernel are for.

A report does not mean that the output is wrong in this run, nor under the timing of a device: it
means that the program does not forbid the other order. Global memory is for
``global_races``.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simulator.errors import Location
from simulator.machine.tensor_memory import COLUMNS, LANES
from simulator.machine.warp import Warp
from simulator.sanitizer.clocks import Clock, Clocks, History, joined
from simulator.sanitizer.finding import Access, Check, Finding, Findings

if TYPE_CHECKING:
    from simulator.machine.cluster import Cta

_AGENTS = 1024
_TENSOR_GRANULES = LANES // 16 * COLUMNS


_HOW = ("read", "write", "write that frees it", "write that ends it")
_READ, _WRITE, _FREES, _ENDS = range(4)
_MANY = 256
"""Granules, in place of which it pays to look at all of the memory."""
_TRANSFER = {False: "tcgen05.ld", True: "tcgen05.st"}


def _in_order(granules: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """The granules in order, each once; of many, by marking them, which is quicker than sorting."""
    if granules.size < _MANY:
        return np.unique(granules)
    marked = np.zeros(size, bool)
    marked[granules] = True
    return np.flatnonzero(marked)


def line_of(location: Location) -> Location:
    """The place in the program alone: the agent is named beside it."""
    return Location(location.kernel, location.ptx_line, location.ptx_text, location.source)


@dataclass(frozen=True)
class _Actor:
    """Who acts: its number, what it knows, and the counter that its accesses carry."""

    number: int
    clock: Clock
    stamp: int
    location: Location | None


@dataclass(frozen=True)
class _Issue:
    """The number of a piece of work in its cluster, and what its issuer knew."""

    ticket: int
    clock: Clock


class RaceCheck(Check):
    """Watches one cluster; finds each pair of program lines once."""

    name = "races"
    sentence = "nothing orders two accesses to {}"
    waited_for: tuple[bool, ...] = (True,)
    """Which accesses of warps to TMEM are asynchronous, by whether they write."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._clocks = Clocks(_AGENTS)
        self._issued = 0
        self._tickets: dict[int, list[int]] = {}  # of an engine's work, in the order it was done
        self._histories: dict[tuple[str, int], History] = {}
        self._pending: dict[int, Clock] = {}
        self._open: dict[int, Clock] = {}
        self._kept: list[object] = []  # barriers, so that their identities stay theirs
        self._sites: dict[int, Location] = {}
        self._places: dict[int, tuple[Any, int]] = {}  # of mbarriers: the memory, and where
        self._warp: Warp | None = None
        self._warp_number = -1
        self._engine: _Actor | None = None

    # 1. Who acts

    def turn(self, warp: Warp) -> None:
        """The warp acts."""
        self._warp = warp
        self._warp_number = self._clocks.number(f"warp {warp.rank} of cta {warp.cta.rank}")

    def issue(self, engine: Hashable) -> _Issue:
        """What the issuing warp knows; what it does next is not ordered before the work."""
        self._issued += 1
        return _Issue(self._issued, self._usable(self._clocks.advance(self._warp_number)))

    def begin(self, engine: Hashable, token: _Issue, location: Location) -> None:
        """The engine acts, knowing what its issuer knew and, if it works in order, its own past."""
        number, clock = self._clocks.number(engine), token.clock
        tickets = self._tickets.setdefault(number, [])
        tickets.append(token.ticket)
        stamp = len(tickets)
        if not str(engine).startswith("bulk loads"):
            self._clocks.acquire(number, clock)
            clock = self._clocks.of(number)
            clock[number] = stamp
        self._engine = _Actor(number, clock, stamp, location)

    def end(self) -> None:
        """The warp acts again."""
        self._engine = None

    def _actor(self) -> _Actor:
        if self._engine is not None:
            return self._engine
        clock = self._clocks.of(self._warp_number)
        return _Actor(self._warp_number, clock, int(clock[self._warp_number]), None)

    # 2. What it knows of the others

    def release(self, barrier: object) -> None:
        """The barrier's next phase will carry what the actor knows, and what it has done."""
        if id(barrier) not in self._pending and id(barrier) not in self._open:
            self._kept.append(barrier)
        if self._engine is not None:
            known = self._engine.clock.copy()
            known[self._engine.number] = max(known[self._engine.number], self._engine.stamp)
        else:
            known = self._told(self._clocks.advance(self._warp_number))
        self._pending[id(barrier)] = joined(self._pending.get(id(barrier)), known)

    def opened(self, barrier: object) -> None:
        """What was released can be acquired."""
        released = self._pending.pop(id(barrier), None)
        if released is not None:
            self._open[id(barrier)] = joined(self._open.get(id(barrier)), released)

    def acquire(self, barrier: object) -> None:
        """The warp knows what was released before the phase ended."""
        self._clocks.acquire(self._warp_number, self._open.get(id(barrier)))

    def joined(self, engine: Hashable, ticket: int | None, is_read: bool) -> None:
        """The warp knows what its engine has done of the work up to ``ticket``."""
        if ticket is None:
            number = self._clocks.number(self._tensor_engine(str(engine)))
            self._clocks.acquire(self._warp_number, self._clocks.of(number))
            return
        number, known = self._clocks.number(engine), self._clocks.of(self._warp_number)
        done = bisect.bisect_right(self._tickets.get(number, []), ticket)
        known[number] = max(known[number], done)

    def _tensor_engine(self, name: str) -> str:
        assert self._warp is not None
        return f"{name} of warp {self._warp.rank} of cta {self._warp.cta.rank}"

    def _usable(self, known: Clock) -> Clock:
        """What orders the acting warp's tcgen05 operations, of what the warp knows."""
        return known

    def _told(self, known: Clock) -> Clock:
        """What an arrival of the acting warp tells, of what the warp knows."""
        return known

    # 3. What it touches

    def shared_access(self, memory: Any, granules: npt.NDArray[np.int64], write: bool) -> None:
        """An access to shared memory."""
        size = memory.size // 4 + 1
        history, where = self._history("shared memory", memory, size), _in_order(granules, size)
        self._check("shared memory", history, where, write, self._actor())

    def tensor_access(self, memory: Any, granules: npt.NDArray[np.int64], write: bool) -> None:
        """An access to TMEM; those of a warp are done only when it has waited for them."""
        actor = self._actor()
        if self._engine is None and write in self.waited_for:
            number = self._clocks.number(self._tensor_engine(_TRANSFER[write]))
            self._clocks.acquire(number, self._usable(self._clocks.of(self._warp_number)))
            clock = self._clocks.of(number)
            clock[number] += 1
            actor = _Actor(number, clock, int(clock[number]), None)
        history = self._history("TMEM", memory, _TENSOR_GRANULES)
        self._check("TMEM", history, granules, write, actor)

    def initialised(self, barrier: object, offset: int) -> None:
        """An mbarrier object has a place."""
        assert self._warp is not None
        self._kept.append(barrier)
        self._places[id(barrier)] = (self._warp.cta.shared, offset // 8)

    def signalled(self, barrier: object, step: str) -> None:
        """An access to an mbarrier object; such accesses race with the end of its CTA alone."""
        memory, place = self._places[id(barrier)]
        history = self._history("an mbarrier", memory, memory.size // 8 + 1)
        self._check("an mbarrier", history, np.array([place]), _READ, self._actor())

    # 4. What ends

    def deallocated(self, memory: Any, column: int, columns: int) -> None:
        """Every use of the columns must come before."""
        halves = np.arange(LANES // 16)[:, None] * COLUMNS
        granules = (halves + np.arange(column, column + columns)).ravel()
        history = self._history("TMEM", memory, _TENSOR_GRANULES)
        self._check("TMEM", history, granules, _FREES, self._actor())

    def exited(self, cta: Cta) -> None:
        """Every use of the CTA's shared memory and mbarriers must come before."""
        number = self._clocks.number(f"exit of cta {cta.rank}")
        for warp in cta.warps:
            name = f"warp {warp.rank} of cta {cta.rank}"
            self._clocks.acquire(number, self._clocks.of(self._clocks.number(name)))
        actor = _Actor(number, self._clocks.of(number), 1, self._warp_location())
        for kind, item_bytes in (("shared memory", 4), ("an mbarrier", 8)):
            history = self._history(kind, cta.shared, cta.shared.size // item_bytes + 1)
            self._check(kind, history, slice(None), _ENDS, actor)

    def _history(self, kind: str, memory: object, size: int) -> History:
        key = (kind, id(memory))
        if key not in self._histories:
            self._histories[key] = History(size)
        return self._histories[key]

    def _check(self, kind: str, history: History, where: Any, how: int, actor: _Actor) -> None:
        location = actor.location or self._warp_location()
        site = len(_HOW) * (location.ptx_line or 0) + how
        self._sites.setdefault(site, location)
        note = history.read if how == _READ else history.write
        conflict = note(where, actor.number, actor.clock, actor.stamp, site)
        if conflict is None:
            return
        other, other_site = conflict
        first, names, before = self._sites[other_site], self._clocks.names, other_site % len(_HOW)

        def finding() -> Finding:
            later = Access(str(names[actor.number]), _HOW[how], line_of(location))
            earlier = Access(str(names[other]), _HOW[before], line_of(first))
            return Finding(self.name, self.sentence.format(kind), later, earlier)

        places = [(place.ptx_line, place.source) for place in (location, first)]
        self.findings.note((self.name, kind, how, before, *places), finding)

    def _warp_location(self) -> Location:
        assert self._warp is not None
        return self._warp.cta.cluster.site(self._warp)
