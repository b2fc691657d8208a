"""Asynchronous copies: cp.async, and the bulk tensor copies of the TMA unit.

Source: PTX ISA 9.7.9.25, Data Movement and Conversion Instructions: Asynchronous Copy.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from simulator.errors import Location, OutOfBounds, Trap
from simulator.isa.table import BLOCKED, Kind, instruction
from simulator.isa.synchronisation import barriers
from simulator.machine import tensor_map
from simulator.machine.cluster import Cluster, Cta
from simulator.machine.memory_map import OFFSET_MASK, PARAM_WINDOW, RANK_SHIFT
from simulator.machine.tensor_map import TensorMap
from simulator.machine.warp import Mask, Warp

Array = Any


# 1. cp.async: a few bytes a lane, in order for each warp

def _engine(warp: Warp, name: str) -> tuple[str, int, int]:
    return (name, warp.cta.rank, warp.rank)


@instruction("cp.async.<c>.shared<s>.global<p>", "[b32] [b64] u32", c=("ca", "cg"), s=("", "::cta"),
             p=("", ".L2::64B", ".L2::128B", ".L2::256B"), section="9.7.9.25.3.1 cp.async", kind=Kind.EFFECT)  # fmt: skip
def cp_async(warp: Warp, mask: Mask | None, target: Array, source: Array, size: Array) -> None:
    """Copy ``size`` bytes a lane; visible after a wait for the group or an mbarrier."""
    cp_async_zero_fill(warp, mask, target, source, size, size)


@instruction("cp.async.<c>.shared<s>.global<p>", "[b32] [b64] u32 u32", c=("ca", "cg"), s=("", "::cta"),
             p=("", ".L2::64B", ".L2::128B", ".L2::256B"), section="9.7.9.25.3.1 cp.async", kind=Kind.EFFECT)  # fmt: skip
def cp_async_zero_fill(
    warp: Warp, mask: Mask | None, target: Array, source: Array, size: Array, source_size: Array
) -> None:
    """Copy ``source_size`` bytes a lane and fill with zeros up to ``size``."""
    lanes, cta = warp.lanes(mask), warp.cta
    span = int(size[0])
    item = min(span, 8)
    full = lanes[source_size[lanes] == span]
    empty = lanes[source_size[lanes] == 0]
    if len(full) + len(empty) < len(lanes):
        raise Trap("cp.async with a source size that is neither 0 nor the whole")

    def copy() -> None:
        if len(full):
            data = cta.cluster.memory.load(source[full], item, span // item)
            cta.shared.store(target[full] & OFFSET_MASK, item, data)
        if len(empty):
            zeros = np.zeros((span // item, len(empty)), f"u{item}")
            cta.shared.store(target[empty] & OFFSET_MASK, item, zeros)

    cta.cluster.asynchronous.submit(_engine(warp, "cp.async"), copy, cta.cluster.site(warp))


@instruction("cp.async.mbarrier.arrive.noinc<s>.b64", "[b32]", s=(".shared", ".shared::cta", ""),
             section="9.7.13.15.14 cp.async.mbarrier.arrive", kind=Kind.EFFECT)  # fmt: skip
def cp_async_arrive(warp: Warp, mask: Mask | None, address: Array) -> None:
    """Each lane arrives when its earlier cp.async are complete."""
    arrivals = [(barrier, len(lanes)) for barrier, lanes in barriers(warp, mask, address)]

    def arrive() -> None:
        for barrier, count in arrivals:
            barrier.arrive(count)

    cluster = warp.cta.cluster
    cluster.asynchronous.submit(_engine(warp, "cp.async"), arrive, cluster.site(warp))


@instruction("<op>", op=("cp.async.commit_group", "cp.async.bulk.commit_group"),
             section="9.7.9.25.3.2 cp.async.commit_group", kind=Kind.EFFECT)  # fmt: skip
def commit_group(warp: Warp, mask: Mask | None) -> None:
    """Close a group: the waits below wait for everything, which is never too early."""


@instruction("cp.async.wait_all", section="9.7.9.25.3.3 cp.async.wait_group", kind=Kind.WAIT)
def cp_async_wait_all(warp: Warp, mask: Mask | None) -> Any:
    """Wait for the warp's cp.async."""
    return _wait(warp, "cp.async")


@instruction("cp.async.wait_group", "u32", section="9.7.9.25.3.3 cp.async.wait_group", kind=Kind.WAIT)
def cp_async_wait_group(warp: Warp, mask: Mask | None, pending: Array) -> Any:
    """Wait for the warp's cp.async, more than the ``pending`` newest groups ask for."""
    return _wait(warp, "cp.async")


@instruction("cp.async.bulk.wait_group<r>", "u32", r=("", ".read"), section="9.7.9.25.5.4 cp.async.bulk.wait_group",
             kind=Kind.WAIT)  # fmt: skip
def cp_async_bulk_wait_group(warp: Warp, mask: Mask | None, pending: Array) -> Any:
    """Wait for the warp's bulk stores, more than the ``pending`` newest groups ask for."""
    return _wait(warp, "bulk store")


def _wait(warp: Warp, name: str) -> Any:
    engine = _engine(warp, name)
    asynchronous = warp.cta.cluster.asynchronous
    if asynchronous.busy(engine):
        warp.waiting = (asynchronous.engine(engine), "the end")
        return BLOCKED
    warp.waiting, warp.polling = None, False
    return None


# 2. Tensor maps

def _tensor_map(cluster: Cluster, address: int) -> TensorMap:
    """The tensor map at a generic address: a parameter of the kernel, or in global memory."""
    if address >= PARAM_WINDOW:
        start = address - PARAM_WINDOW
        return tensor_map.decode(cluster.parameters[start : start + tensor_map.MEANINGFUL_BYTES])
    raw = cluster.memory.load(np.array([address], np.uint64), 8, tensor_map.MEANINGFUL_BYTES // 8)
    return tensor_map.decode(raw.tobytes())


def _global_bytes(cluster: Cluster, tensor: TensorMap, coordinates: tuple[int, ...], what: str) -> Any:
    """The allocation that a tensor map points into, after the check on strict tensors."""
    region = cluster.memory.region(tensor.address)
    if region is None:
        raise OutOfBounds(f"{what}: the tensor map's base is {cluster.memory.describe(tensor.address)}")
    owner = region.tensor(tensor.address)
    if owner.strict:
        for bounds in tensor_map.box_bounds(tensor, coordinates):
            if bounds.starts_outside:
                raise OutOfBounds(f"{what} of {owner.name}: coordinates {coordinates} lie outside it, {bounds}")
    return region


# 3. Loads

def _load(
    warp: Warp, mask: Mask | None, target: Array, source: tuple[Array, tuple[Array, ...]], barrier: Array,
    multicast: Array | None, group: int,
) -> None:  # fmt: skip
    """Issue the load of one box for each active lane."""
    cluster, site = warp.cta.cluster, warp.cta.cluster.site(warp)
    for lane in warp.lanes(mask):
        tensor = _tensor_map(cluster, int(source[0][lane]))
        coordinates = tuple(int(c[lane]) for c in source[1])
        places = _destinations(
            cluster, int(target[lane]), int(barrier[lane]),
            None if multicast is None else int(multicast[lane]), group,
        )  # fmt: skip

        def copy(tensor: TensorMap = tensor, coordinates: tuple[int, ...] = coordinates,
                 places: list[tuple[Cta, int, int]] = places) -> None:  # fmt: skip
            region = _global_bytes(cluster, tensor, coordinates, "bulk tensor load")
            box = tensor_map.load_box(tensor, coordinates, region.bytes, region.base)
            for cta, offset, mbarrier in places:
                cta.shared.write_chunks(tensor_map.shared_chunks(box.size, tensor.swizzle, offset), box)
                cluster.mbarrier(mbarrier).complete_tx(tensor.box_bytes)
            cluster.counts["tma_load_bytes"] += tensor.box_bytes

        engine = ("bulk load", warp.cta.rank, warp.rank, cluster.counts["tma_loads"])
        cluster.counts["tma_loads"] += 1
        cluster.asynchronous.submit(engine, copy, site)


def _destinations(
    cluster: Cluster, target: int, barrier: int, multicast: int | None, group: int
) -> list[tuple[Cta, int, int]]:
    """For each copy of a box: the CTA, the offset in its shared memory, the mbarrier's address.

    Multicast writes the same offset in every CTA of the mask and signals that CTA's mbarrier or,
    with ``cta_group::2``, the one of its pair whose rank has the parity of the operand's.
    """
    if multicast is None:
        return [(cluster.cta(target), target & OFFSET_MASK, barrier)]
    places = []
    for rank in range(len(cluster.ctas)):
        if multicast >> rank & 1:
            signalled = rank if group == 1 else rank & ~1 | barrier >> RANK_SHIFT & 1
            places.append((cluster.ctas[rank], target & OFFSET_MASK, signalled << RANK_SHIFT | barrier & OFFSET_MASK))
    return places


def _declare_load(dimensions: int, multicast: bool, hint: bool, group: int) -> None:
    """Enter the forms of one load: NVVM writes the cache hint before the CTA group, PTX after it."""
    coordinates = f"[b64 s32*{dimensions}]"
    signature = f"[b32] {coordinates} [b32]{' b16' if multicast else ''}{' b64' if hint else ''}"
    parts = [".multicast::cluster" if multicast else "", ".L2::cache_hint" if hint else "",
             f".cta_group::{group}" if group else ""]  # fmt: skip
    suffixes = {"".join(parts), parts[0] + parts[2] + parts[1]}

    def load(warp: Warp, mask: Mask | None, target: Array, source: Any, barrier: Array, *rest: Array) -> None:
        """Copy a box of a tensor into shared memory and signal its bytes to an mbarrier."""
        _load(warp, mask, target, source, barrier, rest[0] if multicast else None, group or 1)

    instruction(
        f"cp.async.bulk.tensor.{dimensions}d.<s>.global<m>.mbarrier::complete_tx::bytes<x>", signature,
        s=("shared::cta", "shared::cluster"), m=("", ".tile"), x=tuple(sorted(suffixes)),
        section="9.7.9.25.5.2 cp.async.bulk.tensor", kind=Kind.EFFECT,
    )(load)  # fmt: skip


for _choice in itertools.product(range(1, 6), (False, True), (False, True), (0, 1, 2)):
    _declare_load(*_choice)


# 4. Stores

def _store(warp: Warp, mask: Mask | None, target: tuple[Array, tuple[Array, ...]], source: Array) -> None:
    cluster, cta = warp.cta.cluster, warp.cta
    for lane in warp.lanes(mask):
        tensor = _tensor_map(cluster, int(target[0][lane]))
        coordinates = tuple(int(c[lane]) for c in target[1])
        offset = int(source[lane]) & OFFSET_MASK

        def copy(tensor: TensorMap = tensor, coordinates: tuple[int, ...] = coordinates,
                 offset: int = offset) -> None:  # fmt: skip
            region = _global_bytes(cluster, tensor, coordinates, "bulk tensor store")
            box = cta.shared.read_chunks(tensor_map.shared_chunks(tensor.box_bytes, tensor.swizzle, offset))
            tensor_map.store_box(tensor, coordinates, box, memory=region.bytes, memory_address=region.base)
            region.mark_written()
            cluster.counts["tma_store_bytes"] += tensor.box_bytes

        cluster.asynchronous.submit(_engine(warp, "bulk store"), copy, cluster.site(warp))


for _dimensions in range(1, 6):

    @instruction(f"cp.async.bulk.tensor.{_dimensions}d.global.shared::cta<m>.bulk_group", f"[b64 s32*{_dimensions}] [b32]",
                 m=("", ".tile"), section="9.7.9.25.5.2 cp.async.bulk.tensor", kind=Kind.EFFECT)  # fmt: skip
    def bulk_tensor_store(warp: Warp, mask: Mask | None, target: Any, source: Array) -> None:
        """Copy a box from shared memory into a tensor; what leaves the tensor is dropped."""
        _store(warp, mask, target, source)
