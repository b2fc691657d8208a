"""A warp: registers, active lanes, and the stack that brings diverged lanes together again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from simulator.errors import Location, Trap
from simulator.isa.values import BITS, DTYPES, STORAGE
from simulator.machine.local_memory import LocalMemory

if TYPE_CHECKING:
    from simulator.machine.cluster import Cta

LANES = 32
POLLING_BLOCKS = 64
"""Basic blocks that a loop around a poll has at most; who runs more without polling does work."""

Mask = npt.NDArray[np.bool_]

ZEROS = {kind: np.zeros(LANES, STORAGE[bits]) for kind, bits in BITS.items()}
"""What a register holds at first. Instructions replace a register's array, never its elements."""
for _zeros in ZEROS.values():
    _zeros.setflags(write=False)


def uniform(values: npt.NDArray[Any]) -> bool:
    """Whether all elements are the same. Comparing bytes is much quicker than a reduction."""
    return values.tobytes() == values[:1].tobytes() * len(values)


def lane_numbers(positions: npt.NDArray[Any], mask: Mask | None) -> tuple[int, ...]:
    """The lanes that stand at these positions among the lanes of ``mask``, None meaning all 32."""
    lanes = positions if mask is None else np.flatnonzero(mask)[positions]
    return tuple(int(lane) for lane in lanes)


class Waitable(Protocol):
    """What a warp can wait for."""

    def describe(self) -> str:
        """The state in words, for the report of a deadlock."""
        ...


class Warp:
    """One warp of a CTA.

    ``block`` is the basic block that runs next and ``reconverges`` the one at which the lanes on
    top of ``stack`` join; ``mask`` holds the active lanes, None when all 32 are. ``advanced`` says
    whether the last turn did more than poll, ``blocked`` whether it ended at a wait. After a poll
    that failed ``polling`` blocks do not count as an advance: the warp may be on its way round to
    the next poll.
    """

    def __init__(self, cta: Cta, rank: int, threads: int, registers: list[Any]) -> None:
        self.cta = cta
        self.rank = rank
        self.registers = registers
        self._threads = threads
        self._special: dict[tuple[str, str], Any] = {}
        self.start()

    def start(self) -> None:
        """Begin at the first block, as if nothing had run; the registers stay."""
        self.alive: Mask = np.arange(LANES) < self._threads
        self.mask: Mask | None = None if self._threads >= LANES else self.alive.copy()
        self.block = 0
        self.reconverges = -1
        self.stack: list[tuple[int, int, Mask | None]] = []
        self.done = False
        self.advanced = True
        self.blocked = False
        self.polling = 0
        self.attempted = False
        self.waiting: tuple[Waitable, str] | None = None
        self.ticket: int | None = None
        self.cluster_ticket: int | None = None
        self.groups: dict[str, list[int]] = {}
        self.position = 0
        self.instructions = 0
        self.polls = 0
        self._local: LocalMemory | None = None

    # 1. Divergence

    def diverge(self, taken: Mask, first: int, second: int, meet: int) -> None:
        """Run the ``taken`` lanes from block ``first``, then the rest from ``second``.

        All meet again at block ``meet``.
        """
        rest = ~taken & (self.alive if self.mask is None else self.mask)
        self.stack.append((meet, self.reconverges, self.mask))
        self.stack.append((second, meet, rest))
        self.block, self.reconverges, self.mask = first, meet, taken

    def pop(self) -> None:
        """Continue with the lanes that wait on the stack, less those that have exited."""
        self.block, self.reconverges, mask = self.stack.pop()
        live = self.alive if mask is None else mask & self.alive
        self.mask = None if live.all() else live

    def exit_lanes(self) -> None:
        """The active lanes leave the kernel; others continue, if there are any."""
        if self.mask is not None:
            self.alive = self.alive & ~self.mask
        else:
            self.alive = np.zeros(LANES, bool)
        self.cta.cluster.on_exit(self)
        while self.stack:
            self.pop()
            if self.mask is None or self.mask.any():
                return
        self.done = True

    def require_converged(self, mask: Mask) -> None:
        """Raise ``Trap`` unless all lanes that have not exited are active."""
        if (mask != self.alive).any():
            lanes = tuple(int(x) for x in np.flatnonzero(mask))
            raise Trap("needs every lane of the warp, but some are diverged", Location(lanes=lanes))

    def lanes(self, mask: Mask | None) -> npt.NDArray[np.intp]:
        """The numbers of the active lanes."""
        return np.arange(LANES) if mask is None else np.flatnonzero(mask)

    @property
    def local(self) -> LocalMemory:
        """The local memory of the lanes. Made when first used: few kernels have any."""
        if self._local is None:
            launch = self.cta.cluster.launch
            check = launch.checks.initialisation
            self._local = LocalMemory(launch.program.local_bytes, check_initialised=check)
        return self._local

    # 2. Waiting

    def block_on(self, what: Waitable, how: str) -> None:
        """Note what the warp waits for."""
        self.waiting = (what, how)

    def go_on(self) -> None:
        """The wait is over."""
        self.waiting, self.attempted, self.polling = None, False, 0

    def poll_failed(self) -> None:
        """The warp asked whether a wait is over and goes on though it is not."""
        self.polling = POLLING_BLOCKS

    # 3. Special registers

    def special(self, name: str, kind: str) -> Any:
        """A special register, or a shared variable's address, as 32 lanes of ``kind``."""
        held = (
            self._special
            if name in _LANE_REGISTERS or name.startswith("%tid")
            else self.cta.special
        )
        key = (name, kind)
        if key not in held:
            array = np.broadcast_to(np.asarray(self._special_value(name)), LANES)
            held[key] = array.astype(STORAGE[BITS[kind]]).view(DTYPES[kind])
        return held[key]

    def _special_value(self, name: str) -> Any:
        if name.startswith("%tid."):
            linear = LANES * self.rank + _LANE
            nx, ny, _ = self.cta.block
            return {"x": linear % nx, "y": linear // nx % ny, "z": linear // (nx * ny)}[name[-1]]
        if name == "%warpid":
            return self.rank
        if name in _LANE_REGISTERS:
            return _LANE_REGISTERS[name]
        return self.cta.special_value(name)


_LANE = np.arange(LANES, dtype=np.int64)
_LANE_REGISTERS = {
    "%warpid": None,
    "%laneid": _LANE,
    "%lanemask_eq": 1 << _LANE,
    "%lanemask_lt": (1 << _LANE) - 1,
    "%lanemask_le": (2 << _LANE) - 1,
    "%lanemask_gt": 0xFFFFFFFF & ~((2 << _LANE) - 1),
    "%lanemask_ge": 0xFFFFFFFF & ~((1 << _LANE) - 1),
}
"""Special registers that differ between lanes or warps; the rest belong to the CTA."""


def is_of_warp(name: str) -> bool:
    """Whether a special register differs between the lanes or the warps of a CTA."""
    return name in _LANE_REGISTERS or name.startswith("%tid")
