"""Loads, stores and address conversions. Source: PTX ISA 9.7.9, Data Movement and Conversion."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from simulator.errors import Location, Trap, Unsupported
from simulator.isa.table import Kind, instruction
from simulator.isa.values import BITS, DTYPES
from simulator.machine.memory_map import (
    LOCAL_WINDOW,
    LOCAL_WINDOW_BYTES,
    OFFSET_MASK,
    PARAM_WINDOW,
    PARAM_WINDOW_BYTES,
    RANK_SHIFT,
    SHARED_WINDOW,
    SHARED_WINDOW_BYTES,
)
from simulator.machine.shared_memory import SharedMemory
from simulator.machine.warp import LANES, Mask, Warp, uniform

Array = Any

TYPES = (
    "b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64",
)  # fmt: skip
_VECTORS = {"": "<t>", ".v2": "(<t>*2)", ".v4": "(<t>*4)", ".v8": "(<t>*8)"}
_SHARED = ("shared", "shared::cta", "shared::cluster")
_SCOPES = ("cta", "cluster", "gpu", "sys")
_WEAK = (".weak", ".volatile")
_LOAD_ORDER = (*_WEAK, *(f".{o}.{s}" for o in ("relaxed", "acquire") for s in _SCOPES))
_STORE_ORDER = (*_WEAK, *(f".{o}.{s}" for o in ("relaxed", "release") for s in _SCOPES))
_LOAD_CACHE = (
    "", ".ca", ".cg", ".cs", ".lu", ".cv", ".nc", ".L1::no_allocate", ".L1::evict_last",
    ".nc.L1::no_allocate",
)  # fmt: skip
_STORE_CACHE = ("", ".wb", ".cg", ".cs", ".wt", ".L1::no_allocate", ".L1::evict_last")


# 1. Loads


def _spread(values: Array, mask: Mask | None, kind: str) -> Array:
    """Values [count, active lanes] as [count, 32] in the dtype of ``kind``; one row if single."""
    if mask is not None:
        wide = np.zeros((len(values), LANES), values.dtype)
        wide[:, mask] = values
        values = wide
    values = values.view(DTYPES[kind])
    return values[0] if len(values) == 1 else values


def load_param(warp: Warp, mask: Mask | None, address: Array, *, t: str, v: str) -> Array:
    """The kernel's parameters: the same bytes for every thread."""
    active = address if mask is None else address[mask]
    if not uniform(active):
        raise Trap("ld.param from addresses that differ between lanes")
    return warp.cta.cluster.parameter(int(active[0]) - PARAM_WINDOW, t, _count(v))


def load_global(warp: Warp, mask: Mask | None, address: Array, *, t: str, v: str) -> Array:
    """Global memory, straight from the tensors."""
    active = address if mask is None else address[mask]
    return _spread(warp.cta.cluster.memory.load(active, BITS[t] // 8, _count(v), mask), mask, t)


def load_shared(
    warp: Warp, mask: Mask | None, address: Array, *, t: str, v: str, space: str
) -> Array:
    """Shared memory of this CTA or, with ``.shared::cluster``, of any CTA of the cluster."""
    active = address if mask is None else address[mask]
    count, item = _count(v), BITS[t] // 8
    values = np.empty((count, len(active)), f"u{item}")
    for shared, some, lanes in _owners(warp, mask, active, space):
        values[:, some] = shared.load(active[some] & OFFSET_MASK, item, count, lanes)
    return _spread(values, mask, t)


def load_local(warp: Warp, mask: Mask | None, address: Array, *, t: str, v: str) -> Array:
    """Local memory: each lane's own."""
    lanes = warp.lanes(mask)
    offsets = address[lanes] - np.uint64(LOCAL_WINDOW)
    return _spread(warp.local.load(offsets, lanes, BITS[t] // 8, _count(v)), mask, t)


def load_generic(warp: Warp, mask: Mask | None, address: Array, *, t: str, v: str) -> Array:
    """A generic address: the window it lies in decides; all lanes must agree."""
    window = generic_window(warp, mask, address)
    if window == PARAM_WINDOW:
        return load_param(warp, mask, address, t=t, v=v)
    if window == LOCAL_WINDOW:
        return load_local(warp, mask, address, t=t, v=v)
    if window == SHARED_WINDOW:
        shared = (address - np.uint64(SHARED_WINDOW)).astype(np.uint32)
        return load_shared(warp, mask, shared, t=t, v=v, space="shared::cluster")
    return load_global(warp, mask, address, t=t, v=v)


# 2. Stores


def store_global(warp: Warp, mask: Mask | None, address: Array, value: Array, *, t: str) -> None:
    """Global memory, straight into the tensors."""
    active, values = _active(mask, address, value)
    warp.cta.cluster.memory.store(active, BITS[t] // 8, values, mask)


def store_shared(
    warp: Warp, mask: Mask | None, address: Array, value: Array, *, t: str, space: str
) -> None:
    """Shared memory of this CTA or, with ``.shared::cluster``, of any CTA of the cluster."""
    active, values = _active(mask, address, value)
    for shared, some, lanes in _owners(warp, mask, active, space):
        shared.store(active[some] & OFFSET_MASK, BITS[t] // 8, values[:, some], lanes)


def store_local(warp: Warp, mask: Mask | None, address: Array, value: Array, *, t: str) -> None:
    """Local memory: each lane's own."""
    active, values = _active(mask, address, value)
    offsets = active - np.uint64(LOCAL_WINDOW)
    warp.local.store(offsets, warp.lanes(mask), BITS[t] // 8, values)


def store_generic(warp: Warp, mask: Mask | None, address: Array, value: Array, *, t: str) -> None:
    """A generic address: the window it lies in decides; all lanes must agree."""
    window = generic_window(warp, mask, address)
    if window == PARAM_WINDOW:
        raise Trap("a store into the kernel's parameters")
    if window == LOCAL_WINDOW:
        return store_local(warp, mask, address, value, t=t)
    if window == SHARED_WINDOW:
        shared = (address - np.uint64(SHARED_WINDOW)).astype(np.uint32)
        return store_shared(warp, mask, shared, value, t=t, space="shared::cluster")
    return store_global(warp, mask, address, value, t=t)


def _active(mask: Mask | None, address: Array, value: Array) -> tuple[Array, Array]:
    """The active addresses, and the values as unsigned [count, active lanes]."""
    rows = np.stack(value) if isinstance(value, tuple) else value[None]
    rows = rows.view(f"u{rows.itemsize}")
    return (address, rows) if mask is None else (address[mask], rows[:, mask])


def _count(vector: str) -> int:
    return int(vector[2:]) if vector else 1


def _owners(
    warp: Warp, mask: Mask | None, active: Array, space: str
) -> list[tuple[SharedMemory, Any, Mask | None]]:
    """For each CTA that is addressed its memory, which of the addresses are its, and their lanes.

    Raises ``Trap`` if a space other than ``shared::cluster`` leaves the CTA.
    """
    ranks = active >> RANK_SHIFT
    ctas = warp.cta.cluster.cta
    if uniform(ranks):
        if space != "shared::cluster":
            _require_own(warp, int(ranks[0]), space)
        return [(ctas(int(active[0])).shared, slice(None), mask)]
    found: list[tuple[SharedMemory, Any, Mask | None]] = []
    for rank in np.unique(ranks).tolist():
        if space != "shared::cluster":
            _require_own(warp, rank, space)
        lanes = np.zeros(LANES, bool)
        lanes[warp.lanes(mask)[ranks == rank]] = True
        found.append((ctas(rank << RANK_SHIFT).shared, ranks == rank, lanes))
    return found


def _require_own(warp: Warp, rank: int, space: str) -> None:
    if rank != warp.cta.rank:
        raise Trap(f".{space} with an address of CTA rank {rank} in rank {warp.cta.rank}")


def generic_window(warp: Warp, mask: Mask | None, address: Array) -> int:
    """The window that holds the addresses, 0 for global memory."""
    active = address if mask is None else address[mask]
    windows = np.zeros(len(active), np.uint64)
    for start, size in _WINDOWS:
        windows[active - np.uint64(start) < size] = start
    if not uniform(windows):
        lanes = warp.lanes(mask)[windows != windows[0]]
        raise Unsupported(
            "one generic access to several state spaces", Location(lanes=tuple(lanes.tolist()))
        )
    return int(windows[0])


_WINDOWS = (
    (SHARED_WINDOW, SHARED_WINDOW_BYTES),
    (LOCAL_WINDOW, LOCAL_WINDOW_BYTES),
    (PARAM_WINDOW, PARAM_WINDOW_BYTES),
)
"""All spaces but global memory: first address, and extent."""


# 3. Declarations

_load = functools.partial(instruction, section="9.7.9.8 ld", kind=Kind.EFFECT, t=TYPES)
_store = functools.partial(instruction, section="9.7.9.12 st", kind=Kind.EFFECT, t=TYPES)

for _v, _shape in _VECTORS.items():
    _read, _write = f"{_shape} = [b64]", f"[b64] {_shape}"
    _load("ld<o>.local<v>.<t>", _read, v=(_v,), o=("", *_WEAK))(load_local)
    _store(f"st<o>.local{_v}.<t>", _write, o=("", *_WEAK))(store_local)
    _load("ld.param<v>.<t>", _read, v=(_v,))(load_param)
    for _cache in _LOAD_CACHE[1:]:
        _load(f"ld.global{_cache}<v>.<t>", _read, v=(_v,))(load_global)
        _load(f"ld{_cache}<v>.<t>", _read, v=(_v,))(load_generic)
    for _order in ("", *_LOAD_ORDER):
        _load(f"ld{_order}.global<v>.<t>", _read, v=(_v,))(load_global)
        _load(f"ld{_order}<v>.<t>", _read, v=(_v,))(load_generic)
        _load(f"ld{_order}.<space><v>.<t>", f"{_shape} = [b32]", v=(_v,), space=_SHARED)(
            load_shared
        )
    for _cache in _STORE_CACHE[1:]:
        _store(f"st.global{_cache}{_v}.<t>", _write)(store_global)
        _store(f"st{_cache}{_v}.<t>", _write)(store_generic)
    for _order in ("", *_STORE_ORDER):
        _store(f"st{_order}.global{_v}.<t>", _write)(store_global)
        _store(f"st{_order}{_v}.<t>", _write)(store_generic)
        _store(f"st{_order}.<space>{_v}.<t>", f"[b32] {_shape}", space=_SHARED)(store_shared)


# 4. Addresses


_cvta = functools.partial(instruction, section="9.7.9.20 cvta")
_prefetch = functools.partial(instruction, section="9.7.9.17 prefetch", kind=Kind.EFFECT)


@_cvta(
    "cvta.<s>.u64", "u64 = u64", s=("param", "global", "local", "to.param", "to.global", "to.local")
)
def cvta_same(address: Array) -> Array:
    """Parameter, global and local addresses are generic as they stand."""
    return address


@_cvta("cvta.<s>.u64", "u64 = u64", s=_SHARED)
def cvta_from_shared(address: Array) -> Array:
    """A shared address as a generic one."""
    return address + np.uint64(SHARED_WINDOW)


@_cvta("cvta.to.<s>.u64", "u64 = u64", s=_SHARED)
def cvta_to_shared(address: Array) -> Array:
    """A generic address as a shared one."""
    return address - np.uint64(SHARED_WINDOW)


@instruction("mapa.shared::cluster.u32", "u32 = u32 u32", section="9.7.9.23 mapa")
def mapa(address: Array, rank: Array) -> Array:
    """The same offset in the CTA of another rank."""
    return (address & np.uint32(OFFSET_MASK)) | (rank << np.uint32(RANK_SHIFT))


@instruction("getctarank.shared::cluster.u32", "u32 = u32", section="9.7.9.24 getctarank")
def getctarank(address: Array) -> Array:
    """The rank of the CTA that a shared address belongs to."""
    return address >> np.uint32(RANK_SHIFT)


@_prefetch("prefetch.tensormap", "[b64]")
@_prefetch("prefetch.<s>.tensormap", "[b64]", s=("param", "const"))
@_prefetch("prefetch<s>.<c>", "[b64]", s=("", ".global"), c=("L1", "L2"))
def prefetch(warp: Warp, mask: Mask | None, address: Array) -> None:
    """A hint: nothing to see."""
