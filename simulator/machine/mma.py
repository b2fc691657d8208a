"""tcgen05.mma: operands out of shared memory, products added up, the result into TMEM.

``mma`` is a pure function of the participating CTAs' memories. Where things lie is in
``simulator.machine.tensor_core``, how products are added in ``simulator.numerics.accumulate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.errors import Unsupported
from simulator.machine.block_scale import ScaledDescriptor, Scales, read_scales
from simulator.machine.shared_memory import SharedMemory
from simulator.machine.tensor_core import (
    Block,
    InstructionDescriptor,
    Integer,
    OperandFormat,
    SharedDescriptor,
    accumulator_blocks,
    operand_chunks,
)
from simulator.machine.tensor_memory import TensorMemory
from simulator.numerics.accumulate import Accumulate, scaled_sum
from simulator.numerics.formats import E2M1, F16, Floats, decode, encode

_S32 = np.iinfo(np.int32)
_HALF = 16
"""Lanes of a warp's quarter that 64 rows of one CTA fill."""
_LANES = 128
_K_COLUMNS = 8
"""Columns of tensor memory that hold the 32 bytes of K of an operand A."""


@dataclass(frozen=True)
class Cta:
    """The memories of one participating CTA."""

    shared: SharedMemory
    tensor_memory: TensorMemory


@dataclass(frozen=True)
class Mma:
    """One tcgen05.mma: qualifiers, decoded operands, and whether D is added to.

    ``accumulator`` is a tensor memory address, and so is ``a`` if that operand lies there.
    """

    cta_group: int
    weight_stationary: bool
    instruction: InstructionDescriptor
    a: SharedDescriptor | int
    b: SharedDescriptor
    accumulator: int
    accumulate: bool


@dataclass(frozen=True)
class ScaledMma:
    """One block-scaled tcgen05.mma, as ``Mma``, with the scales of A and of B."""

    cta_group: int
    instruction: ScaledDescriptor
    a: SharedDescriptor | int
    b: SharedDescriptor
    accumulator: int
    accumulate: bool
    scales: tuple[Scales, Scales]

    @property
    def weight_stationary(self) -> bool:
        """There is no such form."""
        return False


def read_operand(
    shared: SharedMemory,
    descriptor: SharedDescriptor,
    rows: int,
    *,
    fmt: OperandFormat,
    mn_major: bool,
) -> Floats:
    """The values [rows, k] of the operand that one CTA supplies.

    Raises OutOfBounds if the operand reaches beyond the CTA's shared memory, Uninitialised if
    nothing has written some of it.
    """
    element_bytes = max(fmt.storage_bits // 8, 1)
    chunks = operand_chunks(descriptor, rows, element_bytes=element_bytes, mn_major=mn_major)
    data = shared.read_chunks(chunks)
    if fmt is E2M1:
        return _nibbles(data.reshape(rows, -1))
    if isinstance(fmt, Integer):
        whole = data.reshape(len(chunks), -1).view(np.int8 if fmt.is_signed else np.uint8)
        values = whole.astype(np.float32)
    else:
        values = decode(data.reshape(len(chunks), -1).view(f"u{element_bytes}"), fmt)
    return values.T if mn_major else values


def _nibbles(data: NDArray[np.uint8]) -> Floats:
    """The e2m1 values of packed bytes [rows, bytes], the low half of each byte first."""
    codes = np.stack([data & 0xF, data >> 4], axis=-1)
    return decode(codes.reshape(len(data), -1), E2M1)


def read_tensor_operand(
    memory: TensorMemory, address: int, rows: int, fmt: OperandFormat
) -> Floats:
    """The values [rows, k] of an operand A in tensor memory: row r in lane r, dense along K.

    Raises Unsupported for other shapes than 128 rows, OutOfBounds and Uninitialised.
    """
    lane, column = address >> 16, address & 0xFFFF
    if rows != _LANES or lane:
        raise Unsupported(f"tcgen05.mma: {rows} rows of A in tensor memory at lane {lane}")
    words = np.ascontiguousarray(memory.read_block(slice(0, _LANES), column, _K_COLUMNS))
    if isinstance(fmt, Integer):
        return words.view(np.int8 if fmt.is_signed else np.uint8).astype(np.float32)
    if fmt is E2M1:
        return _nibbles(words.view(np.uint8))
    return decode(words.view(f"u{fmt.storage_bits // 8}"), fmt)


def scaled_mma(operation: ScaledMma, ctas: Sequence[Cta], *, is_ideal: bool) -> None:
    """Compute D = (A scaled) (B scaled) (+ D), as ``mma``. Each CTA has its rows' scales of A.

    ``is_ideal`` rounds the sum once; see ``scaled_sum``.
    """
    instruction, column = operation.instruction, operation.accumulator & 0xFFFF
    blocks = accumulator_blocks(operation.cta_group, False, instruction.m, instruction.n)
    if operation.accumulator >> 16:
        raise Unsupported(f"tcgen05.mma.block_scale: D at lane {operation.accumulator >> 16}")
    a, b = _read_operands(operation, ctas)
    c = _read_accumulator(blocks, ctas, column, operation) if operation.accumulate else None
    for block in blocks:
        memory, (of_a, of_b) = ctas[block.cta].tensor_memory, operation.scales
        height = block.rows.stop - block.rows.start
        scales_a = read_scales(memory, of_a, height, instruction.scale)
        scales_b = read_scales(memory, of_b, instruction.n, instruction.scale)
        part = scaled_sum(
            (a[block.rows], scales_a),
            (b, scales_b),
            None if c is None else c[block.rows],
            is_ideal=is_ideal,
        )
        memory.write_block(block.lanes, column, part)


def mma(operation: Mma, ctas: Sequence[Cta], accumulate: Accumulate) -> None:
    """Compute D = A B (+ D) into the tensor memories of ``ctas``: one CTA, or the even then odd.

    CTA r supplies the r-th part of the rows of A and of B, at the same shared addresses. Raises
    what decoding the layouts raises, OutOfBounds and Uninitialised.
    """
    instruction = operation.instruction
    blocks: Sequence[Block] = accumulator_blocks(
        operation.cta_group, operation.weight_stationary, instruction.m, instruction.n
    )
    if len(ctas) != operation.cta_group:
        raise ValueError(f"mma: {len(ctas)} CTAs for cta_group::{operation.cta_group}")
    lane, column = operation.accumulator >> 16, operation.accumulator & 0xFFFF
    if lane:
        blocks = _moved(blocks, lane, operation)
    a, b = _read_operands(operation, ctas)
    c = _read_accumulator(blocks, ctas, column, operation) if operation.accumulate else None
    d = _added(a, b, c, instruction, accumulate)
    for block in blocks:
        part = d[block.rows, block.columns]
        ctas[block.cta].tensor_memory.write_block(block.lanes, column, part)


def _moved(blocks: Sequence[Block], lane: int, operation: Mma) -> list[Block]:
    """The blocks of an accumulator whose address names ``lane``.

    64 rows of one CTA leave half of each warp's lanes free: PTX ISA, "Data path layout F".
    """
    if lane != _HALF or any(b.lanes.stop - b.lanes.start != _HALF for b in blocks):
        raise Unsupported(
            f"tcgen05.mma: accumulator of M {operation.instruction.m} at lane {lane}, not 0"
        )
    return [replace(b, lanes=slice(b.lanes.start + lane, b.lanes.stop + lane)) for b in blocks]


def _added(
    a: Floats,
    b: Floats,
    c: Floats | None,
    instruction: InstructionDescriptor,
    accumulate: Accumulate,
) -> Floats:
    """The words of D: ``s32`` wraps around or saturates, ``f16`` lies in the low half of its word.

    That a sum for ``f16`` is formed as for float32 and then rounded to nearest is an assumption.
    """
    if isinstance(instruction.a, Integer) or isinstance(instruction.b, Integer):
        total = (a.astype(np.float64) @ b.T.astype(np.float64)).astype(np.int64)
        if c is not None:
            total += c.view(np.int32)
        if instruction.saturates:
            total = total.clip(_S32.min, _S32.max)
        return total.astype(np.int32).view(np.float32)
    formats = (instruction.a, instruction.b)
    if instruction.accumulator == "f32":
        return accumulate(a, b, c, step=a.shape[1], formats=formats)
    if c is not None:
        c = decode(c.view(np.uint32) & np.uint32(0xFFFF), F16)
    d = accumulate(a, b, c, step=a.shape[1], formats=formats)
    return encode(d.view(np.uint32), F16).view(np.float32)


def _read_operands(operation: Mma | ScaledMma, ctas: Sequence[Cta]) -> tuple[Floats, Floats]:
    """A [m, k] and B [n, k], put together from the parts of the CTAs."""
    side = operation.instruction

    def read(
        cta: Cta, at: SharedDescriptor | int, rows: int, fmt: OperandFormat, major: bool
    ) -> Floats:
        if isinstance(at, SharedDescriptor):
            return read_operand(cta.shared, at, rows, fmt=fmt, mn_major=major)
        if major or operation.weight_stationary:
            form = "M-major" if major else ".ws"
            raise Unsupported(f"tcgen05.mma: A in tensor memory that is {form}")
        return read_tensor_operand(cta.tensor_memory, at, rows, fmt)

    def gather(at: SharedDescriptor | int, rows: int, fmt: OperandFormat, major: bool) -> Floats:
        rows //= len(ctas)
        return np.concatenate([read(cta, at, rows, fmt, major) for cta in ctas])

    a = gather(operation.a, side.m, side.a, side.mn_major_a)
    b = gather(operation.b, side.n, side.b, side.mn_major_b)
    return -a if side.negate_a else a, -b if side.negate_b else b


def _read_accumulator(
    blocks: Sequence[Block], ctas: Sequence[Cta], column: int, operation: Mma | ScaledMma
) -> Floats:
    """D [m, n] as it lies in the tensor memories."""
    c = np.empty((operation.instruction.m, operation.instruction.n), np.float32)
    for block in blocks:
        width = block.columns.stop - block.columns.start
        memory = ctas[block.cta].tensor_memory
        c[block.rows, block.columns] = memory.read_block(block.lanes, column, width)
    return c
