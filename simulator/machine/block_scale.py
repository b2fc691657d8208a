"""Block-scaled MMAs: their instruction descriptor, and where the scales lie in tensor memory.

Sources: PTX ISA, "Instruction descriptor" for the kinds mxf8f6f4, mxf4 and mxf4nvf4, and "Scale
factor layout": the scales of a row are bytes of one word, at lane ``row % 32`` and column
``row // 32``; all four quarters of the lanes hold the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from simulator.errors import Trap, Unsupported
from simulator.machine.tensor_memory import TensorMemory
from simulator.numerics.formats import E2M1, E4M3, E5M2, Format, decode

Kind = Literal["mxf8f6f4", "mxf4", "mxf4nvf4"]
Doubles = NDArray[np.float64]

DEPTH: Final = {"mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
"""The elements of K that one instruction consumes: 32 bytes of each operand."""

_FORMATS: Final[dict[str, dict[int, Format]]] = {
    "mxf8f6f4": {0: E4M3, 1: E5M2},
    "mxf4": {1: E2M1},
    "mxf4nvf4": {1: E2M1},
}
_RESERVED: Final = 1 << 31 | 1 << 6 | 1 << 3 | 0x7
_QUARTER = 32
_ROWS = 128
_COLUMN_MASK = 0xFFFF
_UE8M0_BIAS = 127


@dataclass(frozen=True)
class ScaledDescriptor:
    """Shapes and formats of a block-scaled MMA; ``m`` and ``n`` of the whole MMA.

    ``scale`` is ``ue8m0`` or ``ue4m3``; ``first_a`` and ``first_b`` are the bytes of a scale word
    that the instruction begins with.
    """

    m: int
    n: int
    a: Format
    b: Format
    negate_a: bool
    negate_b: bool
    mn_major_a: bool
    mn_major_b: bool
    scale: str
    first_a: int
    first_b: int

    @staticmethod
    @cache
    def decode(value: int, kind: Kind) -> ScaledDescriptor:
        """The descriptor in a 32-bit register; Unsupported, naming the field, if unverified."""
        if value & _RESERVED:
            raise Unsupported(
                f"instruction descriptor {value:#010x} of .kind::{kind}: sparsity, K of 96, or "
                f"reserved bits {value & _RESERVED:#x}"
            )
        return ScaledDescriptor(
            m=(value >> 24 & 0x1F) << 4,
            n=(value >> 17 & 0x3F) << 3,
            a=_format(kind, value >> 7 & 7, "A"),
            b=_format(kind, value >> 10 & 7, "B"),
            negate_a=bool(value >> 13 & 1),
            negate_b=bool(value >> 14 & 1),
            mn_major_a=bool(value >> 15 & 1),
            mn_major_b=bool(value >> 16 & 1),
            scale="ue8m0" if value >> 23 & 1 else "ue4m3",
            first_a=value >> 29 & 3,
            first_b=value >> 4 & 3,
        )

    def validate(self, kind: Kind, block: int, cta_group: int) -> None:
        """Raise Trap or Unsupported unless the fields fit the mnemonic."""
        form = f"tcgen05.mma.cta_group::{cta_group}.kind::{kind}.block_scale.block{block}"
        if self.scale == "ue4m3" and kind != "mxf4nvf4":
            raise Trap(f"{form}: scales of type ue4m3")
        if self.m != _ROWS * cta_group:
            raise Unsupported(f"{form}: layout of M {self.m}")
        if kind != "mxf8f6f4" and (self.mn_major_a or self.mn_major_b):
            raise Trap(f"{form}: an operand of 4 bits that is not K-major")
        count = DEPTH[kind] // block
        for first in (self.first_a, self.first_b):
            if first % count:
                raise Trap(f"{form}: scale factor id {first} with {count} scales a row")


def _format(kind: str, code: int, operand: str) -> Format:
    if code not in _FORMATS[kind]:
        raise Unsupported(f"instruction descriptor: {operand} type {code} of .kind::{kind}")
    return _FORMATS[kind][code]


@dataclass(frozen=True)
class Scales:
    """Where the scales of one operand lie: a tensor memory address, the first byte, how many."""

    address: int
    first: int
    count: int


def read_scales(memory: TensorMemory, scales: Scales, rows: int, fmt: str) -> Doubles:
    """The scales [rows, count]. The two top bits of the address repeat the first byte.

    Raises Unsupported for another lane than 0, Trap if the quarters of the lanes differ, and what
    reading tensor memory raises.
    """
    lane, column = scales.address >> 16 & 0x3FFF, scales.address & _COLUMN_MASK
    if lane:
        raise Unsupported(f"tcgen05.mma.block_scale: scales at lane {lane}, not 0")
    width = -(-rows // _QUARTER)
    words = memory.read_block(slice(0, 4 * _QUARTER), column, width).view(np.uint32)
    quarters = words.reshape(4, _QUARTER, width)
    if (quarters != quarters[0]).any():
        raise Trap(
            f"tcgen05.mma.block_scale: the scales at column {column} differ between the quarters "
            "of the lanes"
        )
    codes = np.ascontiguousarray(quarters[0].T).view(np.uint8).reshape(width * _QUARTER, 4)
    return _decode(codes[:rows, scales.first : scales.first + scales.count], fmt)


def _decode(codes: NDArray[np.uint8], fmt: str) -> Doubles:
    """The values of scale codes: unsigned, so a sign bit of ue4m3 does not count."""
    if fmt == "ue4m3":
        return decode(codes & 0x7F, E4M3).astype(np.float64)
    powers = np.ldexp(1.0, codes.astype(np.int64) - _UE8M0_BIAS)
    return np.where(codes == 0xFF, np.nan, powers)
