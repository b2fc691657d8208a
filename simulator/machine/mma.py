"""tcgen05.mma: operands out of shared memory, products added up, the result into TMEM.

``mma`` is a pure function of the participating CTAs' memories. Where things lie is in
``simulator.machine.tensor_core``, how products are added in ``simulator.numerics.accumulate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.errors import Unsupported
from simulator.machine.shared_memory import SharedMemory
from simulator.machine.tensor_core import (
    Block,
    InstructionDescriptor,
    SharedDescriptor,
    accumulator_blocks,
    operand_chunks,
)
from simulator.machine.tensor_memory import TensorMemory
from simulator.numerics.accumulate import Accumulate
from simulator.numerics.formats import Floats, Format, decode_table


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


def mma(operation: Mma, ctas: Sequence[Cta], accumulate: Accumulate) -> None:
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
