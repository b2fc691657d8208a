"""Global memory: the allocations behind the tensor arguments, and nothing else.

Loads and stores go straight to the host memory that the tensors own. An access outside every
allocation names the tensor next to it and the index that was meant.
"""

from __future__ import annotations

import bisect
import ctypes
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.errors import Location, OutOfBounds, Trap, Uninitialised
from simulator.events import Observer
from simulator.host.tensor import Tensor
from simulator.machine.room import room
from simulator.machine.warp import Mask, lane_numbers

Addresses = npt.NDArray[np.uint64]
_ALIGN = 32
SECTOR_BYTES = 32


class Region:
    """One allocation: host bytes ``[start, end)`` and the tensors that view it.

    ``valid`` says of each byte whether its contents mean anything; None if all do.
    """

    def __init__(self, start: int, size: int) -> None:
        self.start = start
        self.end = start + size
        self.tensors: list[Tensor] = []
        self.base = start & -_ALIGN
        whole = -(-(self.end - self.base) // 8) * 8
        raw = (ctypes.c_uint8 * whole).from_address(self.base)
        self.bytes: npt.NDArray[np.uint8] = np.ctypeslib.as_array(raw)
        self.words = {w: self.bytes.view(f"u{w}") for w in (1, 2, 4, 8)}
        self.valid: npt.NDArray[np.bool_] | None = None

    def distrust(self, tensor: Tensor) -> None:
        """From now on remember of each byte of ``tensor`` whether it was written: none so far."""
        if 0 in tensor.shape:
            return  # numpy makes no view of nothing inside something
        if self.valid is None:
            self.valid = room(len(self.bytes), np.bool_, 1)
        strides = (*(s * tensor.item_bytes for s in tensor.strides), 1)
        shape = (*tensor.shape, tensor.item_bytes)
        view = np.ndarray(shape, bool, self.valid.data, tensor.pointer - self.base, strides)
        view[...] = False

    def tensor(self, address: int) -> Tensor:
        """The tensor that holds ``address``, else the one that begins most closely before it."""
        holders = [t for t in self.tensors if _inside(_index(address, t), t)]
        before = [t for t in self.tensors if t.pointer <= address]
        return max(holders or before or self.tensors, key=lambda t: t.pointer)

    def describe(self, address: int, span: int = 1) -> str:
        """Which tensor and which of its elements ``address`` is, in or near this allocation.

        If ``span`` bytes from there reach past the allocation's end, that is said too.
        """
        tensor = self.tensor(address)
        index = _index(address, tensor)
        text = f"{tensor.name} ({tensor.dtype}{list(tensor.shape)}): index {index}"
        if address < self.start:
            return f"{text}, {self.start - address} bytes before its allocation"
        if address + span > self.end:
            return f"{text}, {address + span - self.end} bytes past the end of its allocation"
        return text if _inside(index, tensor) else f"{text}, outside the tensor"


def _index(address: int, tensor: Tensor) -> list[int]:
    """The index of the element at ``address``; past the tensor's ends the longest axis goes on.

    Exact for views whose elements do not overlap: the longest stride is counted first. Axes of one
    element come last, for their strides mean nothing.
    """
    index = [0] * len(tensor.shape)
    steps = list(zip(tensor.strides, tensor.shape, strict=True))
    backwards = sum((n - 1) * s for s, n in steps if s < 0)
    element = (address - tensor.pointer) // tensor.item_bytes - backwards
    for axis in sorted(range(len(steps)), key=lambda a: (steps[a][1] == 1, -abs(steps[a][0]))):
        stride, extent = steps[axis]
        if stride:
            index[axis], element = divmod(element, abs(stride))
            if stride < 0:
                index[axis] = extent - 1 - index[axis]
    return index


def _inside(index: list[int], tensor: Tensor) -> bool:
    return all(0 <= i < n for i, n in zip(index, tensor.shape, strict=True))


class GlobalMemory:
    """The allocations of one launch, found by address."""

    def __init__(self, tensors: Iterable[Tensor], *, check_initialised: bool) -> None:
        regions: dict[tuple[int, int], Region] = {}
        for tensor in tensors:
            if tensor.storage_bytes == 0:
                continue
            place = (tensor.storage_pointer, tensor.storage_bytes)
            region = regions.setdefault(place, Region(*place))
            region.tensors.append(tensor)
            if check_initialised and not tensor.initialised:
                region.distrust(tensor)
        self.regions = sorted(regions.values(), key=lambda r: r.start)
        self._starts = [r.start for r in self.regions]
        self.observer: Observer | None = None
        self.traffic: Counter[str] | None = None
        """Bytes of the sectors that instructions read and write; counted while this is a counter.

        As a device's profiler counts them: a sector is 32 bytes, and lanes of one instruction that
        share one move it once. What caches save is not seen. Native code counts nothing.
        """

    def region(self, address: int) -> Region | None:
        """The allocation that holds ``address``."""
        position = bisect.bisect_right(self._starts, address) - 1
        if position >= 0 and address < self.regions[position].end:
            return self.regions[position]
        return None

    def describe(self, address: int, span: int = 1) -> str:
        """What ``span`` bytes at an address are, or what they are next to."""
        if not self.regions:
            return f"address {address:#x}; the launch has no tensors"
        near = min(self.regions, key=lambda r: max(r.start - address, address - r.end, 0))
        return near.describe(address, span)

    def load(
        self, addresses: Addresses, item_bytes: int, count: int, mask: Mask | None = None
    ) -> npt.NDArray[Any]:
        """``count`` consecutive items from each address, as [count, len(addresses)].

        ``mask`` has the lanes whose addresses these are, None if they are 32. Raises ``Trap`` if
        misaligned, ``OutOfBounds`` and ``Uninitialised``, naming tensor, index and lanes.
        """
        out = np.empty((count, len(addresses)), f"u{item_bytes}")
        self._tell("global_read", addresses, out.shape[0] * item_bytes)
        for region, some, index in self._places(addresses, item_bytes, count, mask):
            out[:, some] = region.words[item_bytes][index]
            if region.valid is not None:
                written = region.valid[_byte_index(addresses, region, item_bytes * count)[some]]
                if not written.all():
                    missing = np.arange(len(addresses))[some][~written.all(axis=1)]
                    raise Uninitialised(
                        "read before anything wrote it: "
                        + region.describe(int(addresses[missing[0]])),
                        Location(lanes=lane_numbers(missing, mask)),
                    )
        return out

    def store(
        self,
        addresses: Addresses,
        item_bytes: int,
        values: npt.NDArray[Any],
        mask: Mask | None = None,
    ) -> None:
        """Write ``values`` [count, len(addresses)], later lanes over earlier ones.

        ``mask`` and errors are as of ``load``.
        """
        count = len(values)
        self._tell("global_written", addresses, item_bytes * count)
        for region, some, index in self._places(addresses, item_bytes, count, mask):
            region.words[item_bytes][index] = values[:, some]
            if region.valid is not None:
                region.valid[_byte_index(addresses, region, item_bytes * count)[some]] = True

    def update(
        self,
        addresses: Addresses,
        item_bytes: int,
        count: int,
        function: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
        mask: Mask,
    ) -> npt.NDArray[Any]:
        """Replace ``count`` items at one address by ``function`` of them, atomically; the old ones.

        ``mask`` has the lane that asks. Errors are those of ``load``.
        """
        old = self.load(addresses, item_bytes, count, mask)[:, 0]
        self.store(addresses, item_bytes, function(old)[:, None], mask)
        return old

    def _tell(self, direction: str, addresses: Addresses, span: int) -> None:
        """Tell the observer; count the sectors: an aligned span lies in one or fills some."""
        if self.observer is not None:
            self.observer.global_access(addresses, span, direction == "global_written")
        if self.traffic is not None:
            each = np.arange(0, span, SECTOR_BYTES, dtype=np.uint64)
            sectors = np.unique((addresses[:, None] + each) // np.uint64(SECTOR_BYTES))
            self.traffic[direction] += SECTOR_BYTES * len(sectors)

    def _places(
        self, addresses: Addresses, item_bytes: int, count: int, mask: Mask | None
    ) -> Iterator[tuple[Region, Any, npt.NDArray[np.int64]]]:
        """For each allocation touched: it, which addresses touch it, and their word indices."""
        span = item_bytes * count
        if int(np.bitwise_or.reduce(addresses)) % span:  # spans are powers of two
            wrong = np.flatnonzero(addresses % np.uint64(span))
            raise Trap(
                f"{span} bytes of global memory at an address that is not a multiple of {span}: "
                + self.describe(int(addresses[wrong[0]])),
                Location(lanes=lane_numbers(wrong, mask)),
            )
        first = self.region(int(addresses[0]))
        if (
            first is not None
            and int(addresses.min()) >= first.start
            and int(addresses.max()) + span <= first.end
        ):
            yield first, slice(None), _word_index(addresses, first, item_bytes, count)
            return
        owners = [self._owner(int(a), span) for a in addresses]
        outside = np.array([i for i, owner in enumerate(owners) if owner is None])
        if len(outside):
            raise OutOfBounds(
                f"{span} bytes of global memory out of bounds: "
                + self.describe(int(addresses[outside[0]]), span),
                Location(lanes=lane_numbers(outside, mask)),
            )
        for owner in dict.fromkeys(owners):
            assert owner is not None
            some = np.array([i for i, o in enumerate(owners) if o is owner])
            yield owner, some, _word_index(addresses[some], owner, item_bytes, count)

    def _owner(self, address: int, span: int) -> Region | None:
        region = self.region(address)
        return region if region is not None and address + span <= region.end else None


def _word_index(
    addresses: Addresses, region: Region, item_bytes: int, count: int
) -> npt.NDArray[np.int64]:
    words = ((addresses - np.uint64(region.base)) // np.uint64(item_bytes)).astype(np.int64)
    index: npt.NDArray[np.int64] = words + np.arange(count, dtype=np.int64)[:, None]
    return index


def _byte_index(addresses: Addresses, region: Region, span: int) -> npt.NDArray[np.int64]:
    """The positions in a region of the bytes at each address: [addresses, span]."""
    start = (addresses - np.uint64(region.base)).astype(np.int64)
    index: npt.NDArray[np.int64] = start[:, None] + np.arange(span)
    return index


def tensors_of(arguments: Sequence[object]) -> list[Tensor]:
    """The tensors among the arguments of a launch."""
    return [a for a in arguments if isinstance(a, Tensor)]
