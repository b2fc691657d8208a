"""Bytes and shared-memory bank conflicts of a launch, told by an observer as they happen.

**Bank conflicts.** Shared memory has 32 banks; successive 32-bit words lie in successive banks
(CUDA C++ Programming Guide, "Shared Memory", compute capability 5.0 and later). The model: lanes
are taken in order in groups that ask for at most 128 bytes (32 lanes of 4 bytes or fewer, 16 of 8,
8 of 16, 4 of 32). Each group needs as many passes (wavefronts) as the most distinct words that it
asks of one bank; lanes that ask for the same word share it. The degree of an instruction is its
wavefronts over the groups that its active lanes form: 1 is free of conflicts. What TMA and tensor
core do to banks is not modelled: their layouts are the hardware's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.errors import Location
from simulator.events import GRANULE_BYTES, Observer
from simulator.machine.warp import Mask, Warp

BANKS: Final = 32
BANK_BYTES: Final = 4
GROUP_BYTES: Final = BANKS * BANK_BYTES
_LANES: Final = 32


@dataclass
class SharedAccess:
    """What the lanes of one PTX instruction did to shared memory in a launch.

    ``worst`` is the highest degree of any time it was executed.
    """

    write: bool
    executed: int = 0
    bytes: int = 0
    groups: int = 0
    wavefronts: int = 0
    worst: float = 0.0

    @property
    def degree(self) -> float:
        """Wavefronts over groups: 1 without conflicts, at most 32."""
        return self.wavefronts / self.groups


def wavefronts(
    offsets: npt.NDArray[np.int64], span: int, lanes: npt.NDArray[np.int64]
) -> tuple[int, int]:
    """Passes that one access takes, and the groups of lanes that it consists of.

    ``offsets`` are in bytes, of the lanes that ``lanes`` numbers; each accesses ``span`` bytes.
    """
    group = lanes // max(1, GROUP_BYTES // max(span, BANK_BYTES))
    each = np.arange(max(1, span // BANK_BYTES))
    words = (offsets // BANK_BYTES)[:, None] + each
    asked = np.unique((group[:, None] << 32 | words).ravel())
    slots = (asked >> 32) * BANKS + asked % BANKS
    passes = np.bincount(slots, minlength=_LANES * BANKS).reshape(-1, BANKS).max(axis=1)
    return int(passes.sum()), int((passes > 0).sum())


class Traffic(Observer):
    """Counts over all clusters of a launch.

    ``shared`` is by (block, position) of the instruction in the program, ``bytes`` by who moves
    them and in which direction, ``flop`` by the kind of the MMA.
    """

    def __init__(self) -> None:
        self.shared: dict[tuple[int, int], SharedAccess] = {}
        self.bytes: Counter[str] = Counter()
        self.flop: Counter[str] = Counter()
        self._warp: Warp | None = None
        self._engine: str | None = None

    def turn(self, warp: Warp) -> None:
        """The warp acts."""
        self._warp = warp

    def begin(self, engine: Hashable, token: Any, location: Location) -> None:
        """An engine acts."""
        self._engine = _unit(str(engine))

    def end(self) -> None:
        """The warp acts again."""
        self._engine = None

    def shared_access(self, memory: object, granules: npt.NDArray[np.int64], write: bool) -> None:
        """Bytes that an engine moves; those of lanes are counted by ``lane_access``."""
        if self._engine is not None and self._engine != "cp.async":
            self.bytes[_name("shared", write, self._engine)] += GRANULE_BYTES * len(granules)

    def lane_access(
        self, offsets: npt.NDArray[np.int64], span: int, mask: Mask | None, write: bool
    ) -> None:
        """Bytes of lanes, and the banks they lie in."""
        size = span * len(offsets)
        if self._engine is not None:
            if self._engine == "cp.async":
                self.bytes[_name("shared", write, self._engine)] += size
            return
        assert self._warp is not None
        self.bytes[_name("shared", write, None)] += size
        entry = self.shared.setdefault((self._warp.block, self._warp.position), SharedAccess(write))
        lanes = np.arange(_LANES) if mask is None else np.flatnonzero(mask)
        passes, groups = wavefronts(offsets, span, lanes[: len(offsets)].astype(np.int64))
        entry.executed += 1
        entry.bytes += size
        entry.groups += groups
        entry.wavefronts += passes
        entry.worst = max(entry.worst, passes / groups)

    def tensor_access(self, memory: object, granules: npt.NDArray[np.int64], write: bool) -> None:
        """Columns of 32 lanes that a warp or the tensor core moves."""
        size = _LANES * BANK_BYTES * len(granules)
        self.bytes[_name("tmem", write, self._engine)] += size

    def multiplies(self, kind: str, flop: int) -> None:
        """An MMA is issued."""
        self.flop[kind] += flop


def _unit(engine: str) -> str:
    """Which unit of the hardware an engine's name stands for."""
    starts = {"bulk": "tma", "tensor core": "tensor_core", "cp.async": "cp.async"}
    return next((unit for start, unit in starts.items() if engine.startswith(start)), "others")


def _name(memory: str, write: bool, unit: str | None) -> str:
    """``shared_read``, ``tmem_written_by_tensor_core``."""
    name = f"{memory}_{'written' if write else 'read'}"
    return name if unit is None else f"{name}_by_{unit}"
