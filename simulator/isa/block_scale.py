"""Block-scaled MMAs of the tensor core, and tcgen05.cp, which brings their scales to TMEM.

Source: PTX ISA 9.7.16.9.2 tcgen05.cp, 9.7.16.10.9 tcgen05.mma.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from simulator.isa.table import Kind, instruction
from simulator.isa.tcgen05 import COLLECTOR_A, engine, issue, pair
from simulator.machine import block_scale, mma
from simulator.machine.block_scale import DEPTH, ScaledDescriptor, Scales
from simulator.machine.cluster import Cta
from simulator.machine.tensor_core import SharedDescriptor, operand_chunks
from simulator.machine.warp import Mask, Warp
from simulator.numerics.accumulate import ideal

Array = Any
_QUARTER = 32
_SCALE_ID_SHIFT = 30


# 1. Copies from shared to tensor memory

_COPIES: dict[str, tuple[int, int, tuple[tuple[int, int], ...]]] = {
    "128x256b": (128, 8, ((0, 0), (32, 32), (64, 64), (96, 96))),
    "128x128b": (128, 4, ((0, 0), (32, 32), (64, 64), (96, 96))),
    "64x128b.warpx2::02_13": (64, 4, ((0, 0), (64, 0), (32, 32), (96, 32))),
    "64x128b.warpx2::01_23": (64, 4, ((0, 0), (32, 0), (64, 32), (96, 32))),
    "32x128b.warpx4": (32, 4, ((0, 0), (32, 0), (64, 0), (96, 0))),
}
"""Rows, columns, and for each quarter of the lanes the first of them and of its rows."""


def _copy(cta: Cta, address: int, descriptor: SharedDescriptor, shape: str) -> None:
    """Do one copy within a CTA."""
    rows, columns, quarters = _COPIES[shape]
    chunks = operand_chunks(descriptor, rows, element_bytes=1, mn_major=False)
    data = cta.shared.read_chunks(chunks[:, : columns // 4])
    words = data.view(np.float32).reshape(rows, columns)
    first, column = address >> 16, address & 0xFFFF
    for lane, row in quarters:
        where = slice(first + lane, first + lane + _QUARTER)
        cta.tensor_memory.write_block(where, column, words[row : row + _QUARTER])


def _declare_copy(shape: str, group: int) -> None:
    """Enter one copy; with cta_group::2 both CTAs of the pair do it."""

    @instruction(
        f"tcgen05.cp.cta_group::{group}.{shape}",
        "[b32] b64",
        section="9.7.16.9.2 tcgen05.cp",
        kind=Kind.EFFECT,
    )
    def copy(warp: Warp, mask: Mask | None, target: Array, source: Array) -> None:
        """Copy rows of shared memory to TMEM, in order with the MMAs of the tensor core."""
        ctas = pair(warp, group)
        for lane in warp.lanes(mask):
            address = int(target[lane])
            descriptor = SharedDescriptor.decode(int(source[lane]))

            def act(address: int = address, descriptor: SharedDescriptor = descriptor) -> None:
                for cta in ctas:
                    _copy(cta, address, descriptor, shape)

            cluster = warp.cta.cluster
            cluster.asynchronous.submit(engine(warp.cta), act, cluster.site(warp))


for _shape, _group in itertools.product(_COPIES, (1, 2)):
    _declare_copy(_shape, _group)


# 2. Multiplication

_VECTORS = {
    "mxf8f6f4": {"": 32, ".scale_vec::1X": 32, ".block32": 32},
    "mxf4": {"": 32, ".scale_vec::2X": 32, ".block32": 32},
    "mxf4nvf4": {".scale_vec::2X": 32, ".block32": 32, ".scale_vec::4X": 16, ".block16": 16},
}
"""Elements of K that share a scale, by kind and by the words for it."""


def _multiplier(
    kind: block_scale.Kind, group: int, block: int, *, a_in_tmem: bool
) -> Callable[..., None]:
    """The function of one form."""
    count = DEPTH[kind] // block

    def multiply(warp: Warp, mask: Mask | None, *operands: Array) -> None:
        """Multiply operands whose blocks along K have scales."""
        ctas, cluster = pair(warp, group), warp.cta.cluster
        for lane in warp.lanes(mask):
            d, a, b, idesc, scale_a, scale_b, enabled = (int(o[lane]) for o in operands)
            descriptor = ScaledDescriptor.decode(idesc, kind)
            descriptor.validate(kind, block, group)
            operation = mma.ScaledMma(
                group,
                descriptor,
                a if a_in_tmem else SharedDescriptor.decode(a),
                SharedDescriptor.decode(b),
                d,
                bool(enabled),
                (
                    Scales(_without_id(scale_a), descriptor.first_a, count),
                    Scales(_without_id(scale_b), descriptor.first_b, count),
                ),
            )

            def act(operation: mma.ScaledMma = operation) -> None:
                memories = [mma.Cta(c.shared, c.tensor_memory) for c in ctas]
                is_ideal = cluster.launch.accumulate is ideal
                mma.scaled_mma(operation, memories, is_ideal=is_ideal)

            issue(warp, kind, 2 * descriptor.m * descriptor.n * DEPTH[kind], act)

    return multiply


def _without_id(address: int) -> int:
    """A scale's address without the scale factor id, which kernels leave in its two top bits."""
    return address & ((1 << _SCALE_ID_SHIFT) - 1)


def _declare_mma(kind: str, words: str, block: int) -> None:
    """Enter the forms of one kind and vector size."""
    for group, a_in_tmem in itertools.product((1, 2), (False, True)):
        instruction(
            f"tcgen05.mma.cta_group::{group}.kind::{kind}.block_scale{words}<c>",
            f"[b32] {'[b32]' if a_in_tmem else 'b64'} b64 b32 [b32] [b32] pred",
            c=COLLECTOR_A,
            section="9.7.16.10.9 tcgen05.mma",
            kind=Kind.EFFECT,
        )(_multiplier(cast(block_scale.Kind, kind), group, block, a_in_tmem=a_in_tmem))


for _kind, _sizes in _VECTORS.items():
    for _words, _block in _sizes.items():
        _declare_mma(_kind, _words, _block)
