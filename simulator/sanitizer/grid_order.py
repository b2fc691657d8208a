"""grid_order: global memory touched before ``griddepcontrol.wait`` by a grid that may start early.

A grid that is launched with programmatic stream serialisation starts while the one before it runs,
as soon as that one allows it. What the grid before has written, and what it still reads, is in
order only after ``griddepcontrol.wait`` (PTX ISA, 9.7.13.13 griddepcontrol). Which kernel of the
stream that is nobody here knows, so all global memory counts: it may be touched by a thread that
has waited, by one that a barrier orders after it, and by the copies that these issue.

Parameters and the prefetch of a tensor map are no accesses.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from simulator.machine.warp import Mask, Warp
from simulator.sanitizer.finding import Findings
from simulator.sanitizer.witness import Witness


class GridOrderCheck(Witness):
    """Watches the global accesses of one cluster."""

    name = "grid_order"

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._waited: set[Warp] = set()
        self._pending: dict[int, bool] = {}
        self._open: dict[int, bool] = {}
        self._kept: list[object] = []  # barriers, so that their identities stay theirs

    # 1. Who is in order after the grid before

    def fenced(self, fence: str, mask: Mask | None) -> None:
        """The acting warp has waited for the grid before."""
        if fence == "griddepcontrol.wait":
            self._waited.add(self.warp)

    def issue(self, engine: Hashable) -> bool:
        """Whether the issuer is."""
        return self.warp in self._waited

    def release(self, barrier: object) -> None:
        """The phase tells whoever waits for it."""
        if id(barrier) not in self._pending and id(barrier) not in self._open:
            self._kept.append(barrier)
        self._pending[id(barrier)] = self._pending.get(id(barrier), False) or self._is_in_order()

    def opened(self, barrier: object) -> None:
        """What the phase tells can be learnt."""
        told = self._pending.pop(id(barrier), False)
        self._open[id(barrier)] = self._open.get(id(barrier), False) or told

    def acquire(self, barrier: object) -> None:
        """The warp learns what the barrier's phases have told."""
        if self._open.get(id(barrier), False):
            self._waited.add(self.warp)

    def _is_in_order(self) -> bool:
        if self.work is not None:
            in_order: bool = self.work[1]
            return in_order
        return self.warp in self._waited

    # 2. What is touched

    def global_access(self, addresses: Any, span: int, write: bool) -> None:
        """An access of whoever acts."""
        if self.warp.cta.cluster.launch.may_start_early and not self._is_in_order():
            self.note(_TOO_EARLY, self.access("write" if write else "read"))


_TOO_EARLY = "a grid that may start early touches global memory before griddepcontrol.wait"
