"""Local memory of one warp: each lane has bytes of its own at the same addresses."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.errors import Location, OutOfBounds, Trap, Uninitialised

_LANES = 32
_POISON = 0xFF

Offsets = npt.NDArray[np.integer[Any]]
Lanes = npt.NDArray[np.intp]


class LocalMemory:
    """``size`` bytes for each of 32 lanes, poisoned until written.

    With ``check_initialised`` a read of a byte that its lane has not written is ``Uninitialised``.
    """

    def __init__(self, size: int, *, check_initialised: bool) -> None:
        self.size = size
        self._check_initialised = check_initialised
        self._bytes = np.full((_LANES, size), _POISON, np.uint8)
        self._valid = np.zeros((_LANES, size), np.bool_)

    def load(self, offsets: Offsets, lanes: Lanes, item_bytes: int, count: int) -> npt.NDArray[Any]:
        """``count`` items from the offset that each lane gives, as [count, lanes].

        Raises ``Trap`` for a misaligned offset, ``OutOfBounds`` or ``Uninitialised``.
        """
        place = self._place(offsets, lanes, item_bytes * count)
        if self._check_initialised and not self._valid[place].all():
            wrong = ~self._valid[place].all(axis=1)
            raise _error(Uninitialised, "read before the lane wrote it", offsets, lanes, wrong)
        return np.ascontiguousarray(self._bytes[place]).view(f"u{item_bytes}").T

    def store(
        self, offsets: Offsets, lanes: Lanes, item_bytes: int, values: npt.NDArray[Any]
    ) -> None:
        """Write ``values`` [count, lanes]; errors as of ``load``."""
        place = self._place(offsets, lanes, item_bytes * len(values))
        self._bytes[place] = np.ascontiguousarray(values.T).view(np.uint8)
        self._valid[place] = True

    def _place(self, offsets: Offsets, lanes: Lanes, span: int) -> tuple[Any, Any]:
        """The index of ``span`` bytes for each lane: [lanes, span]."""
        start = offsets.astype(np.int64)
        if (misaligned := start % span != 0).any():
            what = f"{span} bytes at an address that is not a multiple of {span}"
            raise _error(Trap, what, offsets, lanes, misaligned)
        if (beyond := (start < 0) | (start + span > self.size)).any():
            what = f"{span} bytes where local memory has {self.size}"
            raise _error(OutOfBounds, what, offsets, lanes, beyond)
        return lanes[:, None], start[:, None] + np.arange(span)


def _error(
    kind: type[Any], what: str, offsets: Offsets, lanes: Lanes, wrong: npt.NDArray[np.bool_]
) -> Any:
    """An error about the lanes that are ``wrong``, naming the first one's offset."""
    text = f"local[{int(offsets[wrong][0])}]: {what}"
    return kind(text, Location(lanes=tuple(lanes[wrong].tolist())))
