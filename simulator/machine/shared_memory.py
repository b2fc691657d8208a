"""Shared memory of one CTA: bytes, and for each byte whether anything has written it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.errors import Location, OutOfBounds, Trap, Uninitialised

Offsets = npt.NDArray[np.integer[Any]]
_POISON = 0xFF
_CHUNK = 16
_VALID = {1: 0x01, 2: 0x0101, 4: 0x01010101, 8: 0x0101010101010101}


class SharedMemory:
    """``size`` bytes, poisoned until written. Offsets are those of shared addresses, rank apart.

    With ``check_initialised`` a read of a byte that nothing has written raises ``Uninitialised``.
    """

    def __init__(self, size: int, *, check_initialised: bool) -> None:
        self.size = size
        room = -(-size // 16) * 16
        self.bytes = np.full(room, _POISON, np.uint8)
        self.valid = np.zeros(room, np.uint8)
        self._words = {w: self.bytes.view(f"u{w}") for w in (1, 2, 4, 8)}
        self._valid_words = {w: self.valid.view(f"u{w}") for w in (1, 2, 4, 8)}
        self._check_initialised = check_initialised

    def load(self, offsets: Offsets, item_bytes: int, count: int) -> npt.NDArray[Any]:
        """``count`` consecutive items from each offset, as [count, len(offsets)].

        Raises ``Trap`` for a misaligned offset, ``OutOfBounds`` or ``Uninitialised``, naming lanes
        by their position in ``offsets``.
        """
        index = self._index(offsets, item_bytes, count)
        if self._check_initialised:
            written = self._valid_words[item_bytes][index] == _VALID[item_bytes]
            if not written.all():
                self._refuse_unwritten(offsets[~written.all(axis=0)])
        return self._words[item_bytes][index]

    def store(self, offsets: Offsets, item_bytes: int, values: npt.NDArray[Any]) -> None:
        """Write ``values`` [count, len(offsets)], later lanes over earlier ones."""
        index = self._index(offsets, item_bytes, len(values))
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
        self.bytes.reshape(-1, _CHUNK)[chunks] = values.reshape(-1, _CHUNK)
        self.valid.reshape(-1, _CHUNK)[chunks] = 1

    def read_chunks(self, chunks: Offsets) -> npt.NDArray[np.uint8]:
        """The bytes of 16-byte chunks at ``chunks``, one after another."""
        self._check_range(chunks * _CHUNK + _CHUNK - 1)
        if self._check_initialised and not self.valid.reshape(-1, _CHUNK)[chunks].all():
            written = self.valid.reshape(-1, _CHUNK)[chunks].all(axis=-1)
            self._refuse_unwritten(chunks[~written] * _CHUNK)
        return self.bytes.reshape(-1, _CHUNK)[chunks].reshape(-1)

    def _check_range(self, index: Offsets) -> None:
        if index.size and (int(index.max()) >= self.size or int(index.min()) < 0):
            raise OutOfBounds(
                f"shared memory bytes {int(index.min())}..{int(index.max())} "
                f"of {self.size} are accessed"
            )

    def _index(self, offsets: Offsets, item_bytes: int, count: int) -> npt.NDArray[np.int64]:
        span = item_bytes * count
        offsets = offsets.astype(np.int64)
        if int(np.bitwise_or.reduce(offsets)) % span:  # spans are powers of two
            lanes = tuple(int(x) for x in np.flatnonzero(offsets % span))
            raise Trap(f"shared address {int(offsets[lanes[0]])} is not a multiple of {span} bytes",
                       Location(lanes=lanes))  # fmt: skip
        if int(offsets.max()) + span > self.size or int(offsets.min()) < 0:
            beyond = (offsets + span > self.size) | (offsets < 0)
            lanes = tuple(int(x) for x in np.flatnonzero(beyond))
            raise OutOfBounds(f"shared memory offset {int(offsets[lanes[0]])} + {span} bytes lies "
                              f"beyond its {self.size} bytes", Location(lanes=lanes))  # fmt: skip
        index: npt.NDArray[np.int64] = offsets // item_bytes + np.arange(count)[:, None]
        return index

    def _refuse_unwritten(self, offsets: Offsets) -> None:
        raise Uninitialised(
            f"shared memory at offset {int(offsets.min())} is read, but nothing has written it"
        )
