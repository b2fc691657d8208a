"""Tensor maps: decoding their 64 meaningful bytes, and moving boxes between the memories.

A box is dense bytes, dimension 0 fastest; on its way into or out of shared memory each 16-byte
chunk moves within its 128-byte line as the swizzle mode says.

Sources: PTX ISA, "Tensors" (bounding box, out-of-boundary access, swizzling modes); the field
positions were read off maps that a driver encoded, one argument varied at a time
(``tests/data/tensor_map_words.txt``).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import OutOfBounds, Trap, Unsupported

Bytes = NDArray[np.uint8]
Index = NDArray[np.int64]

MEANINGFUL_BYTES = 64
"""What follows in the 128-byte object is unspecified: the DSL's encoder leaves stack contents."""

_ELEMENTS = {
    0: ("u8", 1), 1: ("u16", 2), 2: ("u32", 4), 3: ("s32", 4), 4: ("u64", 8), 5: ("s64", 8),
    6: ("f16", 2), 7: ("f32", 4), 9: ("f64", 8), 10: ("bf16", 2),
}  # fmt: skip
_PACKED_ELEMENTS = {11: ("u4", 2)}
"""Elements that share a byte, without padding, and how many do: as the DSL encodes e2m1."""
_UNVERIFIED_ELEMENTS = {8: "f32.ftz"}
# Bits of the flag word whose meaning is known: encoder mark 1, rank 4-6, element 7-10, swizzle
# 13-14, NaN fill 15, tf32 16, L2 promotion 17-18 (no effect on values), swizzle atoms of 32 bytes
# 19, large tensor 21 (no effect either).
_KNOWN_FLAGS = (
    1 << 1 | 0x7 << 4 | 0xF << 7 | 0x3 << 13 | 1 << 15 | 1 << 16 | 0x3 << 17 | 1 << 19 | 1 << 21
)
_SWIZZLE_BYTES = (0, 32, 64, 128)
_F32, _SPAN_128 = 7, 3
_BELOW_TF32 = np.uint32(0x1FFF)
_CHUNK = 16
_LINE = 128


@dataclass(frozen=True)
class BoxBounds:
    """One dimension in which a box leaves its tensor.

    ``coordinate`` is where the box starts, ``box`` how far it reaches and ``limit`` the extent of
    the tensor, all in elements.
    """

    dimension: int
    coordinate: int
    box: int
    limit: int

    @property
    def starts_outside(self) -> bool:
        """Whether even the first element of the box lies outside."""
        return not 0 <= self.coordinate < self.limit

    def __str__(self) -> str:
        stop = self.coordinate + self.box
        return f"dimension {self.dimension}: box [{self.coordinate}, {stop}) of [0, {self.limit})"


@dataclass(frozen=True)
class TensorMap:
    """A tiled tensor in global memory and the box that one instruction moves.

    ``dims`` and ``box`` count elements, ``strides`` bytes, innermost dimension first; ``swizzle``
    is the span in bytes, 0 for none, and ``atom`` the bytes that it keeps together. Where
    ``packing`` numbers share a byte, that byte is the element.
    """

    address: int
    element: str
    element_bytes: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    atom: int = 16
    packing: int = 1

    def elements(self, coordinates: Sequence[int]) -> tuple[int, ...]:
        """An instruction's coordinates, which count numbers, as those of elements.

        Raises Trap if they point into the middle of a byte.
        """
        first, *rest = coordinates
        if first % self.packing:
            raise Trap(
                f"tensor map: coordinate {first} of numbers of which {self.packing} share a byte"
            )
        return (first // self.packing, *rest)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    @property
    def row_bytes(self) -> int:
        """Bytes of one innermost row of the box."""
        return self.box[0] * self.element_bytes

    @property
    def box_bytes(self) -> int:
        """Bytes of the whole box: what a load adds to its barrier even when it is cut off."""
        return prod(self.box) * self.element_bytes


def decode(raw: bytes) -> TensorMap:
    """The tensor map held in the first 64 bytes of ``raw``.

    Raises Unsupported, naming the field, for what no sample has verified: im2col and interleaved
    layouts (any unknown flag), NaN fill, f32.ftz elements, element strides. Raises Trap
    for a swizzled box whose rows are longer than the swizzle span.
    """
    return _decode(bytes(raw[:MEANINGFUL_BYTES]))


@cache
def _decode(raw: bytes) -> TensorMap:
    """``decode`` of exactly the meaningful bytes."""
    (address, flags), high = struct.unpack_from("<QI", raw), struct.unpack_from("<I", raw, 28)[0]
    _refuse_unknown(flags, element_strides=int.from_bytes(raw[52:55], "little"))
    rank = (flags >> 4 & 7) + 1
    element, element_bytes, packing = _element(flags >> 7 & 15)
    if flags >> 16 & 1:
        element = "tf32"
    low = struct.unpack_from("<4I", raw, 12)
    outer = tuple((low[i] | (high >> 4 * i & 15) << 32) * 16 for i in range(rank - 1))
    tensor_map = TensorMap(
        address=address,
        element=element,
        element_bytes=element_bytes,
        dims=_packed([x + 1 for x in struct.unpack_from(f"<{rank}I", raw, 32)], packing),
        strides=(element_bytes, *outer),
        box=_packed([x + 1 for x in raw[55 : 55 + rank]], packing),
        swizzle=_SWIZZLE_BYTES[flags >> 13 & 3],
        atom=32 if flags >> 19 & 1 else _CHUNK,
        packing=packing,
    )
    if tensor_map.swizzle and tensor_map.row_bytes > tensor_map.swizzle:
        raise Trap(
            f"tensor map: rows of {tensor_map.row_bytes} bytes exceed the swizzle span of "
            f"{tensor_map.swizzle} bytes"
        )
    return tensor_map


def _refuse_unknown(flags: int, element_strides: int) -> None:
    if flags & ~_KNOWN_FLAGS:
        raise Unsupported(f"tensor map: flag bits {flags & ~_KNOWN_FLAGS:#x} of word {flags:#x}")
    if flags >> 4 & 7 > 4:
        raise Unsupported(f"tensor map: rank {(flags >> 4 & 7) + 1} exceeds 5")
    if flags >> 15 & 1:
        raise Unsupported("tensor map: out-of-bounds fill with NaN")
    if flags >> 16 & 1 and flags >> 7 & 15 != _F32:
        raise Unsupported(f"tensor map: tf32 and element type {flags >> 7 & 15}")
    if flags >> 19 & 1 and flags >> 13 & 3 != _SPAN_128:
        raise Unsupported(f"tensor map: atoms of 32 bytes and swizzle code {flags >> 13 & 3}")
    if element_strides:
        raise Unsupported(f"tensor map: element strides other than 1 (field {element_strides:#x})")


def _packed(extents: list[int], packing: int) -> tuple[int, ...]:
    """Extents in numbers as those in elements."""
    if extents[0] % packing:
        raise Unsupported(f"tensor map: {extents[0]} numbers of which {packing} share a byte")
    return (extents[0] // packing, *extents[1:])


def _element(code: int) -> tuple[str, int, int]:
    """Name, bytes, and how many numbers share an element."""
    if code in _PACKED_ELEMENTS:
        name, packing = _PACKED_ELEMENTS[code]
        return name, 1, packing
    if code not in _ELEMENTS:
        name = _UNVERIFIED_ELEMENTS.get(code, "unknown")
        raise Unsupported(f"tensor map: element type {code} ({name})")
    return (*_ELEMENTS[code], 1)


def box_bounds(tensor_map: TensorMap, coords: Sequence[int]) -> tuple[BoxBounds, ...]:
    """The dimensions in which the box at ``coords`` leaves the tensor; empty if it lies inside."""
    return tuple(
        BoxBounds(dimension, coordinate, box, limit)
        for dimension, (coordinate, box, limit) in enumerate(
            zip(coords, tensor_map.box, tensor_map.dims, strict=True)
        )
        if coordinate < 0 or coordinate + box > limit
    )


def box_offsets(tensor_map: TensorMap, coords: Sequence[int]) -> tuple[Index, NDArray[np.bool_]]:
    """Byte offsets from the tensor's address of every byte of the box, and which are inside.

    Both have the shape [rows, row_bytes], in the order of shared memory.
    """
    offsets = _relative_offsets(tensor_map) + _origin(tensor_map, coords)
    if not box_bounds(tensor_map, coords):
        return offsets, np.ones(offsets.shape, np.bool_)
    inside = np.zeros((*tensor_map.box[::-1], tensor_map.element_bytes), np.bool_)
    inside[_clip(tensor_map, coords)] = True
    return offsets, inside.reshape(offsets.shape)


@cache
def _relative_offsets(tensor_map: TensorMap) -> Index:
    """Byte offsets of every byte of the box from the box's first byte: [rows, row_bytes]."""
    offsets = np.zeros(1, np.int64)
    for box, stride in zip(tensor_map.box[1:], tensor_map.strides[1:], strict=True):
        offsets = (np.arange(box)[:, None] * stride + offsets).reshape(-1)
    return offsets[:, None] + np.arange(tensor_map.row_bytes)


def _origin(tensor_map: TensorMap, coords: Sequence[int]) -> int:
    return sum(c * s for c, s in zip(coords, tensor_map.strides, strict=True))


def _clip(tensor_map: TensorMap, coords: Sequence[int]) -> tuple[slice, ...]:
    """The part of the box inside the tensor, as slices over the box, outermost dimension first."""
    return tuple(
        slice(min(max(0, -c), box), max(0, min(box, limit - c)))
        for c, box, limit in zip(
            reversed(coords), reversed(tensor_map.box), reversed(tensor_map.dims), strict=True
        )
    )


def load_box(
    tensor_map: TensorMap, coords: Sequence[int], memory: Bytes, memory_address: int
) -> Bytes:
    """The bytes [box_bytes] of the box at ``coords``, with zeros where it leaves the tensor.

    ``memory`` holds the global bytes from ``memory_address`` on. Raises OutOfBounds if an element
    of the tensor that the box covers lies outside ``memory``.
    """
    clip = _clip(tensor_map, coords)
    window = _window(tensor_map, coords, clip, memory=memory, memory_address=memory_address)
    if tensor_map.element == "tf32":
        _require_tf32(window)
    if window.nbytes == tensor_map.box_bytes:
        return window.reshape(-1)
    box = np.zeros((*tensor_map.box[::-1], tensor_map.element_bytes), np.uint8)
    box[clip] = window
    return box.reshape(-1)


def _require_tf32(window: Bytes) -> None:
    """Refuse numbers that are no tf32: how the copy rounds them is not published."""
    if (np.ascontiguousarray(window).view(np.uint32) & _BELOW_TF32).any():
        raise Unsupported("tensor map: a tf32 element with bits below those of tf32")


def store_box(
    tensor_map: TensorMap,
    coords: Sequence[int],
    data: Bytes,
    *,
    memory: Bytes,
    memory_address: int,
) -> None:
    """Write the box ``data`` [box_bytes] to ``coords``; what leaves the tensor is dropped.

    Arguments and errors as in ``load_box``; nothing is written if it raises.
    """
    clip = _clip(tensor_map, coords)
    window = _window(tensor_map, coords, clip, memory=memory, memory_address=memory_address)
    window[...] = data.reshape(*tensor_map.box[::-1], tensor_map.element_bytes)[clip]


def _window(
    tensor_map: TensorMap,
    coords: Sequence[int],
    clip: tuple[slice, ...],
    *,
    memory: Bytes,
    memory_address: int,
) -> Bytes:
    """The clipped box as a strided view of ``memory``: [..., box dims outermost first, bytes]."""
    shape = tuple(s.stop - s.start if s.stop > s.start else 0 for s in clip)
    if 0 in shape:
        return np.zeros((*shape, tensor_map.element_bytes), np.uint8)
    strides = tensor_map.strides[::-1]
    start = tensor_map.address - memory_address + _origin(tensor_map, coords)
    start += sum(s.start * stride for s, stride in zip(clip, strides, strict=True))
    last = start + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if start < 0 or last + tensor_map.element_bytes > memory.size:
        raise OutOfBounds(
            f"tensor map box at {tuple(coords)} covers bytes [{start}, "
            f"{last + tensor_map.element_bytes}) of a buffer of {memory.size} bytes"
        )
    return np.ndarray(
        (*shape, tensor_map.element_bytes), np.uint8, memory.data, start, (*strides, 1)
    )


def swizzle(addresses: NDArray[Any], span: int, atom: int = _CHUNK) -> NDArray[Any]:
    """Where the bytes of the dense box addresses ``addresses`` lie in shared memory.

    ``span`` is 0 (none), 32, 64 or 128 bytes: bits 4 to 6 are xor-ed with as many of the bits 7
    to 9 as the span has chunks, on the absolute shared address. With an ``atom`` of 32 bytes, which
    only a span of 128 can have, bits 5 and 6 are xor-ed with bits 7 and 8.
    """
    if atom != _CHUNK:
        wide: NDArray[Any] = addresses ^ ((addresses >> 7 & span // atom - 1) << 5)
        return wide
    placed: NDArray[Any] = addresses ^ ((addresses >> 7 & swizzle_mask(span)) << 4)
    return placed


def swizzle_mask(span: int) -> int:
    """Number of 16-byte chunks in a swizzle span, less one; 0 without swizzle."""
    return max(span // _CHUNK - 1, 0)


def shared_chunks(box_bytes: int, span: int, offset: int, atom: int = _CHUNK) -> Index:
    """Index, in 16-byte chunks of shared memory, of each chunk of a box stored at ``offset``.

    Raises Trap unless ``offset`` is a multiple of 128, as the PTX ISA demands, and the box a
    multiple of 16 bytes.
    """
    if offset % _LINE:
        raise Trap(f"tensor copy: shared address {offset:#x} is not a multiple of {_LINE} bytes")
    if box_bytes % _CHUNK:
        raise Trap(f"tensor copy: box of {box_bytes} bytes is not a multiple of {_CHUNK} bytes")
    # The pattern repeats every eight lines, so only the position within them matters.
    phase = offset % (8 * _LINE)
    return _chunks_from_phase(box_bytes, span, phase, atom) + (offset - phase) // _CHUNK


@cache
def _chunks_from_phase(box_bytes: int, span: int, phase: int, atom: int) -> Index:
    dense = np.arange(phase, phase + box_bytes, _CHUNK, dtype=np.int64)
    return swizzle(dense, span, atom) // _CHUNK


def write_shared(shared: Bytes, offset: int, box: Bytes, span: int) -> None:
    """Place the dense ``box`` at ``offset`` of ``shared``, a multiple of 16 bytes long, swizzled.

    Raises OutOfBounds if it does not fit, and what ``shared_chunks`` raises.
    """
    _require_room(shared, offset, box.size)
    chunks = shared_chunks(box.size, span, offset)
    shared.reshape(-1, _CHUNK)[chunks] = box.reshape(-1, _CHUNK)


def read_shared(shared: Bytes, offset: int, box_bytes: int, span: int) -> Bytes:
    """The dense box that lies swizzled at ``offset`` of ``shared``; errors as ``write_shared``."""
    _require_room(shared, offset, box_bytes)
    chunks = shared_chunks(box_bytes, span, offset)
    return shared.reshape(-1, _CHUNK)[chunks].reshape(-1)


def _require_room(shared: Bytes, offset: int, box_bytes: int) -> None:
    if offset < 0 or offset + box_bytes > shared.size:
        raise OutOfBounds(
            f"tensor copy: bytes [{offset}, {offset + box_bytes}) of shared memory, which has "
            f"{shared.size} bytes"
        )
