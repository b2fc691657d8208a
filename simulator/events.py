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
    from simulator.machine.cluster import Cluster, Cta
    from simulator.machine.warp import Mask, Warp

GRANULE_BYTES = 4
"""Shared memory is observed in units of so many bytes, TMEM in (16 lanes x 1 column)."""


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

    def lane_access(
        self, offsets: npt.NDArray[np.int64], span: int, mask: Mask | None, write: bool
    ) -> None:
        """Lanes of one instruction access ``span`` bytes of shared memory each, at ``offsets``.

        ``mask`` has the lanes, None all 32. The same bytes are told as a ``shared_access``.
        """

    def tensor_access(self, memory: object, granules: npt.NDArray[np.int64], write: bool) -> None:
        """The acting agent reads or writes granules of TMEM, ``lane // 16 * 512 + column``."""

    def multiplies(self, kind: str, flop: int) -> None:
        """The acting warp issues an MMA of this kind, of so many operations, padding included."""

    def global_access(self, addresses: npt.NDArray[np.uint64], span: int, write: bool) -> None:
        """The acting agent reads or writes ``span`` bytes of global memory at each address."""

    def release(self, barrier: object) -> None:
        """The acting agent arrives at a barrier, or its bytes do."""

    def opened(self, barrier: object) -> None:
        """The barrier's phase has ended: what was released so far can be acquired."""

    def acquire(self, barrier: object) -> None:
        """The acting warp has seen that a phase of the barrier has ended."""

    def joined(self, engine: Hashable, ticket: int | None, is_read: bool) -> None:
        """The acting warp has waited for work that it gave to ``engine``.

        It is that of the first ``ticket`` pieces of work which were issued in the cluster, all if
        None. If ``is_read`` only the sources have been read, and nothing may have been written.
        """

    def fenced(self, fence: str, mask: Mask | None) -> None:
        """The active lanes of the acting warp have executed a fence or ``griddepcontrol.wait``."""

    # Protocols

    def initialised(self, barrier: object, offset: int) -> None:
        """The acting warp has made an mbarrier object, at ``offset`` in its own shared memory."""

    def invalidated(self, barrier: object) -> None:
        """The acting warp has ended the life of an mbarrier object."""

    def signalled(self, barrier: object, step: str) -> None:
        """The acting agent makes a ``step`` at an mbarrier: ``arrive``, ``expect``, ``complete``.

        The last is that of bytes that have come. A phase which the step ends has not ended yet.
        """

    def asked(self, barrier: object, parity: int, over: bool) -> None:
        """The acting warp has been told whether the phase of a parity is ``over``."""

    def allocated(self, memory: object, column: int, columns: int) -> None:
        """The acting warp has been given columns of TMEM."""

    def deallocated(self, memory: object, column: int, columns: int) -> None:
        """The acting warp has given columns of TMEM back."""

    def resized(self, way: str, count: int) -> None:
        """The acting warp has asked for ``count`` registers a thread: ``inc`` or ``dec``."""

    def exited(self, cta: Cta) -> None:
        """All threads of a CTA have exited; what uses its memories from now on is too late."""

    def ended(self, cluster: Cluster) -> None:
        """All warps have exited, and all asynchronous work is done."""
