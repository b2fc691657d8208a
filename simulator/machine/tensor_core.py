"""The fifth-generation tensor core: descriptors, where operands and accumulators lie.

Everything that no kernel or document has verified is refused by name when a descriptor is decoded;
``simulator.machine.mma`` computes.

Sources: PTX ISA, "Shared memory descriptor", "Instruction descriptor", "Strides", "Matrix shape"
and "Data path layout organization"; the canonical layouts as CUTLASS states them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.errors import Trap, Unsupported
from simulator.machine.tensor_map import swizzle
from simulator.numerics.formats import BF16, E4M3, E5M2, F16, TF32, Format

Index = NDArray[np.int64]
Kind = Literal["f16", "tf32", "f8f6f4", "i8"]

Accumulator = Literal["f32", "f16", "s32"]


@dataclass(frozen=True)
class Integer:
    """An operand format of whole numbers."""

    name: str
    storage_bits: int
    is_signed: bool


U8, S8 = Integer("u8", 8, is_signed=False), Integer("s8", 8, is_signed=True)
OperandFormat = Format | Integer

K_BYTES = 32
"""Bytes of K that one instruction consumes, for every dense kind."""

_CHUNK = 16
_PATTERN = 1024
_ROWS_PER_GROUP = 8
_SWIZZLES = {0: (0, 16), 1: (128, 32), 2: (128, 16), 4: (64, 16), 6: (32, 16)}
"""Span and atom in bytes, by code."""
_FORMATS: dict[str, dict[int, OperandFormat]] = {
    "f16": {0: F16, 1: BF16},
    "tf32": {2: TF32},
    "f8f6f4": {0: E4M3, 1: E5M2},
    "i8": {0: U8, 1: S8},
}
_REFUSED_FORMATS = {3: "e2m3", 4: "e3m2", 5: "e2m1"}
_ACCUMULATORS: dict[str, dict[int, Accumulator]] = {
    "f16": {0: "f16", 1: "f32"}, "tf32": {1: "f32"},
    "f8f6f4": {0: "f16", 1: "f32"}, "i8": {2: "s32"},
}  # fmt: skip
_FULL_N = 256


@dataclass(frozen=True)
class SharedDescriptor:
    """Where an operand lies in shared memory; all in bytes.

    ``leading`` separates swizzle spans along MN of an MN-major operand (a K-major one ignores it);
    ``stride`` separates groups of eight rows (K-major) or of eight k (MN-major; four where the
    ``atom`` of the swizzle has 32 bytes). Without swizzle ``leading`` separates chunks along k and
    ``stride`` groups of eight rows (K-major), or the first groups of eight k and the second chunks
    along MN (MN-major).
    """

    start: int
    leading: int
    stride: int
    swizzle: int
    atom: int = 16

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
            raise Unsupported(f"shared memory descriptor: swizzle mode {code} (invalid)")
        start, leading, stride = ((value >> at & 0x3FFF) << 4 for at in (0, 16, 32))
        return SharedDescriptor(start, leading, stride, *_SWIZZLES[code])


@dataclass(frozen=True)
class InstructionDescriptor:
    """Shapes and formats of an MMA; ``m`` and ``n`` of the whole MMA."""

    m: int
    n: int
    a: OperandFormat
    b: OperandFormat
    negate_a: bool
    negate_b: bool
    mn_major_a: bool
    mn_major_b: bool
    accumulator: Accumulator = "f32"
    saturates: bool = False

    @staticmethod
    @cache
    def decode(value: int, kind: Kind) -> InstructionDescriptor:
        """The descriptor in a 32-bit register; Unsupported, naming the field, if unverified."""
        for mask, name in (
            (0x7, "sparsity"), (0x3 << 30, "maximum shift"),
            (1 << 6 | 1 << 23 | 1 << 29, "reserved bits"),
        ):  # fmt: skip
            if value & mask:
                raise Unsupported(f"instruction descriptor {value:#010x}: {name}")
        if value >> 3 & 1 and kind != "i8":
            raise Unsupported(f"instruction descriptor {value:#010x}: saturation of .kind::{kind}")
        if value >> 4 & 3 not in _ACCUMULATORS.get(kind, ()):
            raise Unsupported(
                f"instruction descriptor: accumulator type {value >> 4 & 3} of .kind::{kind}"
            )
        return InstructionDescriptor(
            m=(value >> 24 & 0x1F) << 4,
            n=(value >> 17 & 0x3F) << 3,
            a=_operand_format(kind, value >> 7 & 7, "A"),
            b=_operand_format(kind, value >> 10 & 7, "B"),
            negate_a=bool(value >> 13 & 1),
            negate_b=bool(value >> 14 & 1),
            mn_major_a=bool(value >> 15 & 1),
            mn_major_b=bool(value >> 16 & 1),
            accumulator=_ACCUMULATORS[kind][value >> 4 & 3],
            saturates=bool(value >> 3 & 1),
        )


def _operand_format(kind: str, code: int, operand: str) -> OperandFormat:
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
    layout = _Layout(descriptor.leading, descriptor.stride, descriptor.swizzle, descriptor.atom)
    if descriptor.atom != _CHUNK and not mn_major:
        raise Unsupported("tcgen05.mma: K-major operand with swizzle atoms of 32 bytes")
    if mn_major:
        relative = _mn_major_chunks(phase, layout, rows * element_bytes, K_BYTES // element_bytes)
    else:
        relative = _k_major_chunks(phase, layout, rows)
    return relative + (descriptor.start - phase) // _CHUNK


class _Layout(NamedTuple):
    """What of a descriptor says where chunks lie relative to the first."""

    leading: int
    stride: int
    span: int
    atom: int


@cache
def _k_major_chunks(phase: int, layout: _Layout, rows: int) -> Index:
    row, byte = np.ogrid[:rows, 0:K_BYTES:_CHUNK]
    if layout.span:
        dense = row % _ROWS_PER_GROUP * layout.span + byte
    else:
        dense = row % _ROWS_PER_GROUP * _CHUNK + byte // _CHUNK * layout.leading
    dense = dense + row // _ROWS_PER_GROUP * layout.stride
    return swizzle(phase + dense, layout.span) // _CHUNK


@cache
def _mn_major_chunks(phase: int, layout: _Layout, width: int, depth: int) -> Index:
    leading, stride, span, atom = layout
    group = _ROWS_PER_GROUP
    if width % _CHUNK:
        raise Unsupported(f"tcgen05.mma: MN-major operand of {width} bytes, not a multiple of 16")
    k, byte = np.ogrid[:depth, 0:width:_CHUNK]
    if not span:
        span, leading, stride = _CHUNK, stride, leading
    if atom != _CHUNK:
        group = span // atom
    dense = byte % span + byte // span * leading
    dense = dense + k % group * span + k // group * stride
    return swizzle(phase + dense, layout.span, atom) // _CHUNK


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
