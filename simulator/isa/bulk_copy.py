"""Asynchronous copies: cp.async, and the bulk tensor copies of the TMA unit.

Source: PTX ISA 9.7.9.25, Data Movement and Conversion Instructions: Asynchronous Copy.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from simulator.errors import OutOfBounds, Trap, Uninitialised
from simulator.isa.synchronisation import barriers
from simulator.isa.table import BLOCKED, Kind, instruction
from simulator.machine import tensor_map
from simulator.machine.cluster import Cluster, Cta
from simulator.machine.global_memory import GlobalMemory, Region
from simulator.machine.memory_map import OFFSET_MASK, PARAM_WINDOW, RANK_SHIFT
from simulator.machine.tensor_map import TensorMap
from simulator.machine.warp import Mask, Warp

Array = Any
Coordinates: TypeAlias = tuple[int, ...]
_CP_ASYNC = "cp.async"
_BULK_STORE = "bulk stores"
_WORD_BYTES = 4


# 1. cp.async: a few bytes a lane, in order for each warp


def engine_of(warp: Warp, name: str) -> str:
    """The engine, of a kind by ``name``, that does a warp's own work in order."""
    return f"{name} of warp {warp.rank} of CTA rank {warp.cta.rank}"


def store_engine(warp: Warp) -> str:
    """The engine of the warp's bulk stores, which its bulk groups wait for."""
    return engine_of(warp, _BULK_STORE)


def own(cta: Cta, address: int) -> int:
    """The offset of a shared::cta address; ``Trap`` if it is another CTA's."""
    if address >> RANK_SHIFT != cta.rank:
        name = cta.cluster.shared_name(address)
        raise Trap(f"an asynchronous copy of CTA rank {cta.rank} with the address of {name}")
    return address & OFFSET_MASK


_CP_ASYNC_FORM: dict[str, Any] = {
    "c": ("ca", "cg"),
    "s": ("", "::cta"),
    "p": ("", ".L2::64B", ".L2::128B", ".L2::256B"),
    "section": "9.7.9.25.3.1 cp.async",
    "kind": Kind.EFFECT,
}


@instruction("cp.async.<c>.shared<s>.global<p>", "[b32] [b64] u32", **_CP_ASYNC_FORM)
def cp_async(
    warp: Warp, mask: Mask | None, target: Array, source: Array, size: Array, *, c: str
) -> None:
    """Copy ``size`` bytes a lane; visible after a wait for the group or an mbarrier."""
    cp_async_zero_fill(warp, mask, target, source, size, size, c=c)


@instruction("cp.async.<c>.shared<s>.global<p>", "[b32] [b64] u32 u32", **_CP_ASYNC_FORM)
def cp_async_zero_fill(
    warp: Warp,
    mask: Mask | None,
    target: Array,
    source: Array,
    size: Array,
    count: Array,
    *,
    c: str,
) -> None:
    """Copy ``count`` bytes a lane and fill with zeros up to ``size``."""
    lanes, cta, span = warp.lanes(mask), warp.cta, int(size[0])
    if span not in ((16,) if c == "cg" else (4, 8, 16)):
        raise Trap(f"cp.async.{c} of {span} bytes")
    if (count[lanes] > span).any():
        raise Trap(f"cp.async of {int(count[lanes].max())} bytes into {span}")
    if (source[lanes] % np.uint64(span)).any():
        raise Trap(f"cp.async of {span} bytes from an address that is not a multiple of {span}")
    for address in target[lanes].tolist():
        own(cta, address)
    alike = [(int(n), lanes[count[lanes] == n]) for n in np.unique(count[lanes])]

    def copy() -> None:
        for n, some in alike:
            data = _filled(cta.cluster.memory, source[some], n, span)
            cta.shared.store(target[some] & OFFSET_MASK, data.itemsize, data)

    cta.cluster.asynchronous.submit(engine_of(warp, _CP_ASYNC), copy, cta.cluster.site(warp))


def _filled(memory: GlobalMemory, addresses: Array, count: int, span: int) -> Array:
    """``count`` bytes from each address, with zeros up to ``span``, as [items, addresses]."""
    item = min(span, 8)
    if count == span:
        return memory.load(addresses, item, span // item)
    data = np.zeros((len(addresses), span), np.uint8)
    for i in range(count):
        data[:, i] = memory.load(addresses + np.uint64(i), 1, 1)[0]
    return data.view(f"u{item}").T


@instruction(
    "cp.async.mbarrier.arrive.noinc<s>.b64",
    "[b32]",
    s=(".shared", ".shared::cta", ""),
    section="9.7.13.15.14 cp.async.mbarrier.arrive",
    kind=Kind.EFFECT,
)
def cp_async_arrive(warp: Warp, mask: Mask | None, address: Array) -> None:
    """Each lane arrives when its earlier cp.async are complete."""
    arrivals = [
        (barrier, len(lanes)) for barrier, lanes in barriers(warp, mask, address, "shared::cta")
    ]

    def arrive() -> None:
        for barrier, count in arrivals:
            barrier.arrive(count)

    cluster = warp.cta.cluster
    cluster.asynchronous.submit(engine_of(warp, _CP_ASYNC), arrive, cluster.site(warp))


# 2. Groups of copies, which a warp waits for in order


def _declare_groups(prefix: str, name: str, reads: tuple[str, ...]) -> None:
    section = f"9.7.9.25 {prefix}"

    @instruction(f"{prefix}.commit_group", section=section, kind=Kind.EFFECT)
    def commit_group(warp: Warp, mask: Mask | None) -> None:
        """Close a group: it holds the copies since the last one."""
        warp.groups.setdefault(name, []).append(warp.cta.cluster.asynchronous.submitted)

    @instruction(f"{prefix}.wait_group<r>", "u32", r=reads, section=section, kind=Kind.WAIT)
    def wait_group(warp: Warp, mask: Mask | None, pending: Array, *, r: str) -> Any:
        """Wait until only the ``pending`` newest groups may be incomplete."""
        groups = warp.groups.get(name, [])
        count = int(pending[0])
        ticket = groups[-1 - count] if len(groups) > count else 0
        return wait_for(warp, name, ticket, is_read=r == ".read")

    if prefix == "cp.async":

        @instruction(f"{prefix}.wait_all", section=section, kind=Kind.WAIT)
        def wait_all(warp: Warp, mask: Mask | None) -> Any:
            """Wait for all copies of the warp, whether in a group or not."""
            return wait_for(warp, name, warp.cta.cluster.asynchronous.submitted)


_declare_groups("cp.async", _CP_ASYNC, ("",))
_declare_groups("cp.async.bulk", _BULK_STORE, ("", ".read"))


def wait_for(warp: Warp, name: str, ticket: int, *, is_read: bool = False) -> Any:
    """Wait for the work that was submitted to the warp's engine ``name`` up to ``ticket``.

    The whole work is waited for even where only its reads need be: that is legal.
    """
    engine = engine_of(warp, name)
    asynchronous = warp.cta.cluster.asynchronous
    if asynchronous.owes(engine, ticket):
        warp.block_on(asynchronous.engine(engine), "the end")
        return BLOCKED
    if warp.cta.cluster.observer is not None:
        warp.cta.cluster.observer.joined(engine, ticket, is_read)
    warp.go_on()
    return None


# 3. Tensor maps


def tensor_map_at(cluster: Cluster, address: int) -> TensorMap:
    """The tensor map at a generic address: a parameter of the kernel, or in global memory."""
    if address >= PARAM_WINDOW:
        start = address - PARAM_WINDOW
        return tensor_map.decode(cluster.parameters[start : start + tensor_map.MEANINGFUL_BYTES])
    words = tensor_map.MEANINGFUL_BYTES // 8
    return tensor_map.decode(
        cluster.memory.load(np.array([address], np.uint64), 8, words).tobytes()
    )


def _region(cluster: Cluster, tensor: TensorMap, coordinates: Coordinates, what: str) -> Region:
    """The allocation that a tensor map points into, after the check on strict tensors."""
    region = cluster.memory.region(tensor.address)
    if region is None:
        place = cluster.memory.describe(tensor.address)
        raise OutOfBounds(f"{what}: the tensor map's base is outside every allocation: {place}")
    owner = region.tensor(tensor.address)
    if owner.strict:
        for bounds in tensor_map.box_bounds(tensor, coordinates):
            if bounds.starts_outside:
                raise OutOfBounds(
                    f"{what} of {owner.name}: coordinates {coordinates} lie outside it, {bounds}"
                )
    return region


@contextlib.contextmanager
def _naming(what: str, region: Region, tensor: TensorMap) -> Iterator[None]:
    """Say of a box that leaves the allocation what it is a box of."""
    try:
        yield
    except OutOfBounds as error:
        raise OutOfBounds(
            f"{what} of {region.tensor(tensor.address).name}: {error.message}"
        ) from error


def _tell(cluster: Cluster, tensor: TensorMap, coordinates: Coordinates, *, write: bool) -> None:
    """Tell an observer of the words of global memory that a box covers."""
    if cluster.observer is not None:
        offsets, inside = tensor_map.box_offsets(tensor, coordinates)
        words = np.unique((tensor.address + offsets[inside]) // _WORD_BYTES)
        cluster.observer.global_access((words * _WORD_BYTES).astype(np.uint64), _WORD_BYTES, write)


def load_box(cluster: Cluster, tensor: TensorMap, coordinates: Coordinates) -> Array:
    """The bytes of a box; ``Uninitialised`` if the tensor has some that nothing wrote."""
    what = "bulk tensor load"
    region = _region(cluster, tensor, coordinates, what)
    with _naming(what, region, tensor):
        box = tensor_map.load_box(tensor, coordinates, region.bytes, region.base)
    _tell(cluster, tensor, coordinates, write=False)
    if region.valid is not None:
        written = tensor_map.load_box(tensor, coordinates, region.valid.view(np.uint8), region.base)
        offsets, inside = tensor_map.box_offsets(tensor, coordinates)
        missing = inside.reshape(-1) & (written == 0)
        if missing.any():
            place = tensor.address + int(offsets.reshape(-1)[np.argmax(missing)])
            raise Uninitialised(f"{what} of what nothing has written: {region.describe(place)}")
    return box


def store_box(cluster: Cluster, tensor: TensorMap, coordinates: Coordinates, box: Array) -> None:
    """Write the bytes of a box, as far as they lie in the tensor."""
    what = "bulk tensor store"
    region = _region(cluster, tensor, coordinates, what)
    place = {"memory_address": region.base}
    with _naming(what, region, tensor):
        tensor_map.store_box(tensor, coordinates, box, memory=region.bytes, **place)
    _tell(cluster, tensor, coordinates, write=True)
    if region.valid is not None:
        valid = region.valid.view(np.uint8)
        tensor_map.store_box(tensor, coordinates, np.ones_like(box), memory=valid, **place)


# 4. Loads


def _load(
    warp: Warp,
    mask: Mask | None,
    source: tuple[Array, tuple[Array, ...]],
    places_of: Callable[[int], list[tuple[Cta, int, int]]],
) -> None:
    """Issue the load of one box for each active lane, to the places that it names."""
    cluster, site = warp.cta.cluster, warp.cta.cluster.site(warp)
    for lane in warp.lanes(mask).tolist():
        tensor = tensor_map_at(cluster, int(source[0][lane]))
        coordinates = tensor.elements([int(c[lane]) for c in source[1]])
        places = places_of(lane)

        def copy(
            tensor: TensorMap = tensor,
            coordinates: Coordinates = coordinates,
            places: list[tuple[Cta, int, int]] = places,
        ) -> None:
            box = load_box(cluster, tensor, coordinates)
            for cta, offset, mbarrier in places:
                chunks = tensor_map.shared_chunks(box.size, tensor.swizzle, offset, tensor.atom)
                cta.shared.write_chunks(chunks, box)
                cluster.mbarrier(mbarrier).complete_tx(tensor.box_bytes)
            cluster.counts["tma_load_bytes"] += tensor.box_bytes

        engine = engine_of(warp, f"bulk load {cluster.counts['tma_loads']}")
        cluster.counts["tma_loads"] += 1
        # Loads that signal one barrier end together; to others they stand in no order.
        agent = f"bulk loads to {cluster.shared_name(places[0][2])}" if places else engine
        cluster.asynchronous.submit(engine, copy, replace(site, lanes=(lane,)), agent)


def destinations(
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
            address = signalled << RANK_SHIFT | barrier & OFFSET_MASK
            places.append((cluster.ctas[rank], target & OFFSET_MASK, address))
    return places


def _declare_load(dimensions: int, multicast: bool, hint: bool, group: int) -> None:
    """Enter the forms of one load: NVVM has the cache hint before the CTA group, PTX after it."""
    coordinates = f"[b64 s32*{dimensions}]"
    signature = f"[b32] {coordinates} [b32]{' b16' if multicast else ''}{' b64' if hint else ''}"
    parts = [
        ".multicast::cluster" if multicast else "",
        ".L2::cache_hint" if hint else "",
        f".cta_group::{group}" if group else "",
    ]
    suffixes = {"".join(parts), parts[0] + parts[2] + parts[1]}

    def load(
        warp: Warp,
        mask: Mask | None,
        target: Array,
        source: Any,
        barrier: Array,
        *rest: Array,
        s: str,
    ) -> None:
        """Copy a box of a tensor into shared memory and signal its bytes to an mbarrier."""

        def places(lane: int) -> list[tuple[Cta, int, int]]:
            address, chosen = int(target[lane]), int(rest[0][lane]) if multicast else None
            if s == "shared::cta":
                own(warp.cta, address)
            return destinations(warp.cta.cluster, address, int(barrier[lane]), chosen, group or 1)

        _load(warp, mask, source, places)

    instruction(
        f"cp.async.bulk.tensor.{dimensions}d.<s>.global<m>.mbarrier::complete_tx::bytes<x>",
        signature,
        s=("shared::cta", "shared::cluster"),
        m=("", ".tile"),
        x=tuple(sorted(suffixes)),
        section="9.7.9.25.5.2 cp.async.bulk.tensor",
        kind=Kind.EFFECT,
    )(load)


for _choice in itertools.product(range(1, 6), (False, True), (False, True), (0, 1, 2)):
    _declare_load(*_choice)


# 5. Stores


def _declare_store(dimensions: int, hint: bool) -> None:
    """Enter one store; a cache hint has no effect."""

    def store(
        warp: Warp, mask: Mask | None, target: Any, source: Array, _policy: Array | None = None
    ) -> None:
        """Copy a box from shared memory into a tensor; what leaves the tensor is dropped."""
        for lane in warp.lanes(mask).tolist():
            _store(
                warp,
                lane,
                int(target[0][lane]),
                tuple(int(c[lane]) for c in target[1]),
                int(source[lane]),
            )

    instruction(
        f"cp.async.bulk.tensor.{dimensions}d.global.shared::cta<m>.bulk_group"
        f"{'.L2::cache_hint' if hint else ''}",
        f"[b64 s32*{dimensions}] [b32]{' b64' if hint else ''}",
        m=("", ".tile"),
        section="9.7.9.25.5.2 cp.async.bulk.tensor",
        kind=Kind.EFFECT,
    )(store)


def _store(warp: Warp, lane: int, address: int, coordinates: Coordinates, source: int) -> None:
    """Issue one store of a box."""
    cluster, cta = warp.cta.cluster, warp.cta
    tensor, offset = tensor_map_at(cluster, address), own(cta, source)
    coordinates = tensor.elements(coordinates)

    def copy() -> None:
        size, span = tensor.box_bytes, tensor.swizzle
        chunks = tensor_map.shared_chunks(size, span, offset, tensor.atom)
        store_box(cluster, tensor, coordinates, cta.shared.read_chunks(chunks))
        cluster.counts["tma_store_bytes"] += tensor.box_bytes

    site = replace(cluster.site(warp), lanes=(lane,))
    cluster.asynchronous.submit(store_engine(warp), copy, site)


# 6. Prefetches


def _declare_prefetch(dimensions: int, hint: bool) -> None:
    """Enter one prefetch."""

    def prefetch(warp: Warp, mask: Mask | None, source: Any, _policy: Array | None = None) -> None:
        """Fill the L2 cache, which is not simulated: nothing to see."""

    instruction(
        f"cp.async.bulk.prefetch.tensor.{dimensions}d.L2.global<m>"
        f"{'.L2::cache_hint' if hint else ''}",
        f"[b64 s32*{dimensions}]{' b64' if hint else ''}",
        m=("", ".tile"),
        section="9.7.9.25.5.4 cp.async.bulk.prefetch.tensor",
        kind=Kind.EFFECT,
    )(prefetch)


for _dimensions, _hint in itertools.product(range(1, 6), (False, True)):
    _declare_store(_dimensions, _hint)
    _declare_prefetch(_dimensions, _hint)
