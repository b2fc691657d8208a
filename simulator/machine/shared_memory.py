"""Shared memory of one CTA: bytes, and for each byte whether anything has written it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from simulator.errors import Location, OutOfBounds, ProgramError, Trap, Uninitialised
from simulator.events import GRANULE_BYTES, Observer
from simulator.machine.room import room
from simulator.machine.warp import Mask, lane_numbers

Offsets = npt.NDArray[np.integer[Any]]
POISON = 0xFF
"""What bytes hold that nothing has written."""
_CHUNK = 16
_UNWRITTEN = "read before anything wrote it"
_VALID = {1: 0x01, 2: 0x0101, 4: 0x01010101, 8: 0x0101010101010101}


class SharedMemory:
    """``size`` bytes, poisoned until written. Offsets are those of shared addresses, rank apart.

    With ``check_initialised`` a read of a byte that nothing has written raises ``Uninitialised``.
    Messages count from ``dynamic_offset``, where the dynamic shared memory begins.
    """

    def __init__(self, size: int, *, check_initialised: bool, dynamic_offset: int = 0) -> None:
        self.size = size
        whole = -(-size // 16) * 16
        self.bytes = room(whole, np.uint8, POISON)
        self.valid = room(whole, np.uint8)
        self._words = {w: self.bytes.view(f"u{w}") for w in (1, 2, 4, 8)}
        self._valid_words = {w: self.valid.view(f"u{w}") for w in (1, 2, 4, 8)}
        self._check_initialised = check_initialised
        self._dynamic_offset = dynamic_offset
        self.observer: Observer | None = None

    def forget(self) -> None:
        """From now on nothing has been written."""
        self.bytes[:] = POISON
        self.valid[:] = 0

    def name(self, offset: int) -> str:
        """An offset in words: a byte of the dynamic shared memory, or what lies below it."""
        if offset < self._dynamic_offset:
            return f"shared address {offset:#x}"
        return f"shared[{offset - self._dynamic_offset}]"

    def load(
        self, offsets: Offsets, item_bytes: int, count: int, mask: Mask | None = None
    ) -> npt.NDArray[Any]:
        """``count`` consecutive items from each offset, as [count, len(offsets)].

        ``mask`` has the lanes whose offsets these are, None if they are 32. Raises ``Trap`` for a
        misaligned offset, ``OutOfBounds`` or ``Uninitialised``, naming lanes.
        """
        index = self._written(offsets, item_bytes, count, mask)
        self._report(index, item_bytes, write=False)
        if self.observer is not None:
            self.observer.lane_access(offsets.astype(np.int64), item_bytes * count, mask, False)
        return self._words[item_bytes][index]

    def update(
        self,
        offsets: Offsets,
        item_bytes: int,
        count: int,
        function: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
        mask: Mask | None = None,
    ) -> npt.NDArray[Any]:
        """Replace ``count`` items at one offset by ``function`` of them, atomically; the old ones.

        Atomic operations are in no race with each other, and the observer is not told of them.
        Errors are those of ``load``.
        """
        index = self._written(offsets, item_bytes, count, mask)
        old = self._words[item_bytes][index][:, 0]
        self._words[item_bytes][index[:, 0]] = function(old)
        return old

    def _written(
        self, offsets: Offsets, item_bytes: int, count: int, mask: Mask | None
    ) -> npt.NDArray[np.int64]:
        """As ``_index``, of items that must have been written."""
        index = self._index(offsets, item_bytes, count, mask)
        if self._check_initialised:
            written = self._valid_words[item_bytes][index] == _VALID[item_bytes]
            if not written.all():
                self._refuse(offsets, ~written.all(axis=0), mask, Uninitialised, _UNWRITTEN)
        return index

    def store(
        self,
        offsets: Offsets,
        item_bytes: int,
        values: npt.NDArray[Any],
        mask: Mask | None = None,
    ) -> None:
        """Write ``values`` [count, len(offsets)], later lanes over earlier ones; as ``load``."""
        index = self._index(offsets, item_bytes, len(values), mask)
        self._report(index, item_bytes, write=True)
        if self.observer is not None:
            span = item_bytes * len(values)
            self.observer.lane_access(offsets.astype(np.int64), span, mask, True)
        self._words[item_bytes][index] = values
        self._valid_words[item_bytes][index] = _VALID[item_bytes]

    def gather(self, index: Offsets) -> npt.NDArray[np.uint8]:
        """The bytes at ``index``, of any shape; for the tensor core and bulk copies."""
        self._check_range(index)
        if self._check_initialised and not self.valid[index].all():
            self._refuse_unwritten(index[self.valid[index] == 0])
        return self.bytes[index]

    def scatter(self, index: Offsets, values: npt.NDArray[np.uint8]) -> None:
        """Write bytes at ``index``, of any shape."""
        self._check_range(index)
        self.bytes[index] = values
        self.valid[index] = 1

    def write_chunks(self, chunks: Offsets, values: npt.NDArray[np.uint8]) -> None:
        """Write 16-byte chunks at ``chunks``, in units of 16 bytes."""
        self._check_range(chunks * _CHUNK + _CHUNK - 1)
        self._report(chunks, _CHUNK, write=True)
        self.bytes.reshape(-1, _CHUNK)[chunks] = values.reshape(-1, _CHUNK)
        self.valid.reshape(-1, _CHUNK)[chunks] = 1

    def read_chunks(self, chunks: Offsets, *, reported: bool = True) -> npt.NDArray[np.uint8]:
        """The bytes of 16-byte chunks at ``chunks``, one after another.

        Unless ``reported`` the observer isn't told: of an access that it is told of elsewhere.
        """
        self._check_range(chunks * _CHUNK + _CHUNK - 1)
        if self._check_initialised and not self.valid.reshape(-1, _CHUNK)[chunks].all():
            written = self.valid.reshape(-1, _CHUNK)[chunks].all(axis=-1)
            self._refuse_unwritten(chunks[~written] * _CHUNK)
        if reported:
            self._report(chunks, _CHUNK, write=False)
        return self.bytes.reshape(-1, _CHUNK)[chunks].reshape(-1)

    def _report(self, index: Offsets, item_bytes: int, *, write: bool) -> None:
        """Tell the observer of an access to the items at ``index``."""
        if self.observer is None:
            return
        granules: npt.NDArray[np.int64] = index.ravel().astype(np.int64)
        if item_bytes < GRANULE_BYTES:
            granules = granules * item_bytes // GRANULE_BYTES
        else:
            each = item_bytes // GRANULE_BYTES
            granules = (granules[:, None] * each + np.arange(each)).ravel()
        self.observer.shared_access(self, granules, write)

    def _check_range(self, index: Offsets) -> None:
        if index.size and (int(index.max()) >= self.size or int(index.min()) < 0):
            raise OutOfBounds(
                f"{self.name(int(index.min()))} to {self.name(int(index.max()))}: "
                f"shared memory ends at {self.name(self.size)}"
            )

    def _index(
        self, offsets: Offsets, item_bytes: int, count: int, mask: Mask | None
    ) -> npt.NDArray[np.int64]:
        """Where the items lie among all items of their size: [count, len(offsets)]."""
        span = item_bytes * count
        offsets = offsets.astype(np.int64)
        if int(np.bitwise_or.reduce(offsets)) % span:  # spans are powers of two
            what = f"{span} bytes at an address that is not a multiple of {span}"
            self._refuse(offsets, offsets % span != 0, mask, Trap, what)
        if int(offsets.max()) + span > self.size or int(offsets.min()) < 0:
            beyond = (offsets + span > self.size) | (offsets < 0)
            what = f"{span} bytes where shared memory ends at {self.name(self.size)}"
            self._refuse(offsets, beyond, mask, OutOfBounds, what)
        index: npt.NDArray[np.int64] = offsets // item_bytes + np.arange(count)[:, None]
        return index

    def _refuse(
        self,
        offsets: Offsets,
        wrong: npt.NDArray[np.bool_],
        mask: Mask | None,
        kind: type[ProgramError],
        what: str,
    ) -> NoReturn:
        """Raise an error about the offsets that are ``wrong``, naming the first and all lanes."""
        lanes = lane_numbers(np.flatnonzero(wrong), mask)
        raise kind(f"{self.name(int(offsets[wrong][0]))}: {what}", Location(lanes=lanes))

    def _refuse_unwritten(self, offsets: Offsets) -> NoReturn:
        raise Uninitialised(f"{self.name(int(offsets.min()))}: {_UNWRITTEN}")
