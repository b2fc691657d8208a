"""Loads and stores: addresses are checked first, all lanes at once; then the lanes act in order.

Whatever a check refuses is left to the table's function, which finds out what is wrong, or handles
the case: lanes in several allocations, several CTAs, generic addresses.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from simulator.codegen.emit import (
    I32,
    I64,
    POINTER,
    Emitter,
    Value,
    WarpWriter,
    ctypes_size,
    ints,
    splat,
)
from simulator.codegen.state import CtaState, RegionState
from simulator.codegen.translations import effect
from simulator.isa import memory
from simulator.isa.values import BITS
from simulator.machine.memory_map import OFFSET_MASK, PARAM_WINDOW, RANK_SHIFT

_VECTORS = ("", ".v2", ".v4", ".v8")
_TYPES = memory.TYPES


def addresses(e: Emitter, leaf: int, kind: str) -> Value:
    """base + offset, over the lanes."""
    base = e.source(leaf, kind)
    offset = e.immediate(leaf + 1)
    offset = e.b.trunc(offset, I32) if kind == "b32" else offset
    return e.b.add(base, e.splat_of(offset))


def _copy(
    e: Emitter, memory_at: Value, registers: list[Value], lane: Value, t: str, *, load: bool
) -> None:
    """Move one lane's consecutive items between memory and registers (None for a sink)."""
    size = BITS[t] // 8
    for i, (place, width) in enumerate(registers):
        at = e.offset(memory_at, i * size)
        if load and place is not None:
            item = e.b.load(at, typ=ir.IntType(BITS[t]), align=size)
            if width > BITS[t]:
                item = (e.b.sext if t.startswith("s") else e.b.zext)(item, ir.IntType(width))
            e.b.store(item, e.b.gep(place, [lane], source_etype=item.type))
        elif not load:
            e.b.store(e.element(place, lane, ir.IntType(BITS[t])), at, align=size)


def _targets(e: Emitter) -> list[Any]:
    return [(e.target_place(i) if width else None, width) for i, width in enumerate(e.form.targets)]


def _sources(e: Emitter, first: int, t: str, count: int) -> list[Any]:
    """Where the values to be stored lie, one item a lane."""
    kind = f"b{BITS[t]}"
    return [(e.spill(e.source(first + i, kind)), BITS[t]) for i in range(count)]


def _valid_word(bits: int) -> ir.Constant:
    return ir.Constant(ir.IntType(bits), int.from_bytes(b"\1" * (bits // 8), "little"))


def _require_valid(e: Emitter, at: Value, t: str, count: int) -> None:
    """Leave to Python a read of bytes that nobody wrote; ``at`` is where the valid bytes are."""
    bits = BITS[t]
    for i in range(count):
        word = e.b.load(e.offset(at, i * bits // 8), typ=ir.IntType(bits), align=1)
        e.python_if(e.b.icmp_unsigned("!=", word, _valid_word(bits)))


def _mark_valid(e: Emitter, at: Value, t: str, count: int) -> None:
    for i in range(count):
        e.b.store(_valid_word(BITS[t]), e.offset(at, i * BITS[t] // 8), align=1)


# 1. Parameters


@effect("ld.param<v>.<t>", v=_VECTORS, t=_TYPES)
def _load_param(e: Emitter, *, v: str, t: str) -> None:
    size = BITS[t] // 8
    start = e.b.sub(e.b.add(e.uniform(0, "b64"), e.immediate(1)), ir.Constant(I64, PARAM_WINDOW))
    room = e.b.sub(
        e.field(e.cta, CtaState, "parameter_bytes"), ir.Constant(I64, size * len(e.targets))
    )
    e.python_if(e.b.icmp_signed("<", room, ir.Constant(I64, 0)))
    e.python_if(e.b.icmp_unsigned(">", start, room))
    at = e.offset(e.b.inttoptr(e.field(e.cta, CtaState, "parameters"), POINTER), start)
    for i in range(len(e.targets)):
        item = e.b.load(e.offset(at, i * size), typ=ir.IntType(BITS[t]), align=1)
        e.store(i, e.splat_of(item))


# 2. Shared memory


def shared_places(e: Emitter, leaf: int, span: int, *, cluster: bool) -> tuple[Value, Value]:
    """The addresses' CTA, all of one, and where their offsets (64 bits) are kept."""
    places = addresses(e, leaf, "b32")
    rank = e.b.lshr(places, splat(places.type, RANK_SHIFT))
    if cluster:
        kept = e.spill(places)
        cta = e.cta_of(e.element(kept, e.first_lane(), I32))
    else:
        cta = e.cta
    expected = e.splat_of(e.b.trunc(e.field(cta, CtaState, "rank"), I32))
    e.python_if_any(e.b.icmp_unsigned("!=", rank, expected))
    offsets = e.b.and_(places, splat(places.type, OFFSET_MASK))
    odd = e.b.and_(offsets, splat(offsets.type, span - 1))
    e.python_if_any(e.b.icmp_unsigned("!=", odd, splat(offsets.type, 0)))
    end = e.b.trunc(e.b.sub(e.field(cta, CtaState, "shared_size"), ir.Constant(I64, span)), I32)
    e.python_if_any(e.b.icmp_signed(">", offsets, e.splat_of(end)))
    return cta, e.spill(e.b.zext(offsets, ints(64)))


def base(e: WarpWriter, cta: Value, name: str) -> Value:
    """The address that a field of a ``CtaState`` holds, as a pointer."""
    return e.b.inttoptr(e.field(cta, CtaState, name), POINTER)


_SPACES = ("shared", "shared::cta", "shared::cluster")


@effect("ld<o>.<space><v>.<t>", o=("", *memory._LOAD_ORDER), space=_SPACES, v=_VECTORS, t=_TYPES)
def _load_shared(e: Emitter, *, space: str, t: str) -> None:
    count = len(e.targets)
    cta, offsets = shared_places(e, 0, BITS[t] // 8 * count, cluster=space == "shared::cluster")
    data, valid = base(e, cta, "shared"), base(e, cta, "shared_valid")
    checked = e.b.icmp_unsigned("!=", e.field(cta, CtaState, "check_shared"), ir.Constant(I64, 0))
    with e.b.if_then(checked, likely=True), e.each_active() as lane:
        _require_valid(e, e.offset(valid, e.element(offsets, lane, I64)), t, count)
    targets = _targets(e)
    with e.each_active() as lane:
        _copy(e, e.offset(data, e.element(offsets, lane, I64)), targets, lane, t, load=True)


@effect("st<o>.<space><v>.<t>", o=("", *memory._STORE_ORDER), space=_SPACES, v=_VECTORS, t=_TYPES)
def _store_shared(e: Emitter, *, space: str, t: str) -> None:
    count = len(e.form.sources) - 2
    cta, offsets = shared_places(e, 0, BITS[t] // 8 * count, cluster=space == "shared::cluster")
    data, valid = base(e, cta, "shared"), base(e, cta, "shared_valid")
    values = _sources(e, 2, t, count)
    with e.each_active() as lane:
        offset = e.element(offsets, lane, I64)
        _copy(e, e.offset(data, offset), values, lane, t, load=False)
        _mark_valid(e, e.offset(valid, offset), t, count)


# 3. Global memory


def region_of(e: Emitter, span: int, leaf: int = 0) -> tuple[Value, Value]:
    """The allocation that all addresses lie in, and where the addresses are kept."""
    places = addresses(e, leaf, "b64")
    kept = e.spill(places)
    region, start, end = find_region(e, e.element(kept, e.first_lane(), I64))
    odd = e.b.and_(places, splat(places.type, span - 1))
    e.python_if_any(e.b.icmp_unsigned("!=", odd, splat(places.type, 0)))
    e.python_if_any(e.b.icmp_unsigned("<", places, e.splat_of(start)))
    last = e.b.sub(end, ir.Constant(I64, span))
    e.python_if_any(e.b.icmp_unsigned(">", places, e.splat_of(last)))
    return region, kept


def find_region(e: WarpWriter, first: Value) -> tuple[Value, Value, Value]:
    """The allocation that holds an address, and its start and end; none is left to Python."""
    table = base(e, e.cta, "regions")
    count = e.field(e.cta, CtaState, "region_count")
    e.python_if(e.b.icmp_unsigned("==", count, ir.Constant(I64, 0)))
    search, found, onwards = (e.function.append_basic_block(n) for n in ("search", "found", "next"))
    before = e.b.block
    e.b.branch(search)
    e.b.position_at_end(search)
    i = e.b.phi(I64)
    i.add_incoming(ir.Constant(I64, 0), before)
    region = e.offset(table, e.b.mul(i, ir.Constant(I64, ctypes_size(RegionState))))
    start, end = e.field(region, RegionState, "start"), e.field(region, RegionState, "end")
    inside = e.b.and_(e.b.icmp_unsigned(">=", first, start), e.b.icmp_unsigned("<", first, end))
    e.b.cbranch(inside, found, onwards)
    e.b.position_at_end(onwards)
    following = e.b.add(i, ir.Constant(I64, 1))
    e.python_if(e.b.icmp_unsigned(">=", following, count))
    i.add_incoming(following, e.b.block)
    e.b.branch(search)
    e.b.position_at_end(found)
    return region, start, end


def tracking(e: Emitter, region: Value) -> tuple[Value, Value]:
    """Whether the allocation remembers what was written, and its valid bytes less its base."""
    valid = e.field(region, RegionState, "valid")
    shifted = e.b.sub(valid, e.field(region, RegionState, "base"))
    return e.b.icmp_unsigned("!=", valid, ir.Constant(I64, 0)), shifted


@effect("ld.global<c><v>.<t>", c=memory._LOAD_CACHE, v=_VECTORS, t=_TYPES)
@effect("ld<c>.global<v>.<t>", c=memory._LOAD_ORDER, v=_VECTORS, t=_TYPES)
def _load_global(e: Emitter, *, t: str) -> None:
    count = len(e.targets)
    region, places = region_of(e, BITS[t] // 8 * count)
    tracked, valid = tracking(e, region)
    with e.b.if_then(tracked, likely=False), e.each_active() as lane:
        at = e.b.add(valid, e.element(places, lane, I64))
        _require_valid(e, e.b.inttoptr(at, POINTER), t, count)
    targets = _targets(e)
    with e.each_active() as lane:
        at = e.b.inttoptr(e.element(places, lane, I64), POINTER)
        _copy(e, at, targets, lane, t, load=True)


@effect("st.global<c><v>.<t>", c=memory._STORE_CACHE, v=_VECTORS, t=_TYPES)
@effect("st<c>.global<v>.<t>", c=memory._STORE_ORDER, v=_VECTORS, t=_TYPES)
def _store_global(e: Emitter, *, t: str) -> None:
    count = len(e.form.sources) - 2
    region, places = region_of(e, BITS[t] // 8 * count)
    tracked, valid = tracking(e, region)
    values = _sources(e, 2, t, count)
    with e.each_active() as lane:
        address = e.element(places, lane, I64)
        _copy(e, e.b.inttoptr(address, POINTER), values, lane, t, load=False)
    with e.b.if_then(tracked, likely=False), e.each_active() as lane:
        at = e.b.add(valid, e.element(places, lane, I64))
        _mark_valid(e, e.b.inttoptr(at, POINTER), t, count)


# 4. Addresses


@effect("prefetch.tensormap")
@effect("prefetch.<s>.tensormap", s=("param", "const"))
@effect("prefetch<s>.<c>", s=("", ".global"), c=("L1", "L2"))
def prefetch(e: Emitter) -> None:
    """A hint: nothing to do."""
