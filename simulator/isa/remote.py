"""st.async and red.async: writes into the cluster's shared memory that an mbarrier announces.

Source: PTX ISA 9.7.9.13 st.async, 9.7.13.7 red.async.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from simulator.errors import Location, Trap
from simulator.isa.atomics import operation
from simulator.isa.table import Kind, instruction
from simulator.isa.values import BITS, DTYPES
from simulator.machine.memory_map import OFFSET_MASK, RANK_SHIFT
from simulator.machine.shared_memory import SharedMemory
from simulator.machine.warp import Mask, Warp

Array = Any
_SPACES = ("", ".shared::cluster")
_COMPLETION = ".mbarrier::complete_tx::bytes"


def _submit(
    warp: Warp,
    mask: Mask | None,
    addresses: tuple[Array, Array],
    byte_count: int,
    write: Callable[[SharedMemory, Array, int], None],
) -> None:
    """Issue ``write(memory, offset, lane)`` for each lane; its barrier then counts the bytes.

    Writes that signal one barrier end together; to others they stand in no order.
    """
    cluster = warp.cta.cluster
    for lane in warp.lanes(mask).tolist():
        target, signalled = (int(a[lane]) for a in addresses)
        if target >> RANK_SHIFT != signalled >> RANK_SHIFT:
            names = " and ".join(map(cluster.shared_name, (target, signalled)))
            raise Trap(f"data and mbarrier in two CTAs: {names}", Location(lanes=(lane,)))
        shared = cluster.cta(target).shared

        def act(
            lane: int = lane,
            shared: SharedMemory = shared,
            target: int = target,
            signalled: int = signalled,
        ) -> None:
            write(shared, np.array([target & OFFSET_MASK]), lane)
            cluster.mbarrier(signalled).complete_tx(byte_count)

        engine = f"remote write {cluster.counts['remote_writes']}"
        cluster.counts["remote_writes"] += 1
        agent = f"remote writes to {cluster.shared_name(signalled)}"
        cluster.asynchronous.submit(engine, act, replace(cluster.site(warp), lanes=(lane,)), agent)


def _declare_store(t: str, count: int) -> None:
    vector, signature = ("", t) if count == 1 else (f".v{count}", f"({t}*{count})")

    @instruction(
        f"st.async<w><s>{_COMPLETION}{vector}.{t}",
        f"[b32] {signature} [b32]",
        w=("", ".weak"),
        s=_SPACES,
        section="9.7.9.13 st.async",
        kind=Kind.EFFECT,
    )
    def store(warp: Warp, mask: Mask | None, target: Array, value: Any, barrier: Array) -> None:
        """Store into a CTA of the cluster and signal the bytes to an mbarrier there."""
        rows = np.stack(value) if isinstance(value, tuple) else value[None]
        rows = rows.view(f"u{rows.itemsize}")

        def write(shared: SharedMemory, offset: Array, lane: int) -> None:
            shared.store(offset, rows.itemsize, rows[:, lane : lane + 1])

        _submit(warp, mask, (target, barrier), rows.itemsize * count, write)


def _declare_reduction(op: str, t: str) -> None:
    change, dtype = operation(op, t, is_global=False), DTYPES[t]
    item_bytes = BITS[t] // 8

    @instruction(
        f"red.async.relaxed.cluster<s>{_COMPLETION}.{op}.{t}",
        f"[b32] {t} [b32]",
        s=_SPACES,
        section="9.7.13.7 red.async",
        kind=Kind.EFFECT,
    )
    def reduce(warp: Warp, mask: Mask | None, target: Array, value: Array, barrier: Array) -> None:
        """Reduce into a CTA of the cluster and signal the bytes to an mbarrier there."""

        def write(shared: SharedMemory, offset: Array, lane: int) -> None:
            def compute(old: Array) -> Array:
                return change(old.view(dtype), value[lane : lane + 1]).view(old.dtype)

            shared.update(offset, item_bytes, 1, compute)

        _submit(warp, mask, (target, barrier), item_bytes, write)


for _t in ("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64"):
    for _count in (1, 2, 4):
        _declare_store(_t, _count)

for _op, _types in {
    "inc": ("u32",), "dec": ("u32",), "min": ("u32", "s32"), "max": ("u32", "s32"),
    "and": ("b32",), "or": ("b32",), "xor": ("b32",), "add": ("u32", "s32", "u64", "s64"),
}.items():  # fmt: skip
    for _t in _types:
        _declare_reduction(_op, _t)
