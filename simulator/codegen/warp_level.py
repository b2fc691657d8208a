"""Exchange between lanes, and instructions that are no more than checks here."""

from __future__ import annotations

from llvmlite import ir

from simulator.codegen.emit import I32, I64, Emitter, Value, ints, splat
from simulator.codegen.translations import effect, pure
from simulator.isa import synchronisation
from simulator.machine.memory_map import OFFSET_MASK, RANK_SHIFT, SHARED_WINDOW
from simulator.machine.warp import LANES

_LANE = ir.Constant(ints(32), list(range(LANES)))


def _require_members(e: Emitter, leaf: int) -> None:
    """Leave to Python a member mask that is not the set of active lanes, in any active lane."""
    taking_part = e.b.and_(e.uniform(leaf, "b32"), e.b.trunc(e.warp("alive"), I32))
    e.python_if(e.b.icmp_unsigned("!=", taking_part, e.mask))


@effect("shfl.sync.<mode>.b32", mode=("up", "down", "bfly", "idx"))
def _shfl(e: Emitter, *, mode: str) -> None:
    a, b, c = (e.source(i, "b32") for i in range(3))
    _require_members(e, 3)
    low_bits = splat(ints(32), 31)
    lane_bits = e.b.and_(b, low_bits)
    clamp = e.b.and_(c, low_bits)
    segment = e.b.and_(e.b.lshr(c, splat(ints(32), 8)), low_bits)
    outside = e.b.not_(segment)
    low = e.b.and_(_LANE, segment)
    high = e.b.or_(low, e.b.and_(clamp, outside))
    source = {
        "up": lambda: e.b.sub(_LANE, lane_bits),
        "down": lambda: e.b.add(_LANE, lane_bits),
        "bfly": lambda: e.b.xor(_LANE, lane_bits),
        "idx": lambda: e.b.or_(low, e.b.and_(lane_bits, outside)),
    }[mode]()
    inside = e.b.icmp_signed(">=" if mode == "up" else "<=", source, high)
    source = e.b.select(inside, source, _LANE)
    reached = e.b.and_(e.b.lshr(e.splat_of(e.mask), source), splat(ints(32), 1))
    e.python_if_any(e.b.icmp_unsigned("==", reached, splat(ints(32), 0)))
    values, sources = e.spill(a), e.spill(source)
    result = e.room(ints(32))
    with e.loop(LANES) as lane:
        at = e.b.zext(e.element(sources, lane, I32), I64)
        e.b.store(e.element(values, at, I32), e.b.gep(result, [lane], source_etype=I32))
    e.store(0, e.b.load(result, typ=ints(32)))
    if len(e.targets) == 2:
        e.store(1, inside)


@effect("elect.sync")
def _elect(e: Emitter) -> None:
    _require_members(e, 0)
    leader = e.splat_of(e.b.trunc(e.first_lane(), I32))
    e.store(0, leader)
    e.store(1, e.b.icmp_unsigned("==", _LANE, leader))


@effect("vote.sync.<mode>.pred", mode=("all", "any", "uni"))
def _vote(e: Emitter, *, mode: str) -> None:
    _require_members(e, 1)
    votes = e.b.and_(e.bits_of(e.source(0, "pred")), e.mask)
    everyone = e.b.icmp_unsigned("==", votes, e.mask)
    nobody = e.b.icmp_unsigned("==", votes, ir.Constant(I32, 0))
    answer = {"all": everyone, "any": e.b.not_(nobody), "uni": e.b.or_(everyone, nobody)}[mode]
    e.store(0, e.splat_of(answer))


@effect("vote.sync.ballot.b32")
def _ballot(e: Emitter) -> None:
    _require_members(e, 1)
    e.store(0, e.splat_of(e.b.and_(e.bits_of(e.source(0, "pred")), e.mask)))


@effect("activemask.b32")
def _activemask(e: Emitter) -> None:
    e.store(0, e.splat_of(e.mask))


# Shared addresses


@pure("cvta.<s>.u64", s=("shared", "shared::cta", "shared::cluster"))
def _cvta(e: Emitter, a: Value) -> Value:
    return e.b.add(a, splat(a.type, SHARED_WINDOW))


@pure("cvta.to.<s>.u64", s=("shared", "shared::cta", "shared::cluster"))
def _cvta_to(e: Emitter, a: Value) -> Value:
    return e.b.sub(a, splat(a.type, SHARED_WINDOW))


@pure("mapa.shared::cluster.u32")
def _mapa(e: Emitter, address: Value, rank: Value) -> Value:
    offset = e.b.and_(address, splat(address.type, OFFSET_MASK))
    return e.b.or_(offset, e.b.shl(rank, splat(rank.type, RANK_SHIFT)))


@pure("getctarank.shared::cluster.u32")
def _getctarank(e: Emitter, address: Value) -> Value:
    return e.b.lshr(address, splat(address.type, RANK_SHIFT))


# What does nothing here


@effect("<fence>", fence=synchronisation._FENCES)
@effect("nanosleep.u32")
@effect("griddepcontrol.<way>", way=("wait", "launch_dependents"))
@effect("tcgen05.wait::<w>.sync.aligned", w=("ld", "st"))
@effect("tcgen05.fence::<w>_thread_sync", w=("before", "after"))
def nothing(e: Emitter) -> None:
    """Order and time: accesses are in order here and time does not pass."""


@effect("bar.warp.sync")
def _bar_warp_sync(e: Emitter) -> None:
    _require_members(e, 0)


@effect("setmaxnreg.<way>.sync.aligned.u32", way=("inc", "dec"))
def _setmaxnreg(e: Emitter) -> None:
    count = e.uniform(0, "u32")
    odd = e.b.icmp_unsigned("!=", e.b.and_(count, ir.Constant(I32, 7)), ir.Constant(I32, 0))
    e.python_if(odd)
    e.python_if(e.b.icmp_unsigned("<", count, ir.Constant(I32, 24)))
    e.python_if(e.b.icmp_unsigned(">", count, ir.Constant(I32, 256)))
