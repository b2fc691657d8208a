"""tcgen05.mma: operands out of shared memory, products added up, the result into TMEM.

``mma`` is a pure function of the participating CTAs' memories. Where things lie is in
``simulator.machine.tensor_core``, how products are added in ``simulator.numerics.accumulate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.errors import Unsupported
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
from simulator.numerics.accumulate import Accumulate
from simulator.numerics.formats import F16, Floats, decode, encode

_S32 = np.iinfo(np.int32)
_HALF = 16
"""Lanes of a warp's quarter that 64 rows of one CTA fill."""


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
    element_bytes = fmt.storage_bits // 8
    chunks = operand_chunks(descriptor, rows, element_bytes=element_bytes, mn_major=mn_major)
    data = shared.read_chunks(chunks)
    if isinstance(fmt, Integer):
        whole = data.reshape(len(chunks), -1).view(np.int8 if fmt.is_signed else np.uint8)
        values = whole.astype(np.float32)
    else:
        values = decode(data.reshape(len(chunks), -1).view(f"u{element_bytes}"), fmt)
    return values.T if mn_major else values


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


def _read_operands(operation: Mma, ctas: Sequence[Cta]) -> tuple[Floats, Floats]:
    """A [m, k] and B [n, k], put together from the parts of the CTAs."""
    side = operation.instruction

    def gather(at: SharedDescriptor, rows: int, fmt: OperandFormat, major: bool) -> Floats:
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
