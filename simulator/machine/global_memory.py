"""Global memory: the allocations behind the tensor arguments, and nothing else.

Loads and stores go straight to the host memory that the tensors own. An access outside every
allocation names the tensor next to it and the index that was meant.
"""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.errors import Location, OutOfBounds, Trap, Uninitialised
from simulator.host.tensor import Tensor

Addresses = npt.NDArray[np.uint64]
_ALIGN = 32


class Region:
    """One allocation: host bytes ``[start, end)`` and the tensors that view it."""

    def __init__(self, start: int, size: int) -> None:
        self.start = start
        self.end = start + size
        self.tensors: list[Tensor] = []
        self.base = start & -_ALIGN
        room = -(-(self.end - self.base) // 8) * 8
        raw = (ctypes.c_uint8 * room).from_address(self.base)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(raw, np.uint8)
        self.words = {w: self.bytes.view(f"u{w}") for w in (1, 2, 4, 8)}
        self.valid: npt.NDArray[np.bool_] | None = None

    def track_initialisation(self) -> None:
        """From now on remember which bytes have been written, none so far."""
        self.valid = np.zeros(len(self.bytes), bool)

    def mark_written(self) -> None:
        """A bulk store wrote somewhere here; it is too large to follow byte by byte."""
        if self.valid is not None:
            self.valid[:] = True

    def tensor(self, address: int) -> Tensor:
        """The tensor that begins at or most closely before ``address``."""
        before = [t for t in self.tensors if t.pointer <= address]
        return max(before, key=lambda t: t.pointer) if before else self.tensors[0]

    def describe(self, address: int) -> str:
        """Which tensor and which of its elements ``address`` is, in or near this allocation."""
        tensor = self.tensor(address)
        element = (address - tensor.pointer) // tensor.item_bytes
        count = int(np.prod(tensor.shape, dtype=np.int64))
        layout = f"{tensor.dtype}{list(tensor.shape)}"
        if not self.start <= address < self.end:
            side = "past the end of" if address >= self.end else "before"
            distance = address - self.end if address >= self.end else self.start - address
            return f"{tensor.name} ({layout}): element {element} of {count}, {distance} bytes {side} its allocation"
        return f"{tensor.name} ({layout}): index {_index(element, tensor)}"


def _index(element: int, tensor: Tensor) -> list[int]:
    """The index of an element offset, outermost stride first; exact for non-overlapping views."""
    index = [0] * len(tensor.shape)
    for axis in sorted(range(len(tensor.shape)), key=lambda a: -tensor.strides[a]):
        if tensor.strides[axis] > 0:
            index[axis], element = divmod(element, tensor.strides[axis])
    return index


class GlobalMemory:
    """The allocations of one launch, found by address."""

    def __init__(self, tensors: Iterable[Tensor], *, check_initialised: bool) -> None:
        regions: dict[int, Region] = {}
        for tensor in tensors:
            if tensor.storage_bytes == 0:
                continue
            region = regions.get(tensor.storage_pointer)
            if region is None:
                region = regions[tensor.storage_pointer] = Region(
                    tensor.storage_pointer, tensor.storage_bytes
                )
            region.tensors.append(tensor)
            if check_initialised and not tensor.initialised and region.valid is None:
                region.track_initialisation()
        self.regions = sorted(regions.values(), key=lambda r: r.start)
        self._starts = [r.start for r in self.regions]

    def region(self, address: int) -> Region | None:
        """The allocation that holds ``address``."""
        position = bisect.bisect_right(self._starts, address) - 1
        if position >= 0 and address < self.regions[position].end:
            return self.regions[position]
        return None

    def describe(self, address: int) -> str:
        """What an address is, or what it is next to."""
        if not self.regions:
            return f"address {address:#x}; the launch has no tensors"
        near = min(self.regions, key=lambda r: max(r.start - address, address - r.end, 0))
        return near.describe(address)

    def load(self, addresses: Addresses, item_bytes: int, count: int) -> npt.NDArray[Any]:
        """``count`` consecutive items from each address, as [count, len(addresses)].

        Raises ``Trap`` if misaligned, ``OutOfBounds`` naming tensor and index, ``Uninitialised``.
        """
        out = np.empty((count, len(addresses)), f"u{item_bytes}")
        for region, lanes, index in self._places(addresses, item_bytes, count, "load"):
            out[:, lanes] = region.words[item_bytes][index]
            if region.valid is not None:
                self._require_written(region, addresses[lanes], item_bytes * count)
        return out

    def store(self, addresses: Addresses, item_bytes: int, values: npt.NDArray[Any]) -> None:
        """Write ``values`` [count, len(addresses)], later lanes over earlier ones."""
        count = len(values)
        for region, lanes, index in self._places(addresses, item_bytes, count, "store"):
            region.words[item_bytes][index] = values[:, lanes]
            if region.valid is not None:
                start = (addresses[lanes] - np.uint64(region.base)).astype(np.int64)
                region.valid[start[:, None] + np.arange(item_bytes * count)] = True

    def _places(
        self, addresses: Addresses, item_bytes: int, count: int, what: str
    ) -> Iterator[tuple[Region, Any, npt.NDArray[np.int64]]]:
        """For each allocation touched: it, the lanes that touch it, and their word indices."""
        span = item_bytes * count
        if int(np.bitwise_or.reduce(addresses)) % span:  # spans are powers of two
            lanes = tuple(int(x) for x in np.flatnonzero(addresses % np.uint64(span)))
            raise Trap(f"global {what} of {span} bytes at misaligned address: "
                       f"{self.describe(int(addresses[lanes[0]]))}", Location(lanes=lanes))  # fmt: skip
        first = self.region(int(addresses[0]))
        lanes: Any = slice(None)
        if first is not None and int(addresses.min()) >= first.start and int(addresses.max()) + span <= first.end:
            yield first, lanes, _word_index(addresses, first, item_bytes, count)
            return
        owners = [self._owner(int(a), span) for a in addresses]
        if None in owners:
            outside = [i for i, owner in enumerate(owners) if owner is None]
            raise OutOfBounds(f"global {what} of {span} bytes out of bounds: "
                              f"{self.describe(int(addresses[outside[0]]))}",
                              Location(lanes=tuple(outside)))  # fmt: skip
        for owner in dict.fromkeys(owners):
            assert owner is not None
            lanes = np.array([i for i, o in enumerate(owners) if o is owner])
            yield owner, lanes, _word_index(addresses[lanes], owner, item_bytes, count)

    def _owner(self, address: int, span: int) -> Region | None:
        region = self.region(address)
        return region if region is not None and address + span <= region.end else None

    def _require_written(self, region: Region, addresses: Addresses, span: int) -> None:
        assert region.valid is not None
        start = (addresses - np.uint64(region.base)).astype(np.int64)
        written = region.valid[start[:, None] + np.arange(span)].all(axis=1)
        if not written.all():
            address = int(addresses[int(np.argmin(written))])
            raise Uninitialised(f"read before anything wrote it: {region.describe(address)}")


def _word_index(addresses: Addresses, region: Region, item_bytes: int, count: int) -> npt.NDArray[np.int64]:
    words = ((addresses - np.uint64(region.base)) // np.uint64(item_bytes)).astype(np.int64)
    index: npt.NDArray[np.int64] = words + np.arange(count, dtype=np.int64)[:, None]
    return index


def tensors_of(arguments: Sequence[object]) -> list[Tensor]:
    """The tensors among the arguments of a launch."""
    return [a for a in arguments if isinstance(a, Tensor)]
