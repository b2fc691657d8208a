"""What a cluster tells an observer while it runs.

A check is an observer. The machine knows none of them: memories and barriers report what is done to
them, the scheduler and the asynchronous engines report who does it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from simulator.errors import Location
    from simulator.machine.warp import Mask, Warp

GRANULE_BYTES = 4
"""Shared memory is observed in units of so many bytes, TMEM in (32 lanes x 1 column)."""


class Observer:
    """Does nothing; a check overrides what it wants to know.

    Between ``turn`` and the next one, ``warp`` is what acts; between ``begin`` and ``end`` it is an
    engine, on behalf of the warp that issued the work.
    """

    def turn(self, warp: Warp) -> None:
        """The events that follow are those of ``warp``."""

    def issue(self, engine: Hashable) -> object:
        """The acting warp gives work to ``engine``; the result comes back with ``begin``."""

    def begin(self, engine: Hashable, token: Any, location: Location) -> None:
        """``engine`` does the work that was issued with ``token``."""

    def end(self) -> None:
        """The work is done; what acted before acts again."""

    def shared_access(self, memory: object, granules: npt.NDArray[np.int64], write: bool) -> None:
        """The acting agent reads or writes ``granules`` of a CTA's shared memory."""

    def tensor_access(self, memory: object, granules: npt.NDArray[np.int64], write: bool) -> None:
        """The acting agent reads or writes granules of a CTA's TMEM, ``quarter * 512 + column``."""

    def release(self, barrier: object) -> None:
        """The acting agent arrives at a barrier, or its bytes do."""

    def opened(self, barrier: object) -> None:
        """The barrier's phase has ended: what was released so far can be acquired."""

    def acquire(self, barrier: object) -> None:
        """The acting warp has seen that a phase of the barrier has ended."""

    def joined(self, engine: Hashable) -> None:
        """The acting warp has waited for the work that it gave to ``engine``."""

    def fenced(self, fence: str, mask: Mask | None) -> None:
        """The active lanes of the acting warp have executed the instruction ``fence``."""
