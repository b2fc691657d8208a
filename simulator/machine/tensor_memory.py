"""Tensor memory (TMEM) of one CTA: allocation, and the register layouts of tcgen05.ld and .st.

Tensor memory has 128 lanes of 512 columns of 32 bits; an address is ``lane << 16 | column``.
Besides the words it holds one valid bit for each, so that a read of what nothing has written is
found where it happens.

Sources: PTX ISA, "Tensor Memory" (addressing, allocation, access restrictions: warp w of a
warpgroup reaches lanes 32 (w % 4) to 32 (w % 4) + 31) and "Data Movement Shape".
"""

from __future__ import annotations

from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.errors import OutOfBounds, ProtocolError, Trap, Uninitialised, Unsupported
from simulator.events import Observer
from simulator.machine.room import room

Words = NDArray[np.uint32]
Index = NDArray[np.intp]

LANES = 128
COLUMNS = 512
MIN_COLUMNS = 32
POISON = 0xFFFFFFFF
"""What memory holds that nothing has written: a NaN, also to the eye."""

_WARP_LANES = 32
_HALF_LANES = 16
_REGISTERS_PER_REPEAT = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4}
_MAX_REGISTERS = 128


def register_count(shape: str, num: int) -> int:
    """32-bit registers of each thread for ``.shape.xnum``.

    Raises Unsupported for a shape without a known layout, Trap for a repeat that PTX lacks.
    """
    if shape not in _REGISTERS_PER_REPEAT:
        raise Unsupported(f"tcgen05.ld/st: shape .{shape}")
    registers = _REGISTERS_PER_REPEAT[shape] * num
    if num < 1 or num & (num - 1) or registers > _MAX_REGISTERS:
        raise Trap(f"tcgen05.ld/st: .{shape} has no .x{num}")
    return registers


@cache
def fragment_layout(shape: str, num: int) -> tuple[Index, Index]:
    """Lane and column, relative to the address, of [register, thread] for ``.shape.xnum``."""
    register, thread = np.indices((register_count(shape, num), _WARP_LANES))
    if shape == "32x32b":
        return thread, register
    if shape == "16x64b":
        return thread // 4 + 8 * (thread % 2), thread // 2 % 2 + 2 * register
    if shape == "16x128b":
        return thread // 4 + 8 * (register % 2), thread % 4 + 4 * (register // 2)
    return thread // 4 + 8 * (register // 2 % 2), (
        register % 2 + 2 * (thread % 4) + 8 * (register // 4)
    )


def _lanes_of(shape: str, lane: int) -> slice:
    """The lanes that a warp's ``.shape`` reaches from ``lane`` on."""
    return slice(lane, lane + (_WARP_LANES if shape == "32x32b" else _HALF_LANES))


class TensorMemory:
    """The tensor memory of one CTA. ``checked`` turns reads of unwritten words into errors."""

    def __init__(self, *, checked: bool = True) -> None:
        self.checked = checked
        self.allocations: dict[int, int] = {}
        """Number of columns by first column."""
        self._relinquished = False
        self.observer: Observer | None = None

    @cached_property
    def words(self) -> Words:
        """The contents [lane, column]. Made when first used: most CTAs never use theirs."""
        return room((LANES, COLUMNS), np.uint32, POISON)

    @cached_property
    def valid(self) -> NDArray[np.bool_]:
        """Which words [lane, column] have been written."""
        return room((LANES, COLUMNS), np.bool_)

    @cached_property
    def owners(self) -> NDArray[np.int32]:
        """For native code: the first column of each column's allocation plus one, 0 for none."""
        return np.zeros(COLUMNS, np.int32)

    def allocate(self, columns: int) -> int | None:
        """The address of ``columns`` fresh columns, or None while too few adjacent ones are free.

        The instruction waits as long as this gives None. Raises ProtocolError for a number of
        columns that is not a power of two from 32 to 512, and after ``relinquish``.
        """
        if not MIN_COLUMNS <= columns <= COLUMNS or columns & (columns - 1):
            raise ProtocolError(
                f"tcgen05.alloc: {columns} columns; must be a power of two from {MIN_COLUMNS} "
                f"to {COLUMNS}"
            )
        if self._relinquished:
            raise ProtocolError("tcgen05.alloc: the CTA has relinquished its permit to allocate")
        for start in range(0, COLUMNS - columns + 1, MIN_COLUMNS):
            if not any(s < start + columns and start < s + n for s, n in self.allocations.items()):
                self.allocations[start] = columns
                self._forget(start, columns, owner=start + 1)
                if self.observer is not None:
                    self.observer.allocated(self, start, columns)
                return start
        return None

    def deallocate(self, address: int, columns: int) -> None:
        """Free what one ``allocate`` gave; ProtocolError for any other address or size."""
        if self.allocations.get(address) != columns:
            held = ", ".join(f"{n} at column {s}" for s, n in sorted(self.allocations.items()))
            raise ProtocolError(
                f"tcgen05.dealloc: {columns} columns at {address:#x}; allocated: {held or 'none'}"
            )
        del self.allocations[address]
        self._forget(address, columns, owner=0)
        if self.observer is not None:
            self.observer.deallocated(self, address, columns)

    def relinquish(self) -> None:
        """Give up the permit to allocate, for good."""
        self._relinquished = True

    def describe(self) -> str:
        """The allocations in words."""
        held = ", ".join(f"{n} at column {s}" for s, n in sorted(self.allocations.items()))
        return f"tensor memory with {held or 'nothing'} allocated"

    def require_empty(self) -> None:
        """Raise ProtocolError if columns are still allocated, as at the end of a CTA."""
        if self.allocations:
            total = sum(self.allocations.values())
            raise ProtocolError(f"the CTA ends with {total} tensor memory columns allocated")

    def _forget(self, start: int, columns: int, *, owner: int) -> None:
        self.owners[start : start + columns] = owner
        self.words[:, start : start + columns] = POISON
        self.valid[:, start : start + columns] = False

    def load(self, shape: str, num: int, address: int, *, warp: int) -> Words:
        """The registers [register, thread] that ``tcgen05.ld.shape.xnum`` gives to ``warp``.

        ``warp`` is the rank of the warp in its CTA. Raises Trap for lanes that the warp may not
        reach, OutOfBounds outside one allocation, Uninitialised for words that nothing wrote.
        """
        lane, column, columns = self._fragment(shape, num, address, warp=warp)
        self._report(_lanes_of(shape, lane), column, columns, write=False)
        if shape == "32x32b":
            where = slice(lane, lane + _WARP_LANES), slice(column, column + columns)
            self._require_written(where)
            return self.words[where].T.copy()
        lanes, cols = fragment_layout(shape, num)
        width = slice(column, column + columns)
        self._require_written((slice(lane, lane + _HALF_LANES), width))
        return self.words[lanes + lane, cols + column]

    def store(self, shape: str, num: int, address: int, values: Words, *, warp: int) -> None:
        """Write the registers ``values`` [register, thread] of ``warp``; errors as ``load``."""
        lane, column, columns = self._fragment(shape, num, address, warp=warp)
        self._report(_lanes_of(shape, lane), column, columns, write=True)
        if shape == "32x32b":
            where = slice(lane, lane + _WARP_LANES), slice(column, column + columns)
            self.words[where] = values.T
            self.valid[where] = True
            return
        lanes, cols = fragment_layout(shape, num)
        self.words[lanes + lane, cols + column] = values
        self.valid[lanes + lane, cols + column] = True

    def _fragment(self, shape: str, num: int, address: int, *, warp: int) -> tuple[int, int, int]:
        """First lane, first column and number of columns, after the checks on the address."""
        registers = register_count(shape, num)
        lane, column = address >> 16, address & 0xFFFF
        first = _WARP_LANES * (warp % 4)
        allowed = (first,) if shape == "32x32b" else (first, first + _HALF_LANES)
        if lane not in allowed:
            raise Trap(
                f"tcgen05.ld/st: .{shape} at lane {lane} by warp {warp}, which may use "
                f"lane {' or '.join(map(str, allowed))}"
            )
        height = _WARP_LANES if shape == "32x32b" else _HALF_LANES
        columns = registers * _WARP_LANES // height
        self.require_columns(column, columns, lane)
        return lane, column, columns

    def require_columns(self, column: int, columns: int, lane: int = 0) -> None:
        """Raise OutOfBounds unless the columns lie within one allocation."""
        for start, count in self.allocations.items():
            if start <= column and column + columns <= start + count:
                return
        held = ", ".join(f"[{s}, {s + n})" for s, n in sorted(self.allocations.items()))
        raise OutOfBounds(
            f"tensor memory: columns [{column}, {column + columns}) from lane {lane} on are not "
            f"within one allocation; allocated: {held or 'none'}"
        )

    def read_block(self, lanes: slice, column: int, columns: int) -> NDArray[np.float32]:
        """The float32 words of a rectangle [lanes, columns]; errors as ``load``."""
        self.require_columns(column, columns, lanes.start)
        where = lanes, slice(column, column + columns)
        self._require_written(where)
        self._report(lanes, column, columns, write=False)
        return self.words[where].view(np.float32)

    def write_block(self, lanes: slice, column: int, values: NDArray[np.float32]) -> None:
        """Write float32 ``values`` [lanes, columns] to a rectangle; errors as ``load``."""
        columns = values.shape[1]
        self.require_columns(column, columns, lanes.start)
        where = lanes, slice(column, column + columns)
        self._report(lanes, column, columns, write=True)
        self.words[where] = values.view(np.uint32)
        self.valid[where] = True

    def _report(self, lanes: slice, column: int, columns: int, *, write: bool) -> None:
        """Tell the observer of an access to a rectangle."""
        if self.observer is not None:
            halves = np.arange(lanes.start // _HALF_LANES, -(-lanes.stop // _HALF_LANES))
            granules = halves[:, None] * COLUMNS + np.arange(column, column + columns)
            self.observer.tensor_access(self, granules.ravel(), write)

    def _require_written(self, where: tuple[slice, slice]) -> None:
        """Raise Uninitialised, naming the first word, unless every word there was written."""
        if not self.checked or self.valid[where].all():
            return
        unwritten = np.argwhere(~self.valid[where])
        lane, column = unwritten[0] + (where[0].start, where[1].start)
        raise Uninitialised(
            f"tensor memory: {len(unwritten)} of the words read were never written, the first at "
            f"lane {lane}, column {column}"
        )
