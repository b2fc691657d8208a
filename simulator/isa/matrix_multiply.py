"""mma.sync: a warp multiplies fragments in registers, D [16, 8] = A [16, k] B [8, k]^T + C.

Lane 4 g + t holds of A rows g and g + 8 and of B column g; a register has as many neighbours in k
as fit, those of t, and a second register the same half of k further. Of C and D it holds columns
2 t and 2 t + 1 of rows g and g + 8. Sums are formed as tcgen05.mma forms them: an assumption.
Source: PTX ISA 9.7.14.5.14 mma and the figures before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.isa.table import Kind, instruction
from simulator.machine.warp import LANES, Mask, Warp
from simulator.numerics.formats import BF16, E4M3, E5M2, F16, TF32, Format, decode, encode

Array = Any
_ROWS, _COLUMNS, _GROUPS, _THREADS = 16, 8, 8, 4
_FORMATS: dict[str, Format] = {
    "f16": F16, "bf16": BF16, "tf32": TF32, "e4m3": E4M3, "e5m2": E5M2,
}  # fmt: skip
_S32 = np.iinfo(np.int32)


def _elements(registers: tuple[Array, ...], bits: int) -> Array:
    """The codes of fragments [register, group, thread, neighbour]."""
    words = np.ascontiguousarray(np.stack(registers))
    return words.view(f"u{bits // 8}").reshape(len(registers), _GROUPS, _THREADS, -1)


def _rows_of_a(registers: tuple[Array, ...], bits: int) -> Array:
    """The codes of A [16, k]."""
    held = _elements(registers, bits)
    halves = held.reshape(len(held) // 2, 2, *held.shape[1:])
    return halves.transpose(1, 2, 0, 3, 4).reshape(_ROWS, -1)


def _columns_of_b(registers: tuple[Array, ...], bits: int) -> Array:
    """The codes of B [8, k]."""
    return _elements(registers, bits).transpose(1, 0, 2, 3).reshape(_COLUMNS, -1)


def _matrix(registers: tuple[Array, ...]) -> Array:
    """C [16, 8] from four words a lane."""
    held = np.stack(registers).reshape(2, 2, _GROUPS, _THREADS)
    return held.transpose(0, 2, 3, 1).reshape(_ROWS, _COLUMNS)


def _registers(d: Array) -> Array:
    """Four words a lane of D [16, 8]."""
    parts = d.reshape(2, _GROUPS, _THREADS, 2).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(parts.reshape(4, LANES))


def _declare(k: int, a: str, b: str, bits: int) -> None:
    """Enter a product of floating-point fragments into float32."""
    count = k * bits // 128

    @instruction(
        f"mma.sync.aligned.m16n8k{k}.row.col.f32.{a}.{b}.f32",
        f"(f32*4) = {_vector(2 * count)} {_vector(count)} (f32*4)",
        section="9.7.14.5.14 mma",
        kind=Kind.EFFECT,
        converged=True,
    )
    def multiply(warp: Warp, mask: Mask | None, *operands: Any) -> Array:
        """The product in float32."""
        of_a, of_b, of_c = operands
        c = _matrix(of_c)
        return _registers(_product(warp, _tuple(of_a), _tuple(of_b), c))

    def _product(warp: Warp, of_a: Any, of_b: Any, c: Array) -> Array:
        formats = _FORMATS[a], _FORMATS[b]
        values_a = decode(_rows_of_a(of_a, bits), formats[0])
        values_b = decode(_columns_of_b(of_b, bits), formats[1])
        accumulate = warp.cta.cluster.launch.accumulate
        return accumulate(values_a, values_b, c, step=k, formats=formats)

    if a == b == "f16":

        @instruction(
            f"mma.sync.aligned.m16n8k{k}.row.col.f16.f16.f16.f16",
            f"(f16x2*2) = {_vector(2 * count)} {_vector(count)} (f16x2*2)",
            section="9.7.14.5.14 mma",
            kind=Kind.EFFECT,
            converged=True,
        )
        def multiply_half(warp: Warp, mask: Mask | None, *operands: Any) -> Array:
            """The product in float32, rounded to f16 at the end."""
            of_a, of_b, of_c = operands
            pairs = np.stack(of_c).reshape(2, LANES, 2).transpose(0, 2, 1).reshape(4, LANES)
            c = _matrix(tuple(pairs.astype(np.float32)))
            d = _registers(_product(warp, _tuple(of_a), _tuple(of_b), c))
            codes = encode(d.view(np.uint32), F16).astype(np.uint16).view(np.float16)
            return np.ascontiguousarray(codes.reshape(2, 2, LANES).transpose(0, 2, 1)).reshape(
                2, -1
            )


def _vector(count: int) -> str:
    return f"(b32*{count})"


def _tuple(operand: Any) -> tuple[Array, ...]:
    return operand if isinstance(operand, tuple) else (operand,)


def _declare_whole(k: int, a: str, b: str, saturates: str) -> None:
    """Enter a product of 8-bit integers into s32, which wraps around or saturates."""
    count = k * 8 // 128

    @instruction(
        f"mma.sync.aligned.m16n8k{k}.row.col{saturates}.s32.{a}.{b}.s32",
        f"(s32*4) = {_vector(2 * count)} {_vector(count)} (s32*4)",
        section="9.7.14.5.14 mma",
        kind=Kind.EFFECT,
        converged=True,
    )
    def multiply(warp: Warp, mask: Mask | None, *operands: Any) -> Array:
        """The exact product."""
        of_a, of_b, of_c = operands
        values_a = _rows_of_a(_tuple(of_a), 8).view("i1" if a == "s8" else "u1").astype(np.int64)
        values_b = _columns_of_b(_tuple(of_b), 8).view("i1" if b == "s8" else "u1")
        total = values_a @ values_b.astype(np.int64).T + _matrix(of_c)
        if saturates:
            total = total.clip(_S32.min, _S32.max)
        return _registers(total.astype(np.int32))


for _k in (8, 16):
    _declare(_k, "f16", "f16", 16)
    _declare(_k, "bf16", "bf16", 16)
for _k in (4, 8):
    _declare(_k, "tf32", "tf32", 32)
for _a in ("e4m3", "e5m2"):
    for _b in ("e4m3", "e5m2"):
        _declare(16, _a, _b, 8)
        _declare(32, _a, _b, 8)
for _a in ("s8", "u8"):
    for _b in ("s8", "u8"):
        for _saturates in ("", ".satfinite"):
            _declare_whole(16, _a, _b, _saturates)
            _declare_whole(32, _a, _b, _saturates)
