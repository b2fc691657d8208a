"""proxy: shared memory that generic stores wrote, read by the async proxy without a fence.

Bulk copies and the tensor core reach shared memory through the async proxy. They see what threads
stored only if ``fence.proxy.async`` stands between the store and the read on the path that orders
them: after the store in the warp that stored, or before the issue in the warp that issues, which
then must have waited for the store. Source: PTX ISA, "Async proxy", "Causality Order" and
"membar, fence".

Whether anything orders store and read at all is for the check ``races``; stores after the issue
are therefore passed over here. A fence counts for all lanes of its warp that are active in it; as
accesses are not told by lanes, a fence of a single lane counts for the warp. A fence by a third
warp, between the one that stored and the one that issues, is not seen and would be reported.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.errors import Location
from simulator.events import GRANULE_BYTES
from simulator.machine.warp import Mask, Warp
from simulator.sanitizer.finding import Access, Check, Finding, Findings

_FENCES = {f"fence.proxy.async{space}" for space in ("", ".shared::cta", ".shared::cluster")}
_GENERIC = "cp.async of"
"""How the names of those engines begin whose writes are the generic proxy's."""


@dataclass(frozen=True)
class _Issue:
    """The moment of an issue: which warp, and up to when each warp had fenced by then."""

    warp: int
    moment: int
    fenced: npt.NDArray[np.int64]


class _Stores:
    """By granule: when it was last stored to (0: not since a bulk copy), by whom and where."""

    def __init__(self, size: int) -> None:
        self.moment: npt.NDArray[np.int64] = np.zeros(size, np.int64)
        self.warp: npt.NDArray[np.int64] = np.zeros(size, np.int64)
        self.site: npt.NDArray[np.int64] = np.zeros(size, np.int64)


class ProxyCheck(Check):
    """Watches the shared memory of one cluster."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._moment = 1
        self._numbers: dict[Warp, int] = {}
        self._warp: Warp | None = None
        self._fenced: npt.NDArray[np.int64] = np.zeros(1, np.int64)
        self._stores: dict[int, _Stores] = {}
        self._sites: dict[tuple[int, int], int] = {}
        self._places: list[Access] = []
        self._work: tuple[str, _Issue, Location] | None = None

    def turn(self, warp: Warp) -> None:
        """The warp acts."""
        if not self._numbers:
            self._numbers = {w: i for i, w in enumerate(warp.cta.cluster.warps)}
            self._fenced = np.zeros(len(self._numbers), np.int64)
        self._warp = warp

    def issue(self, engine: Hashable) -> _Issue:
        """Which stores a fence has made visible to the work."""
        return _Issue(self._number(), self._moment, self._fenced.copy())

    def begin(self, engine: Hashable, token: _Issue, location: Location) -> None:
        """The engine acts."""
        self._work = (str(engine), token, location)

    def end(self) -> None:
        """The warp acts again."""
        self._work = None

    def fenced(self, fence: str, mask: Mask | None) -> None:
        """The acting warp's stores up to now are visible to the async proxy."""
        if fence in _FENCES:
            self._fenced[self._number()] = self._moment
            self._moment += 1

    def shared_access(self, memory: Any, granules: npt.NDArray[np.int64], write: bool) -> None:
        """A store marks what it writes, a bulk copy clears it and, as the tensor core, reads it."""
        if id(memory) not in self._stores:
            self._stores[id(memory)] = _Stores(-(-memory.size // GRANULE_BYTES) + 4)
        stores = self._stores[id(memory)]
        if self._work is not None and not self._work[0].startswith(_GENERIC):
            if write:
                stores.moment[granules] = 0
            else:
                self._read(stores, granules, *self._work)
        elif write:
            number = self._number() if self._work is None else self._work[1].warp
            stores.moment[granules] = self._moment
            stores.warp[granules] = number
            stores.site[granules] = self._site(number)

    def _read(
        self,
        stores: _Stores,
        granules: npt.NDArray[np.int64],
        engine: str,
        issue: _Issue,
        location: Location,
    ) -> None:
        moment = stores.moment[granules]
        known = np.maximum(issue.fenced[stores.warp[granules]], issue.fenced[issue.warp])
        hidden = (moment > known) & (moment <= issue.moment)
        for site in np.unique(stores.site[granules[hidden]]).tolist():
            earlier = self._places[site]

            def finding(earlier: Access = earlier) -> Finding:
                later = Access(f"the {engine}", "read", location)
                return Finding("proxy", _SENTENCE, later, earlier)

            lines = (earlier.location.ptx_line, earlier.location.source)
            self.findings.note(("proxy", location.ptx_line, location.source, *lines), finding)

    def _number(self) -> int:
        assert self._warp is not None
        return self._numbers[self._warp]

    def _site(self, number: int) -> int:
        """The number of the place of the acting warp, or of the copy it issued."""
        assert self._warp is not None
        location = self._work[2] if self._work else self._warp.cta.cluster.site(self._warp)
        key = (number, location.ptx_line or 0)
        if key not in self._sites:
            self._sites[key] = len(self._places)
            rank = f"warp {location.warp} of cta {location.cta}"
            self._places.append(Access(rank, "write", replace(location, cta=None, warp=None)))
        return self._sites[key]


_SENTENCE = (
    "the async proxy reads shared memory that a generic store wrote, with no fence.proxy.async "
    "between them"
)
