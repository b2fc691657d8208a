"""Bulk copies of consecutive bytes, and bulk reductions of bytes and of tensors.

Source: PTX ISA 9.7.9.25.4 (cp.async.bulk, cp.reduce.async.bulk, cp.async.bulk.prefetch) and
9.7.9.25.5.3 cp.reduce.async.bulk.tensor.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from simulator.errors import Trap, Unsupported
from simulator.isa import bulk_copy
from simulator.isa.atomics import operation
from simulator.isa.table import Kind, instruction
from simulator.isa.values import DTYPES
from simulator.machine import tensor_map
from simulator.machine.cluster import Cluster, Cta
from simulator.machine.memory_map import OFFSET_MASK
from simulator.machine.warp import Mask, Warp

Array = Any
_CHUNK = 16
_WORD = 8
_COMPLETION = "mbarrier::complete_tx::bytes"


# 1. Bytes of each memory, in units of 16


def _check(what: str, addresses: tuple[int, ...], size: int) -> None:
    """Raise Trap unless size and addresses are multiples of 16."""
    for name, value in (("size", size), *(("address", a) for a in addresses)):
        if value % _CHUNK:
            raise Trap(f"{what}: {name} {value:#x} is not a multiple of {_CHUNK}")


def _words(address: int, size: int) -> Array:
    return np.uint64(address) + np.arange(0, size, _WORD, dtype=np.uint64)


def _read_global(cluster: Cluster, address: int, size: int) -> Array:
    """``size`` bytes of global memory."""
    return cluster.memory.load(_words(address, size), _WORD, 1)[0].view(np.uint8)


def _write_global(cluster: Cluster, address: int, data: Array) -> None:
    words = np.ascontiguousarray(data).view(np.uint64)[None]
    cluster.memory.store(_words(address, data.size), _WORD, words)


def _chunks(address: int, size: int) -> Array:
    return (address & OFFSET_MASK) // _CHUNK + np.arange(size // _CHUNK, dtype=np.int64)


def _read_shared(cta: Cta, address: int, size: int) -> Array:
    """``size`` bytes of a CTA's shared memory."""
    return cta.shared.read_chunks(_chunks(address, size))


def _write_shared(cta: Cta, address: int, data: Array) -> None:
    cta.shared.write_chunks(_chunks(address, data.size), data)


# 2. Copies

_bulk = functools.partial(instruction, section="9.7.9.25.4.1 cp.async.bulk", kind=Kind.EFFECT)


def _rows(warp: Warp, mask: Mask | None, *operands: Array) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Each active lane, and its operands as integers."""
    for lane in warp.lanes(mask).tolist():
        yield lane, tuple(int(operand[lane]) for operand in operands)


def _announced(warp: Warp, lane: int, barrier: int, act: Callable[[], None]) -> None:
    """Submit work that signals an mbarrier; to what signals another one it stands in no order."""
    cluster = warp.cta.cluster
    engine = f"bulk copy {cluster.counts['bulk_copies']} of warp {warp.rank}"
    cluster.counts["bulk_copies"] += 1
    agent = f"bulk loads to {cluster.shared_name(barrier)}"
    cluster.asynchronous.submit(engine, act, replace(cluster.site(warp), lanes=(lane,)), agent)


def _grouped(warp: Warp, lane: int, act: Callable[[], None]) -> None:
    """Submit work that a bulk group of the warp waits for."""
    cluster = warp.cta.cluster
    site = replace(cluster.site(warp), lanes=(lane,))
    cluster.asynchronous.submit(bulk_copy.store_engine(warp), act, site)


def _declare_load(space: str, multicast: bool, hint: bool) -> None:
    suffix = (".multicast::cluster" if multicast else "") + (".L2::cache_hint" if hint else "")

    @_bulk(
        f"cp.async.bulk.{space}.global.{_COMPLETION}{suffix}",
        f"[b32] [b64] u32 [b32]{' b16' if multicast else ''}{' b64' if hint else ''}",
    )
    def load(
        warp: Warp, mask: Mask | None, target: Array, source: Array, size: Array, *rest: Array
    ) -> None:
        """Copy bytes of global memory into shared memory and signal them to an mbarrier."""
        cluster, barrier = warp.cta.cluster, rest[0]
        for lane, (to, at, count, signalled) in _rows(warp, mask, target, source, size, barrier):
            _check("cp.async.bulk", (to, at), count)
            if space == "shared::cta":
                bulk_copy.own(warp.cta, to)
            chosen = int(rest[1][lane]) if multicast else None
            places = bulk_copy.destinations(cluster, to, signalled, chosen, 1)

            def copy(at: int = at, count: int = count, places: Any = places) -> None:
                data = _read_global(cluster, at, count)
                for cta, offset, mbarrier in places:
                    _write_shared(cta, offset, data)
                    cluster.mbarrier(mbarrier).complete_tx(count)

            _announced(warp, lane, signalled, copy)


@_bulk(f"cp.async.bulk.shared::cluster.shared::cta.{_COMPLETION}", "[b32] [b32] u32 [b32]")
def copy_in_cluster(
    warp: Warp, mask: Mask | None, target: Array, source: Array, size: Array, barrier: Array
) -> None:
    """Copy bytes of shared memory to a CTA of the cluster and signal them to an mbarrier there."""
    cluster, own = warp.cta.cluster, warp.cta
    for lane, (to, at, count, signalled) in _rows(warp, mask, target, source, size, barrier):
        _check("cp.async.bulk", (to, at), count)
        bulk_copy.own(own, at)

        def copy(
            to: int = to, at: int = at, count: int = count, signalled: int = signalled
        ) -> None:
            _write_shared(cluster.cta(to), to, _read_shared(own, at, count))
            cluster.mbarrier(signalled).complete_tx(count)

        _announced(warp, lane, signalled, copy)


@_bulk("cp.async.bulk.global.shared::cta.bulk_group", "[b64] [b32] u32")
@_bulk("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint", "[b64] [b32] u32 b64")
def store(
    warp: Warp, mask: Mask | None, target: Array, source: Array, size: Array, *_policy: Array
) -> None:
    """Copy bytes of shared memory into global memory."""
    cta = warp.cta
    for lane, (to, at, count) in _rows(warp, mask, target, source, size):
        _check("cp.async.bulk", (to, at), count)
        bulk_copy.own(cta, at)

        def copy(to: int = to, at: int = at, count: int = count) -> None:
            _write_global(cta.cluster, to, _read_shared(cta, at, count))

        _grouped(warp, lane, copy)


_prefetch = functools.partial(
    instruction, section="9.7.9.25.4.3 cp.async.bulk.prefetch", kind=Kind.EFFECT
)


@_prefetch("cp.async.bulk.prefetch.L2.global", "[b64] u32")
@_prefetch("cp.async.bulk.prefetch.L2.global.L2::cache_hint", "[b64] u32 b64")
def prefetch(warp: Warp, mask: Mask | None, source: Array, size: Array, *_policy: Array) -> None:
    """Fill the L2 cache, which is not simulated: nothing to see."""


for _space, _multicast, _hint in itertools.product(
    ("shared::cta", "shared::cluster"), (False, True), (False, True)
):
    _declare_load(_space, _multicast, _hint)


# 3. Reductions

_GLOBAL_TYPES = {
    "add": ("u32", "s32", "u64", "f32", "f64"),
    "add.noftz": ("f16", "bf16"),
    "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
}
_CLUSTER_TYPES = {
    "add": ("u32", "s32", "u64"), "min": ("u32", "s32"), "max": ("u32", "s32"),
    "inc": ("u32",), "dec": ("u32",), "and": ("b32",), "or": ("b32",), "xor": ("b32",),
}  # fmt: skip
_WHOLE = ("u32", "s32", "u64", "s64")
_TENSOR_TYPES = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16"),
    "min": (*_WHOLE, "f16", "bf16"), "max": (*_WHOLE, "f16", "bf16"),
    "inc": ("u32",), "dec": ("u32",), "and": _WHOLE, "or": _WHOLE, "xor": _WHOLE,
}  # fmt: skip
"""Elements of tensor maps that each operation takes."""


def _reduced(old: Array, new: Array, op: str, t: str, *, is_global: bool) -> Array:
    """The bytes of ``op(old, new)`` element by element."""
    change = operation(op.partition(".")[0], t, is_global=is_global)
    dtype = DTYPES[t]
    result = change(np.ascontiguousarray(old).view(dtype), np.ascontiguousarray(new).view(dtype))
    return np.ascontiguousarray(result.astype(dtype)).view(np.uint8)


def _declare_global_reduction(op: str, t: str) -> None:
    form = "cp.reduce.async.bulk.global.shared::cta.bulk_group"
    section = "9.7.9.25.4.2 cp.reduce.async.bulk"

    @instruction(f"{form}.{op}.{t}", "[b64] [b32] u32", section=section, kind=Kind.EFFECT)
    @instruction(
        f"{form}.L2::cache_hint.{op}.{t}", "[b64] [b32] u32 b64", section=section, kind=Kind.EFFECT
    )
    def reduce(
        warp: Warp, mask: Mask | None, target: Array, source: Array, size: Array, *_policy: Array
    ) -> None:
        """Reduce the elements of shared memory into those of global memory."""
        cta = warp.cta
        for lane, (to, at, count) in _rows(warp, mask, target, source, size):
            _check("cp.reduce.async.bulk", (to, at), count)
            bulk_copy.own(cta, at)

            def act(to: int = to, at: int = at, count: int = count) -> None:
                old = _read_global(cta.cluster, to, count)
                new = _reduced(old, _read_shared(cta, at, count), op, t, is_global=True)
                _write_global(cta.cluster, to, new)

            _grouped(warp, lane, act)


def _declare_cluster_reduction(op: str, t: str) -> None:
    @instruction(
        f"cp.reduce.async.bulk.shared::cluster.shared::cta.{_COMPLETION}.{op}.{t}",
        "[b32] [b32] u32 [b32]",
        section="9.7.9.25.4.2 cp.reduce.async.bulk",
        kind=Kind.EFFECT,
    )
    def reduce(
        warp: Warp, mask: Mask | None, target: Array, source: Array, size: Array, barrier: Array
    ) -> None:
        """Reduce the elements of shared memory into those of a CTA of the cluster."""
        cluster, own = warp.cta.cluster, warp.cta
        for lane, (to, at, count, signalled) in _rows(warp, mask, target, source, size, barrier):
            _check("cp.reduce.async.bulk", (to, at), count)
            bulk_copy.own(own, at)

            def act(
                to: int = to, at: int = at, count: int = count, signalled: int = signalled
            ) -> None:
                there = cluster.cta(to)
                data = _read_shared(own, at, count)
                old = _read_shared(there, to, count)
                _write_shared(there, to, _reduced(old, data, op, t, is_global=False))
                cluster.mbarrier(signalled).complete_tx(count)

            _announced(warp, lane, signalled, act)


def _declare_tensor_reduction(dimensions: int, op: str, hint: bool) -> None:
    @instruction(
        f"cp.reduce.async.bulk.tensor.{dimensions}d.global.shared::cta.{op}<m>.bulk_group"
        f"{'.L2::cache_hint' if hint else ''}",
        f"[b64 s32*{dimensions}] [b32]{' b64' if hint else ''}",
        m=("", ".tile"),
        section="9.7.9.25.5.3 cp.reduce.async.bulk.tensor",
        kind=Kind.EFFECT,
    )
    def reduce(warp: Warp, mask: Mask | None, target: Any, source: Array, *_policy: Array) -> None:
        """Reduce a box of shared memory into a tensor; what leaves the tensor is dropped."""
        cta, cluster = warp.cta, warp.cta.cluster
        for lane in warp.lanes(mask).tolist():
            tensor = bulk_copy.tensor_map_at(cluster, int(target[0][lane]))
            if tensor.element not in _TENSOR_TYPES[op]:
                raise Unsupported(f"cp.reduce.async.bulk.tensor.{op}: elements of {tensor.element}")
            coordinates = tensor.elements([int(c[lane]) for c in target[1]])
            offset = bulk_copy.own(cta, int(source[lane]))

            def act(
                tensor: Any = tensor, coordinates: Any = coordinates, offset: int = offset
            ) -> None:
                chunks = tensor_map.shared_chunks(
                    tensor.box_bytes, tensor.swizzle, offset, tensor.atom
                )
                data = cta.shared.read_chunks(chunks)
                old = bulk_copy.load_box(cluster, tensor, coordinates)
                new = _reduced(old, data, op, tensor.element, is_global=True)
                bulk_copy.store_box(cluster, tensor, coordinates, new)

            _grouped(warp, lane, act)


for _op, _types in _GLOBAL_TYPES.items():
    for _t in _types:
        _declare_global_reduction(_op, _t)
for _op, _types in _CLUSTER_TYPES.items():
    for _t in _types:
        _declare_cluster_reduction(_op, _t)
for _dimensions, _op, _hint in itertools.product(range(1, 6), _TENSOR_TYPES, (False, True)):
    _declare_tensor_reduction(_dimensions, _op, _hint)
