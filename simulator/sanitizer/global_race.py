"""global_races: accesses to global memory that nothing orders, in a cluster and between clusters.

Inside a cluster it asks what ``races`` asks of shared memory, byte by byte. A bulk store has
written only when its group was waited for without ``.read``.

Clusters of a grid run in any order and at any time, so what one of them writes no other may touch,
unless a flag lies between: a strong read (``relaxed``, ``acquire``, ``volatile``) of what the other
has written strongly. Strong accesses race with nothing here, and a flag orders all that its writer
has done before; whether fences make it do so is not asked (PTX ISA, 8 Memory Consistency Model).

What other grids do is for ``grid_order``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.events import Observer
from simulator.sanitizer.clocks import Clock, History, joined
from simulator.sanitizer.finding import Access, Finding, Findings
from simulator.sanitizer.race import RaceCheck, line_of

_PAGE_BYTES = 4096
_NOBODY, _SEVERAL = -1, -2
_STRONG = re.compile(r"\.(relaxed|acquire|release|volatile)\b|^(atom|red)\b")
_HOW = {False: "read", True: "write"}


def _marks(value: int) -> npt.NDArray[np.int32]:
    return np.full(_PAGE_BYTES, value, np.int32)


@dataclass
class _Page:
    """For each byte the cluster that wrote it and the one that read it, and where."""

    cluster: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]] = field(
        default_factory=lambda: (_marks(_NOBODY), _marks(_NOBODY))
    )
    site: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]] = field(
        default_factory=lambda: (_marks(0), _marks(0))
    )


@dataclass
class Grid:
    """What the clusters of one launch have touched and flagged, and how many there are so far."""

    clusters: int = 0
    pages: dict[int, _Page] = field(default_factory=dict)
    sites: list[Access] = field(default_factory=list)
    numbers: dict[tuple[int, bool], int] = field(default_factory=dict)
    flags: dict[int, set[int]] = field(default_factory=dict)  # address: clusters that it orders


class GlobalRaceCheck(RaceCheck):
    """Watches the global accesses of one cluster, and those of the clusters before it."""

    name = "global_races"

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._grid = findings.of_launch(Grid)
        self._number = self._grid.clusters
        self._grid.clusters += 1
        self._pages: dict[int, History] = {}
        self._flags: dict[int, Clock] = {}
        self._seen: set[int] = {self._number}  # clusters that a flag orders before this one

    shared_access = Observer.shared_access
    tensor_access = Observer.tensor_access
    initialised = Observer.initialised
    signalled = Observer.signalled
    deallocated = Observer.deallocated
    exited = Observer.exited

    def joined(self, engine: Any, ticket: int | None, is_read: bool) -> None:
        """That the sources are read says nothing of what is written."""
        if ticket is not None and not is_read:
            super().joined(engine, ticket, is_read)

    def global_access(self, addresses: npt.NDArray[np.uint64], span: int, write: bool) -> None:
        """An access of whoever acts."""
        if self._engine is None and _STRONG.search(self._mnemonic()):
            self._flag(addresses, write)
            return
        actor = self._actor()
        for number, where in _pages(addresses, span):
            if number not in self._pages:
                self._pages[number] = History(_PAGE_BYTES)
            if number not in self._grid.pages:
                self._grid.pages[number] = _Page()
            self._check("global memory", self._pages[number], where, int(write), actor)
            self._check_clusters(self._grid.pages[number], where, write)

    # 1. Flags

    def _mnemonic(self) -> str:
        assert self._warp is not None
        node = self._warp.cta.program.instruction(self._warp.block, self._warp.position)
        return node.mnemonic if node else ""

    def _flag(self, addresses: npt.NDArray[np.uint64], write: bool) -> None:
        for address in np.unique(addresses).tolist():
            told = self._grid.flags.setdefault(address, set())
            if write:
                known = self._clocks.advance(self._warp_number)
                self._flags[address] = joined(self._flags.get(address), known)
                told |= self._seen
            else:
                self._clocks.acquire(self._warp_number, self._flags.get(address))
                self._seen |= told

    # 2. Other clusters

    def _check_clusters(self, page: _Page, where: Any, write: bool) -> None:
        site = self._site(write)
        for earlier in (True, False) if write else (True,):
            clusters = page.cluster[earlier][where]
            foreign = clusters != _NOBODY
            for number in self._seen:
                foreign &= clusters != number
            if foreign.any():
                first = int(page.site[earlier][where][int(np.argmax(foreign))])
                self._note_clusters(self._grid.sites[first], self._grid.sites[site])
        own = page.cluster[write]
        others = (own[where] != _NOBODY) & (own[where] != self._number)
        own[where] = self._number if write else np.where(others, _SEVERAL, self._number)
        page.site[write][where] = site

    def _site(self, write: bool) -> int:
        """The number of the acting place."""
        location = self._engine.location if self._engine is not None else self._warp_location()
        assert location is not None
        key = (location.ptx_line or 0, write)
        if key not in self._grid.numbers:
            self._grid.numbers[key] = len(self._grid.sites)
            name = f"{self._clocks.names[self._actor().number]} of cluster {self._number}"
            self._grid.sites.append(Access(name, _HOW[write], line_of(location)))
        return self._grid.numbers[key]

    def _note_clusters(self, earlier: Access, later: Access) -> None:
        places = [(side.location.ptx_line, side.writes) for side in (earlier, later)]
        self.findings.note(
            (self.name, "clusters", *sorted(places, key=str)),
            lambda: Finding(self.name, _CLUSTERS, later, earlier),
        )


def _pages(addresses: npt.NDArray[np.uint64], span: int) -> Iterator[tuple[int, Any]]:
    """Each page that is touched, with the bytes in it."""
    touched = np.unique(addresses[:, None] + np.arange(span, dtype=np.uint64)).astype(np.int64)
    numbers = touched // _PAGE_BYTES
    for number in np.unique(numbers).tolist():
        yield number, touched[numbers == number] % _PAGE_BYTES


_CLUSTERS = "two clusters of a grid access the same global memory, and no flag orders them"
