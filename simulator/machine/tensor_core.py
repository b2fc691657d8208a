"""The fifth-generation tensor core: descriptors, operands in shared memory, tcgen05.mma.

``mma`` is a pure function of the participating CTAs' memories. Everything that no kernel or
document has verified is refused by name when a descriptor is decoded.

Sources: PTX ISA, "Shared memory descriptor", "Instruction descriptor", "Strides", "Matrix shape"
and "Data path layout organization"; the canonical layouts as CUTLASS states them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulator.errors import Trap, Unsupported
from simulator.machine.shared_memory import SharedMemory
from simulator.machine.tensor_map import swizzle
from simulator.machine.tensor_memory import TensorMemory
from simulator.numerics.accumulate import Accumulate, ideal
from simulator.numerics.formats import BF16, E4M3, E5M2, F16, Floats, Format, decode_table

Index = NDArray[np.int64]
Kind = Literal["f16", "f8f6f4"]

K_BYTES = 32
"""Bytes of K that one instruction consumes, for every dense kind."""

_CHUNK = 16
_PATTERN = 1024
_ROWS_PER_GROUP = 8
_SWIZZLES = {2: 128, 4: 64}
_REFUSED_SWIZZLES = {0: "none", 1: "128B with 32B atoms", 6: "32B"}
_FORMATS: dict[str, dict[int, Format]] = {
    "f16": {0: F16, 1: BF16},
    "f8f6f4": {0: E4M3, 1: E5M2},
}
_REFUSED_FORMATS = {3: "e2m3", 4: "e3m2", 5: "e2m1"}
_F32_ACCUMULATOR = 1
_FULL_N = 256


@dataclass(frozen=True)
class SharedDescriptor:
    """Where an operand lies in shared memory; all in bytes.

    ``leading`` separates swizzle spans along MN of an MN-major operand (a K-major one ignores it);
    ``stride`` separates groups of eight rows (K-major) or of eight k (MN-major).
    """

    start: int
    leading: int
    stride: int
    swizzle: int

    @staticmethod
    @cache
    def decode(value: int) -> SharedDescriptor:
        """The descriptor in a 64-bit register; Unsupported, naming the field, if unverified."""
        reserved = value & (0x3 << 14 | 0x3 << 30 | 0xFF << 53)
        if reserved:
            raise Unsupported(
                f"shared memory descriptor {value:#018x}: reserved bits {reserved:#x}"
            )
        if value >> 46 & 7 != 1:
            raise Unsupported(f"shared memory descriptor: version {value >> 46 & 7}, not 1")
        if value >> 49 & 7:
            raise Unsupported(f"shared memory descriptor: base offset {value >> 49 & 7}")
        if value >> 52 & 1:
            raise Unsupported("shared memory descriptor: absolute leading dimension addresses")
        code = value >> 61
        if code not in _SWIZZLES:
            name = _REFUSED_SWIZZLES.get(code, "invalid")
            raise Unsupported(f"shared memory descriptor: swizzle mode {code} ({name})")
        start, leading, stride = ((value >> at & 0x3FFF) << 4 for at in (0, 16, 32))
        return SharedDescriptor(start, leading, stride, _SWIZZLES[code])


@dataclass(frozen=True)
class InstructionDescriptor:
    """Shapes and formats of an MMA with a float32 accumulator; ``m`` and ``n`` of the whole MMA."""

    m: int
    n: int
    a: Format
    b: Format
    negate_a: bool
    negate_b: bool
    mn_major_a: bool
    mn_major_b: bool

    @staticmethod
    @cache
    def decode(value: int, kind: Kind) -> InstructionDescriptor:
        """The descriptor in a 32-bit register; Unsupported, naming the field, if unverified."""
        for mask, name in (
            (0x7, "sparsity"), (1 << 3, "integer saturation"), (0x3 << 30, "maximum shift"),
            (1 << 6 | 1 << 23 | 1 << 29, "reserved bits"),
        ):  # fmt: skip
            if value & mask:
                raise Unsupported(f"instruction descriptor {value:#010x}: {name}")
        if value >> 4 & 3 != _F32_ACCUMULATOR:
            raise Unsupported(f"instruction descriptor: accumulator type {value >> 4 & 3}, not f32")
        return InstructionDescriptor(
            m=(value >> 24 & 0x1F) << 4,
            n=(value >> 17 & 0x3F) << 3,
            a=_operand_format(kind, value >> 7 & 7, "A"),
            b=_operand_format(kind, value >> 10 & 7, "B"),
            negate_a=bool(value >> 13 & 1),
            negate_b=bool(value >> 14 & 1),
            mn_major_a=bool(value >> 15 & 1),
            mn_major_b=bool(value >> 16 & 1),
        )


def _operand_format(kind: str, code: int, operand: str) -> Format:
    if kind not in _FORMATS:
        raise Unsupported(f"tcgen05.mma: .kind::{kind}")
    if code not in _FORMATS[kind]:
        name = _REFUSED_FORMATS.get(code, "unknown") if kind == "f8f6f4" else "unknown"
        raise Unsupported(
            f"instruction descriptor: {operand} type {code} ({name}) of .kind::{kind}"
        )
    return _FORMATS[kind][code]


def operand_chunks(
    descriptor: SharedDescriptor, rows: int, *, element_bytes: int, mn_major: bool
) -> Index:
    """Which 16-byte chunks of shared memory hold the operand that one CTA supplies.

    Shape [rows, 2] for a K-major operand and [k, rows * element_bytes / 16] for an MN-major one;
    each chunk runs along the major dimension.
    """
    phase = descriptor.start % _PATTERN
    layout = (descriptor.leading, descriptor.stride, descriptor.swizzle)
    if mn_major:
        relative = _mn_major_chunks(phase, layout, rows * element_bytes, K_BYTES // element_bytes)
    else:
        relative = _k_major_chunks(phase, layout, rows)
    return relative + (descriptor.start - phase) // _CHUNK


@cache
def _k_major_chunks(phase: int, layout: tuple[int, int, int], rows: int) -> Index:
    _, stride, span = layout
    row, byte = np.ogrid[:rows, 0:K_BYTES:_CHUNK]
    dense = row % _ROWS_PER_GROUP * span + row // _ROWS_PER_GROUP * stride + byte
    return swizzle(phase + dense, span) // _CHUNK


@cache
def _mn_major_chunks(phase: int, layout: tuple[int, int, int], width: int, depth: int) -> Index:
    leading, stride, span = layout
    if width % _CHUNK:
        raise Unsupported(f"tcgen05.mma: MN-major operand of {width} bytes, not a multiple of 16")
    k, byte = np.ogrid[:depth, 0:width:_CHUNK]
    dense = byte % span + byte // span * leading
    dense = dense + k % _ROWS_PER_GROUP * span + k // _ROWS_PER_GROUP * stride
    return swizzle(phase + dense, span) // _CHUNK


def read_operand(
    shared: SharedMemory, descriptor: SharedDescriptor, rows: int, *, fmt: Format, mn_major: bool
) -> Floats:
    """The values [rows, k] of the operand that one CTA supplies.

    Raises OutOfBounds if the operand reaches beyond the CTA's shared memory, Uninitialised if
    nothing has written some of it.
    """
    element_bytes = fmt.storage_bits // 8
    chunks = operand_chunks(descriptor, rows, element_bytes=element_bytes, mn_major=mn_major)
    data = shared.read_chunks(chunks)
    codes = data.reshape(len(chunks), -1).view(np.uint16 if element_bytes == 2 else np.uint8)
    values: Floats = decode_table(fmt)[codes]
    return values.T if mn_major else values


@dataclass(frozen=True)
class Cta:
    """The memories of one participating CTA."""

    shared: SharedMemory
    tensor_memory: TensorMemory


@dataclass(frozen=True)
class Mma:
    """One tcgen05.mma: qualifiers, decoded operands, and whether D is added to.

    ``accumulator`` is a tensor memory address.
    """

    cta_group: int
    weight_stationary: bool
    instruction: InstructionDescriptor
    a: SharedDescriptor
    b: SharedDescriptor
    accumulator: int
    accumulate: bool


@dataclass(frozen=True)
class Block:
    """A rectangle of D and the lanes of one CTA that hold it, from the accumulator's column on."""

    cta: int
    rows: slice
    columns: slice
    lanes: slice


@cache
def accumulator_blocks(
    cta_group: int, weight_stationary: bool, m: int, n: int
) -> tuple[Block, ...]:
    """Where D [m, n] lies; CTA 0 is the even one of a pair.

    Raises Trap for shapes that PTX lacks, Unsupported for layouts that nothing has verified.
    """
    _require_shape(cta_group, weight_stationary, m, n)
    rows = m // cta_group
    blocks: list[Block] = []
    for cta in range(cta_group):
        top = cta * rows
        if rows == 128:
            blocks.append(Block(cta, slice(top, top + rows), slice(0, n), slice(0, rows)))
        elif cta_group == 2 or weight_stationary:
            # Two by two: the upper half of the columns of D goes to the upper half of the lanes.
            for half in range(2):
                columns = slice(half * n // 2, (half + 1) * n // 2)
                lanes = slice(half * rows, (half + 1) * rows)
                blocks.append(Block(cta, slice(top, top + rows), columns, lanes))
        else:
            # One CTA, 64 rows: sixteen rows to each warp's quarter of the lanes.
            for quarter in range(4):
                lanes = slice(32 * quarter, 32 * quarter + 16)
                part = slice(16 * quarter, 16 * quarter + 16)
                blocks.append(Block(cta, part, slice(0, n), lanes))
    return tuple(blocks)


def _require_shape(cta_group: int, weight_stationary: bool, m: int, n: int) -> None:
    form = f"tcgen05.mma{'.ws' if weight_stationary else ''}.cta_group::{cta_group}"
    if weight_stationary and cta_group != 1:
        raise Trap(f"{form}: .ws demands cta_group::1")
    heights = (32, 64, 128) if weight_stationary else (64 * cta_group, 128 * cta_group)
    step = 8 * cta_group
    widths = (64, 128, 256) if weight_stationary else range(step, _FULL_N + 1, step)
    if m not in heights or n not in widths:
        raise Trap(f"{form}: no shape M {m} N {n}")
    if weight_stationary and m != 64:
        raise Unsupported(f"{form}: accumulator layout of M {m}")


def mma(operation: Mma, ctas: Sequence[Cta], accumulate: Accumulate = ideal) -> None:
    """Compute D = A B (+ D) into the tensor memories of ``ctas``: one CTA, or the even then odd.

    CTA r supplies the r-th part of the rows of A and of B, at the same shared addresses. Raises
    what decoding the layouts raises, OutOfBounds and Uninitialised.
    """
    instruction = operation.instruction
    blocks = accumulator_blocks(
        operation.cta_group, operation.weight_stationary, instruction.m, instruction.n
    )
    if len(ctas) != operation.cta_group:
        raise ValueError(f"mma: {len(ctas)} CTAs for cta_group::{operation.cta_group}")
    lane, column = operation.accumulator >> 16, operation.accumulator & 0xFFFF
    if lane:
        raise Unsupported(f"tcgen05.mma: accumulator at lane {lane}, not 0")
    a, b = _read_operands(operation, ctas)
    c = _read_accumulator(blocks, ctas, column, operation) if operation.accumulate else None
    formats = (instruction.a, instruction.b)
    d = accumulate(a, b, c, step=a.shape[1], formats=formats)
    for block in blocks:
        part = d[block.rows, block.columns]
        ctas[block.cta].tensor_memory.write_block(block.lanes, column, part)


def _read_operands(operation: Mma, ctas: Sequence[Cta]) -> tuple[Floats, Floats]:
    """A [m, k] and B [n, k], put together from the parts of the CTAs."""
    side = operation.instruction

    def gather(at: SharedDescriptor, rows: int, fmt: Format, major: bool) -> Floats:
        rows //= len(ctas)
        return np.concatenate(
            [read_operand(cta.shared, at, rows, fmt=fmt, mn_major=major) for cta in ctas]
        )

    a = gather(operation.a, side.m, side.a, side.mn_major_a)
    b = gather(operation.b, side.n, side.b, side.mn_major_b)
    return -a if side.negate_a else a, -b if side.negate_b else b


def _read_accumulator(
    blocks: Sequence[Block], ctas: Sequence[Cta], column: int, operation: Mma
) -> Floats:
    """D [m, n] as it lies in the tensor memories."""
    c = np.empty((operation.instruction.m, operation.instruction.n), np.float32)
    for block in blocks:
        width = block.columns.stop - block.columns.start
        memory = ctas[block.cta].tensor_memory
        c[block.rows, block.columns] = memory.read_block(block.lanes, column, width)
    return c
