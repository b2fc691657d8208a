"""mbarrier and bar: the common cases, where nothing is wrong and all lanes address one object."""

from __future__ import annotations

from llvmlite import ir

from simulator.codegen.emit import (
    BLOCK,
    FULL,
    I32,
    I64,
    POINTER,
    Emitter,
    Value,
    WarpWriter,
    Writer,
    ctypes_size,
)
from simulator.codegen.state import (
    FOR_BARRIER,
    FOR_CLUSTER,
    FOR_MBARRIER,
    MBARRIER_POOL,
    NOT_WAITING,
    ClusterState,
    CtaState,
)
from simulator.codegen.translations import effect
from simulator.isa import synchronisation
from simulator.machine.barriers import MAX_COUNT, ClusterBarrier, Mbarrier, NamedBarrier
from simulator.machine.memory_map import OFFSET_MASK, RANK_SHIFT
from simulator.machine.warp import LANES, POLLING_BLOCKS

_ZERO, _ONE = ir.Constant(I64, 0), ir.Constant(I64, 1)


def mbarrier(e: Emitter, space: str) -> tuple[Value, Value]:
    """The object at the address of leaves 0 and 1, and that address (32 bits)."""
    address = e.b.add(e.uniform(0, "b32"), e.b.trunc(e.immediate(1), I32))
    odd = e.b.and_(address, ir.Constant(I32, 7))
    e.python_if(e.b.icmp_unsigned("!=", odd, ir.Constant(I32, 0)))
    cta = e.cta_of(address)
    if space != "shared::cluster":
        rank = e.b.zext(e.b.lshr(address, ir.Constant(I32, RANK_SHIFT)), I64)
        e.python_if(e.b.icmp_unsigned("!=", rank, e.field(e.cta, CtaState, "rank")))
    offset = e.b.zext(e.b.and_(address, ir.Constant(I32, OFFSET_MASK)), I64)
    return mbarrier_of(e, cta, offset), address


def mbarrier_of(e: Writer, cta: Value, offset: Value) -> Value:
    """The object at an offset, a multiple of 8, of a CTA's shared memory."""
    e.python_if(e.b.icmp_unsigned(">=", offset, e.field(cta, CtaState, "shared_size")))
    table = e.field(cta, CtaState, "mbarriers")
    e.python_if(e.b.icmp_unsigned("==", table, _ZERO))
    held = e.b.load(e.offset(e.b.inttoptr(table, POINTER), offset), typ=I64)
    e.python_if(e.b.icmp_unsigned("==", held, _ZERO))
    return e.b.inttoptr(held, POINTER)


def arrive(e: Emitter, barrier: Value, count: Value) -> None:
    """``count`` (64 bits) arrivals; Python's if there are too many."""
    pending = e.field(barrier, Mbarrier, "pending")
    e.python_if(e.b.icmp_signed(">", count, pending))
    settle(e, barrier, e.b.sub(pending, count))


def settle(e: WarpWriter, barrier: Value, pending: Value) -> None:
    """Set ``pending``, and end the phase if that and ``tx`` are 0."""
    e.set_field(barrier, Mbarrier, "pending", pending)
    tx = e.field(barrier, Mbarrier, "tx")
    with e.b.if_then(e.b.icmp_unsigned("==", e.b.or_(pending, tx), _ZERO)):
        phase = e.field(barrier, Mbarrier, "phase")
        e.set_field(barrier, Mbarrier, "phase", e.b.add(phase, _ONE))
        e.set_field(barrier, Mbarrier, "pending", e.field(barrier, Mbarrier, "expected"))
        _note_event(e)


def _note_event(e: WarpWriter) -> None:
    cluster = _cluster(e)
    e.set_field(
        cluster, ClusterState, "events", e.b.add(e.field(cluster, ClusterState, "events"), _ONE)
    )


def _cluster(e: WarpWriter) -> Value:
    """The ``ClusterState``."""
    return e.b.inttoptr(e.warp("cluster"), POINTER)


def _state(e: Emitter, barrier: Value) -> None:
    """The result of an arrival: the phase before it."""
    e.store(0, e.splat_of(e.field(barrier, Mbarrier, "phase")))


_ORDER, _ANY, _CTA = synchronisation._ORDER, synchronisation._ANY, synchronisation._CTA


@effect("mbarrier.init.<s>.b64", s=_CTA)
def _init(e: Emitter) -> None:
    """Of a single lane, where no object is, and while the pool lasts."""
    b, cta = e.b, e.cta
    e.python_if(b.icmp_unsigned("!=", b.ctpop(e.mask), ir.Constant(I32, 1)))
    address = b.add(e.uniform(0, "b32"), b.trunc(e.immediate(1), I32))
    rank = b.zext(b.lshr(address, ir.Constant(I32, RANK_SHIFT)), I64)
    e.python_if(b.icmp_unsigned("!=", rank, e.field(cta, CtaState, "rank")))
    offset = b.zext(b.and_(address, ir.Constant(I32, OFFSET_MASK)), I64)
    e.python_if(b.icmp_unsigned("!=", b.and_(offset, ir.Constant(I64, 7)), _ZERO))
    last = b.sub(e.field(cta, CtaState, "shared_size"), ir.Constant(I64, 8))
    e.python_if(b.icmp_signed(">", offset, last))
    count = b.zext(e.uniform(2, "u32"), I64)
    e.python_if(b.icmp_unsigned("==", count, _ZERO))
    e.python_if(b.icmp_unsigned(">", count, ir.Constant(I64, MAX_COUNT)))
    pool, pooled = (e.field(cta, CtaState, name) for name in ("pool", "pooled"))
    e.python_if(b.icmp_unsigned("==", pool, _ZERO))
    e.python_if(b.icmp_unsigned(">=", pooled, ir.Constant(I64, MBARRIER_POOL)))
    table = b.inttoptr(e.field(cta, CtaState, "mbarriers"), POINTER)
    slot = e.offset(table, offset)
    e.python_if(b.icmp_unsigned("!=", b.load(slot, typ=I64), _ZERO))
    made = b.add(pool, b.mul(pooled, ir.Constant(I64, ctypes_size(Mbarrier))))
    barrier = b.inttoptr(made, POINTER)
    for name, value in (("expected", count), ("pending", count), ("tx", 0), ("phase", 0)):
        e.set_field(barrier, Mbarrier, name, value)
    e.set_field(barrier, Mbarrier, "offset", offset)
    b.store(made, slot)
    e.set_field(cta, CtaState, "pooled", b.add(pooled, _ONE))


@effect("mbarrier.arrive<o>.<s>.b64", "b64 = [b32]", o=_ORDER, s=_ANY)
def _native_arrive(e: Emitter, *, s: str) -> None:
    barrier, _ = mbarrier(e, s)
    count = e.b.zext(e.b.ctpop(e.mask), I64)
    e.python_if(e.b.icmp_signed(">", count, e.field(barrier, Mbarrier, "pending")))
    _state(e, barrier)
    arrive(e, barrier, count)


@effect("mbarrier.arrive<o>.<s>.b64", "b64 = [b32] u32", o=_ORDER, s=_ANY)
def _arrive_count(e: Emitter, *, s: str) -> None:
    barrier, _ = mbarrier(e, s)
    each = e.b.zext(e.uniform(2, "u32"), I64)
    count = e.b.mul(each, e.b.zext(e.b.ctpop(e.mask), I64))
    e.python_if(e.b.icmp_signed(">", count, e.field(barrier, Mbarrier, "pending")))
    _state(e, barrier)
    arrive(e, barrier, count)


@effect("mbarrier.arrive.expect_tx<o>.<s>.b64", "b64 = [b32] u32", o=_ORDER, s=_ANY)
def arrive_expect_tx(e: Emitter, *, s: str) -> None:
    """Of a single lane, at a phase that awaits an arrival: then expecting ends no phase."""
    barrier, _ = mbarrier(e, s)
    several = e.b.icmp_unsigned("!=", e.b.ctpop(e.mask), ir.Constant(I32, 1))
    e.python_if(several)
    e.python_if(e.b.icmp_signed("<", e.field(barrier, Mbarrier, "pending"), _ONE))
    byte_count = e.b.zext(e.uniform(2, "u32"), I64)
    tx = e.b.add(e.field(barrier, Mbarrier, "tx"), byte_count)
    e.python_if(e.b.icmp_signed(">", tx, ir.Constant(I64, MAX_COUNT)))
    _state(e, barrier)
    e.set_field(barrier, Mbarrier, "tx", tx)
    arrive(e, barrier, _ONE)


_ACQUIRE = synchronisation._ACQUIRE


@effect("mbarrier.test_wait.parity<o>.<s>.b64", o=_ACQUIRE, s=_CTA)
@effect("mbarrier.try_wait.parity<o>.<s>.b64", o=_ACQUIRE, s=_CTA)
def _try_wait(e: Emitter, *, s: str) -> None:
    barrier, address = mbarrier(e, s)
    parity = e.b.and_(e.b.zext(e.uniform(2, "u32"), I64), _ONE)
    phase = e.b.and_(e.field(barrier, Mbarrier, "phase"), _ONE)
    passed = e.b.icmp_unsigned("!=", phase, parity)
    wait = e.function.append_basic_block("wait")
    give_up = e.function.append_basic_block("give_up")
    block = e.function.append_basic_block("block")
    go = e.function.append_basic_block("go")
    done = e.function.append_basic_block("done")
    e.b.cbranch(passed, go, wait)

    e.b.position_at_end(go)
    _go_on(e)
    e.b.branch(done)

    e.b.position_at_end(wait)
    e.set_warp("waiting", FOR_MBARRIER)
    e.set_warp("waiting_for", e.b.zext(address, I64))
    e.set_warp("parity", parity)
    attempted = e.b.icmp_unsigned("!=", e.warp("attempted"), _ZERO)
    e.b.cbranch(attempted, give_up, block)

    e.b.position_at_end(block)
    e.set_warp("attempted", 1)
    e.b.ret(ir.Constant(I32, BLOCK))

    e.b.position_at_end(give_up)
    e.set_warp("polling", POLLING_BLOCKS)
    e.b.branch(done)

    e.b.position_at_end(done)
    e.set_warp("attempted", 0)
    e.store(0, e.splat_of(passed))


# Named barriers

_SYNC = (*synchronisation._SYNC, *synchronisation._SYNC_ALIGNED)
_ARRIVE = (*synchronisation._ARRIVE, *synchronisation._ARRIVE_ALIGNED)


def _require_whole(e: Emitter) -> None:
    """Leave to Python a warp that is diverged."""
    e.python_if(e.b.icmp_unsigned("!=", e.mask, e.b.trunc(e.warp("alive"), I32)))


def _of_all(e: Emitter, leaf: int) -> Value:
    """A leaf, 64 bits wide; Python's if it is a register of a warp that has lost lanes."""
    if e.form.sources[leaf]:
        e.python_if(e.b.icmp_unsigned("!=", e.mask, FULL))
    return e.b.zext(e.uniform(leaf, "u32"), I64)


def _named(e: Emitter) -> tuple[Value, Value]:
    """The barrier of leaf 0, and its number."""
    number = _of_all(e, 0)
    e.python_if(e.b.icmp_unsigned(">=", number, ir.Constant(I64, 16)))
    slots = e.offset(e.cta, CtaState.named.offset)
    held = e.b.load(e.b.gep(slots, [number], source_etype=I64), typ=I64)
    e.python_if(e.b.icmp_unsigned("==", held, _ZERO))
    return e.b.inttoptr(held, POINTER), number


def _count_in(e: Emitter, barrier: Value, threads: Value | None) -> Value:
    """The warp arrives; the generation before. Python's if the numbers do not fit.

    ``threads`` is None for everyone that has not exited; of a number a warp counts whole.
    """
    _require_whole(e)
    everyone = threads is None
    if threads is None:
        threads = e.field(e.cta, CtaState, "threads")
        lanes = e.b.zext(e.b.ctpop(e.mask), I64)
    else:
        lanes = ir.Constant(I64, LANES)
        ragged = e.b.icmp_unsigned("!=", e.b.and_(threads, ir.Constant(I64, LANES - 1)), _ZERO)
        e.python_if(e.b.or_(ragged, e.b.icmp_unsigned("==", threads, _ZERO)))
        most = e.b.mul(e.field(e.cta, CtaState, "warp_count"), ir.Constant(I64, LANES))
        e.python_if(e.b.icmp_unsigned(">", threads, most))
    awaited = e.field(barrier, NamedBarrier, "awaiting")
    fresh = e.b.icmp_signed("<", awaited, _ZERO)
    e.python_if(e.b.not_(e.b.or_(fresh, e.b.icmp_signed("==", awaited, threads))))
    arrived = e.b.add(e.field(barrier, NamedBarrier, "arrived"), lanes)
    e.python_if(e.b.icmp_signed(">", arrived, threads))
    e.set_field(barrier, NamedBarrier, "everyone", int(everyone))
    e.set_field(barrier, NamedBarrier, "awaiting", threads)
    e.set_field(barrier, NamedBarrier, "arrived", arrived)
    generation = e.field(barrier, NamedBarrier, "generation")
    with e.b.if_then(e.b.icmp_signed("==", arrived, threads)):
        e.set_field(barrier, NamedBarrier, "arrived", 0)
        e.set_field(barrier, NamedBarrier, "awaiting", -1)
        e.set_field(barrier, NamedBarrier, "generation", e.b.add(generation, _ONE))
        _note_event(e)
    return generation


@effect("<op>", "u32", op=_SYNC)
def _sync(e: Emitter) -> None:
    _wait(e, *_named(e), None)


@effect("<op>", "u32 u32", op=_SYNC)
def _sync_count(e: Emitter) -> None:
    _wait(e, *_named(e), _of_all(e, 1))


def _wait(e: Emitter, barrier: Value, number: Value, threads: Value | None) -> None:
    with e.b.if_then(e.b.icmp_signed("<", e.warp("ticket"), _ZERO)):
        e.set_warp("ticket", _count_in(e, barrier, threads))
    generation = e.field(barrier, NamedBarrier, "generation")
    opened = e.b.icmp_signed(">", generation, e.warp("ticket"))
    with e.b.if_then(e.b.not_(opened)):
        e.set_warp("waiting", FOR_BARRIER)
        e.set_warp("waiting_for", number)
        e.b.ret(ir.Constant(I32, BLOCK))
    e.set_warp("ticket", -1)
    _go_on(e)


def _go_on(e: Emitter) -> None:
    """The wait is over."""
    e.set_warp("waiting", NOT_WAITING)
    e.set_warp("attempted", 0)
    e.set_warp("polling", 0)


@effect("<op>", "u32 u32", op=_ARRIVE)
def _bar_arrive(e: Emitter) -> None:
    barrier, _ = _named(e)
    _count_in(e, barrier, _of_all(e, 1))


# The barrier of the cluster


def _cluster_barrier(e: Emitter) -> Value:
    return e.b.inttoptr(e.field(_cluster(e), ClusterState, "barrier"), POINTER)


@effect("barrier.cluster.arrive<o><a>", o=("", ".release", ".relaxed"), a=("", ".aligned"))
def _cluster_arrive(e: Emitter) -> None:
    _require_whole(e)
    e.python_if(e.b.icmp_signed(">=", e.warp("cluster_ticket"), _ZERO))
    barrier = _cluster_barrier(e)
    generation = e.field(barrier, ClusterBarrier, "generation")
    arrived = e.b.add(e.field(barrier, ClusterBarrier, "arrived"), e.b.zext(e.b.ctpop(e.mask), I64))
    e.set_field(barrier, ClusterBarrier, "arrived", arrived)
    with e.b.if_then(e.b.icmp_signed(">=", arrived, e.field(barrier, ClusterBarrier, "threads"))):
        e.set_field(barrier, ClusterBarrier, "arrived", 0)
        e.set_field(barrier, ClusterBarrier, "generation", e.b.add(generation, _ONE))
        _note_event(e)
    e.set_warp("cluster_ticket", generation)


@effect("barrier.cluster.wait<o><a>", o=("", ".acquire"), a=("", ".aligned"))
def _cluster_wait(e: Emitter) -> None:
    ticket = e.warp("cluster_ticket")
    e.python_if(e.b.icmp_signed("<", ticket, _ZERO))
    generation = e.field(_cluster_barrier(e), ClusterBarrier, "generation")
    with e.b.if_then(e.b.icmp_signed("<=", generation, ticket)):
        e.set_warp("waiting", FOR_CLUSTER)
        e.b.ret(ir.Constant(I32, BLOCK))
    e.set_warp("cluster_ticket", -1)
    _go_on(e)
