"""What the tensor core and the TMA unit are asked for, where it completes at once.

A single lane asks for MMAs and commits, as kernels do. If asynchronous work completes later, or
anything is uncommon, the table's own function is called.
"""

from __future__ import annotations

from llvmlite import ir

from simulator.codegen.barriers import arrive, mbarrier, mbarrier_of
from simulator.codegen.bulk_copy import RANKS
from simulator.codegen.emit import I1, I32, I64, OK, POINTER, Emitter, Value, ctypes_size
from simulator.codegen.memory import (
    addresses,
    base,
    region_of,
    shared_places,
    tracking,
)
from simulator.codegen.state import ClusterState, CtaState
from simulator.codegen.tensor_core import FORM_PAIR, FORM_WEIGHT_STATIONARY
from simulator.codegen.translations import effect
from simulator.isa import tcgen05
from simulator.machine.barriers import Mbarrier
from simulator.machine.memory_map import OFFSET_MASK, RANK_SHIFT

_KINDS = ("f16", "f8f6f4")


def _eager(e: Emitter) -> Value:
    """The ``ClusterState``; leaves what is not done at once to Python."""
    cluster = e.b.inttoptr(e.warp("cluster"), POINTER)
    e.python_if(e.b.icmp_unsigned("==", e.field(cluster, ClusterState, "eager"), _zero()))
    return cluster


def _begin(e: Emitter) -> Value:
    """As ``_eager``; leaves several lanes to Python too."""
    cluster = _eager(e)
    e.python_if(e.b.icmp_unsigned("!=", e.b.ctpop(e.mask), ir.Constant(I32, 1)))
    return cluster


def _zero() -> Value:
    return ir.Constant(I64, 0)


def _flag(e: Emitter, leaf: int) -> Value:
    """A predicate in the active lane, 64 bits wide."""
    held = e.b.and_(e.bits_of(e.source(leaf, "pred")), e.mask)
    return e.b.zext(e.b.icmp_unsigned("!=", held, ir.Constant(I32, 0)), I64)


# 1. MMA


def _multiply(e: Emitter, kind: str, form: int, lane_words: int) -> None:
    cluster = _begin(e)
    for i in range(lane_words):
        e.python_if(e.b.icmp_unsigned("!=", e.uniform(5 + i, "b32"), ir.Constant(I32, 0)))
    d = e.b.zext(e.b.add(e.uniform(0, "b32"), e.b.trunc(e.immediate(1), I32)), I64)
    a, b = e.uniform(2, "b64"), e.uniform(3, "b64")
    idesc = e.b.zext(e.uniform(4, "b32"), I64)
    enabled = _flag(e, 5 + lane_words)
    address = e.field(cluster, ClusterState, f"mma_{kind}")
    e.python_if(e.b.icmp_unsigned("==", address, _zero()))
    signature = ir.FunctionType(I32, [POINTER, *[I64] * 6])
    function = e.b.inttoptr(address, signature.as_pointer())
    status = e.b.call(function, [e.state, d, a, b, idesc, enabled, ir.Constant(I64, form)])
    e.python_if(e.b.icmp_unsigned("!=", status, ir.Constant(I32, OK)))


@effect("tcgen05.mma.cta_group::<g>.kind::<k><c>", "[b32] b64 b64 b32 pred",
        g=("1", "2"), k=_KINDS, c=tcgen05.COLLECTOR_A)  # fmt: skip
def _mma(e: Emitter, *, g: str, k: str) -> None:
    _multiply(e, k, FORM_PAIR * (g == "2"), 0)


@effect("tcgen05.mma.cta_group::1.kind::<k><c>", "[b32] b64 b64 b32 (b32*4) pred",
        k=_KINDS, c=tcgen05.COLLECTOR_A)  # fmt: skip
def _mma_lanes(e: Emitter, *, k: str) -> None:
    _multiply(e, k, 0, 4)


@effect("tcgen05.mma.cta_group::2.kind::<k><c>", "[b32] b64 b64 b32 (b32*8) pred",
        k=_KINDS, c=tcgen05.COLLECTOR_A)  # fmt: skip
def _mma_pair_lanes(e: Emitter, *, k: str) -> None:
    _multiply(e, k, FORM_PAIR, 8)


@effect("tcgen05.mma.ws.cta_group::1.kind::<k><c>", "[b32] b64 b64 b32 pred",
        k=_KINDS, c=tcgen05._COLLECTOR_B)  # fmt: skip
def _mma_stationary(e: Emitter, *, k: str) -> None:
    _multiply(e, k, FORM_WEIGHT_STATIONARY, 0)


# 2. Commit


def count(e: Emitter, cluster: Value, name: str, more: Value | int) -> None:
    """Add to a counter of the cluster."""
    more = ir.Constant(I64, more) if isinstance(more, int) else more
    e.set_field(cluster, ClusterState, name, e.b.add(e.field(cluster, ClusterState, name), more))


def _awaits(e: Emitter, barrier: Value) -> None:
    """Leave to Python an arrival that the barrier does not await."""
    pending = e.field(barrier, Mbarrier, "pending")
    e.python_if(e.b.icmp_signed("<", pending, ir.Constant(I64, 1)))


@effect(tcgen05._ARRIVE + ".b64", g=("1", "2"), s=(".shared::cluster", ""))
def _commit(e: Emitter) -> None:
    cluster = _begin(e)
    barrier, _ = mbarrier(e, "shared::cluster")
    _awaits(e, barrier)
    arrive(e, barrier, ir.Constant(I64, 1))
    count(e, cluster, "completed", 1)


@effect(tcgen05._ARRIVE + ".multicast::cluster.b64", g=("1", "2"), s=(".shared::cluster", ""))
def _commit_multicast(e: Emitter) -> None:
    cluster = _begin(e)
    b = e.b
    address = b.add(e.uniform(0, "b32"), b.trunc(e.immediate(1), I32))
    chosen = b.zext(e.uniform(2, "b16"), I64)
    offset = b.zext(b.and_(address, ir.Constant(I32, OFFSET_MASK)), I64)
    ctas = b.inttoptr(e.field(e.cta, CtaState, "ctas"), POINTER)
    ranks = e.field(e.cta, CtaState, "cta_count")

    def each(body: object) -> None:
        with e.loop(ranks) as rank, b.if_then(b.trunc(b.lshr(chosen, rank), I1)):
            cta = e.offset(ctas, b.mul(rank, ir.Constant(I64, ctypes_size(CtaState))))
            body(mbarrier_of(e, cta, offset))  # type: ignore[operator]

    each(lambda barrier: _awaits(e, barrier))
    each(lambda barrier: arrive(e, barrier, ir.Constant(I64, 1)))
    count(e, cluster, "completed", 1)


# 3. Bulk loads


def _load(e: Emitter, s: str, dimensions: int) -> None:
    """Leaves: target, map, coordinates, barrier, perhaps a hint; each address with its offset."""
    cluster, b = _eager(e), e.b
    last = 4 + dimensions
    targets, barriers = (e.spill(addresses(e, leaf, "b32")) for leaf in (0, last))
    maps = e.spill(addresses(e, 2, "b64"))
    corners = [e.spill(e.source(4 + d, "s32")) for d in range(dimensions)]
    room = e.room(ir.ArrayType(I64, RANKS))
    signature = ir.FunctionType(I32, [POINTER, I64, I64, I64, POINTER, I64, I64])
    function = b.inttoptr(e.field(cluster, ClusterState, "tma_load"), signature.as_pointer())
    rank = ir.Constant(I64, dimensions)

    def call(lane: Value, asked: Value) -> Value:
        target, barrier = (b.zext(e.element(x, lane, I32), I64) for x in (targets, barriers))
        for d in range(RANKS):
            value = b.sext(e.element(corners[d], lane, I32), I64) if d < dimensions else _zero()
            b.store(value, e.offset(room, 8 * d))
        if s == "shared::cta":
            owner = b.lshr(target, ir.Constant(I64, RANK_SHIFT))
            e.python_if(b.icmp_unsigned("!=", owner, e.field(e.cta, CtaState, "rank")))
        place = e.element(maps, lane, I64)
        return b.call(function, [e.state, place, target, barrier, room, rank, asked])

    lanes = b.zext(b.ctpop(e.mask), I64)
    with e.each_active() as lane:
        e.python_if(b.icmp_unsigned("!=", call(lane, lanes), ir.Constant(I32, OK)))
    with e.each_active() as lane:
        call(lane, _zero())


def _declare_load(dimensions: int, group: str, hint: str) -> None:
    def load(e: Emitter, *, s: str) -> None:
        _load(e, s, dimensions)

    operands = f"[b32] [b64 s32*{dimensions}] [b32]{' b64' if hint else ''}"
    effect(
        f"cp.async.bulk.tensor.{dimensions}d.<s>.global<m>.mbarrier::complete_tx::bytes<x>",
        operands,
        s=("shared::cta", "shared::cluster"),
        m=("", ".tile"),
        x=sorted({hint + group, group + hint}),
    )(load)


for _dimensions in range(1, RANKS + 1):
    for _group in ("", ".cta_group::1", ".cta_group::2"):
        for _hint in ("", ".L2::cache_hint"):
            _declare_load(_dimensions, _group, _hint)


# 4. cp.async


def _copy(e: Emitter, span: int, cluster: Value) -> None:
    """``span`` bytes a lane, between allocations and shared memory of the own CTA."""
    b = e.b
    kind = ir.IntType(8 * span)
    cta, offsets = shared_places(e, 0, span, cluster=False)
    region, sources = region_of(e, span, leaf=2)
    tracked, valid = tracking(e, region)
    ones = ir.Constant(kind, int.from_bytes(b"\1" * span, "little"))
    with b.if_then(tracked, likely=False), e.each_active() as lane:
        at = b.inttoptr(b.add(valid, e.element(sources, lane, I64)), POINTER)
        e.python_if(b.icmp_unsigned("!=", b.load(at, typ=kind, align=1), ones))
    data, flags = (base(e, cta, name) for name in ("shared", "shared_valid"))
    with e.each_active() as lane:
        source = b.inttoptr(e.element(sources, lane, I64), POINTER)
        offset = e.element(offsets, lane, I64)
        b.store(b.load(source, typ=kind, align=1), e.offset(data, offset), align=1)
        b.store(ones, e.offset(flags, offset), align=1)
    count(e, cluster, "completed", 1)


@effect("cp.async.mbarrier.arrive.noinc<s>.b64", s=(".shared", ".shared::cta", ""))
def _copies_arrive(e: Emitter) -> None:
    """An arrival of each lane at once: its copies are complete."""
    cluster = _eager(e)
    barrier, _ = mbarrier(e, "shared::cta")
    arrive(e, barrier, e.b.zext(e.b.ctpop(e.mask), I64))
    count(e, cluster, "completed", 1)


def _copies(e: Emitter, sizes: tuple[int, ...]) -> None:
    """Of literal sizes only; of whole items only, where a second size follows."""
    cluster, b = _eager(e), e.b
    sizes_of = [e.uniform(leaf, "u32") for leaf in range(4, len(e.form.sources))]
    for other in sizes_of[1:]:
        e.python_if(b.icmp_unsigned("!=", other, sizes_of[0]))
    done = e.function.append_basic_block("copied")
    for span in sizes:
        with b.if_then(b.icmp_unsigned("==", sizes_of[0], ir.Constant(I32, span))):
            _copy(e, span, cluster)
            b.branch(done)
    e.python_if(ir.Constant(I1, 1))
    b.branch(done)
    b.position_at_end(done)


for _signature in ("[b32] [b64] u32", "[b32] [b64] u32 u32"):

    @effect("cp.async.<c>.shared<s>.global<p>", _signature, c=("ca", "cg"), s=("", "::cta"),
            p=("", ".L2::64B", ".L2::128B", ".L2::256B"))  # fmt: skip
    def _cp_async(e: Emitter, *, c: str) -> None:
        _copies(e, (16,) if c == "cg" else (4, 8, 16))
