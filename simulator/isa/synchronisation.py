"""Barriers and fences. Source: PTX ISA 9.7.13, Parallel Synchronization and Communication."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from simulator.errors import Location, OutOfBounds, ProtocolError, Trap, Unsupported
from simulator.isa.table import BLOCKED, Kind, instruction
from simulator.isa.warp_level import groups
from simulator.machine.barriers import Mbarrier
from simulator.machine.memory_map import OFFSET_MASK, RANK_SHIFT
from simulator.machine.warp import LANES, Mask, Warp, uniform

Array = Any
_CTA = ("shared", "shared::cta")
_ANY = (*_CTA, "shared::cluster")
_ORDER = ("", ".release.cta", ".release.cluster", ".relaxed.cta", ".relaxed.cluster")
_ACQUIRE = ("", ".acquire.cta", ".acquire.cluster", ".relaxed.cta", ".relaxed.cluster")
_CLUSTER_ARRIVE = ("", ".release", ".relaxed")
_MBARRIER_BYTES = 8


# 1. mbarrier


def barriers(
    warp: Warp, mask: Mask | None, address: Array, space: str
) -> list[tuple[Mbarrier, Array]]:
    """The mbarrier objects that the active lanes address, each with its lanes.

    Raises ``Trap`` where none was initialised, and outside ``shared::cluster`` for another CTA's.
    """
    lanes = warp.lanes(mask)
    active = address[lanes]
    cluster = warp.cta.cluster
    if space != "shared::cluster" and (active >> RANK_SHIFT != warp.cta.rank).any():
        elsewhere = lanes[active >> RANK_SHIFT != warp.cta.rank]
        name = cluster.shared_name(int(address[elsewhere[0]]))
        raise Trap(
            f".{space} where the mbarrier is {name}", Location(lanes=tuple(elsewhere.tolist()))
        )
    if uniform(active):
        return [(cluster.mbarrier(int(active[0])), lanes)]
    return [(cluster.mbarrier(int(a)), lanes[active == a]) for a in np.unique(active)]


_init = functools.partial(instruction, section="9.7.13.15.9 mbarrier.init", kind=Kind.EFFECT)
_inval = functools.partial(instruction, section="9.7.13.15.10 mbarrier.inval", kind=Kind.EFFECT)
_expect = functools.partial(
    instruction, section="9.7.13.15.11 mbarrier.expect_tx", kind=Kind.EFFECT
)
_arrive = functools.partial(instruction, section="9.7.13.15.13 mbarrier.arrive", kind=Kind.EFFECT)
_wait = functools.partial(instruction, section="9.7.13.15.16 mbarrier.try_wait", kind=Kind.WAIT)


@_init("mbarrier.init.<s>.b64", "[b32] u32", s=_CTA)
def mbarrier_init(warp: Warp, mask: Mask | None, address: Array, count: Array, *, s: str) -> None:
    """Make an mbarrier object that awaits ``count`` arrivals a phase."""
    lanes = warp.lanes(mask)
    for where, expected in dict.fromkeys(
        zip(address[lanes].tolist(), count[lanes].tolist(), strict=True)
    ):
        _init_one(warp, where, expected, s)


def _init_one(warp: Warp, where: int, expected: int, space: str) -> None:
    cta, name = warp.cta, warp.cta.cluster.shared_name(where)
    offset = where & OFFSET_MASK
    if where >> RANK_SHIFT != cta.rank:
        raise Trap(f"mbarrier.init.{space} of {name} by CTA rank {cta.rank}")
    if offset % _MBARRIER_BYTES:
        raise Trap(f"mbarrier at {name}: not a multiple of {_MBARRIER_BYTES} bytes")
    if offset + _MBARRIER_BYTES > cta.shared.size:
        raise OutOfBounds(f"mbarrier at {name}: beyond the end of shared memory")
    if offset in cta.mbarriers:
        raise ProtocolError(f"mbarrier.init of a live object: {cta.mbarriers[offset].describe()}")
    observer = cta.cluster.observer
    barrier = Mbarrier(name, expected, cta.cluster.note_event, observer)
    cta.mbarriers[offset] = barrier
    if observer is not None:
        observer.initialised(barrier, offset)


@_inval("mbarrier.inval.<s>.b64", "[b32]", s=_CTA)
def mbarrier_inval(warp: Warp, mask: Mask | None, address: Array, *, s: str) -> None:
    """The object is gone; its memory may be used for anything."""
    observer = warp.cta.cluster.observer
    for barrier, lanes in barriers(warp, mask, address, s):
        del warp.cta.mbarriers[int(address[lanes[0]]) & OFFSET_MASK]
        if observer is not None:
            observer.invalidated(barrier)


@_arrive("mbarrier.arrive<o>.<s>.b64", "b64 = [b32]", o=_ORDER, s=_ANY)
def mbarrier_arrive(warp: Warp, mask: Mask | None, address: Array, *, s: str) -> Array:
    """One arrival for each active lane; the result is the phase that was arrived at."""
    return mbarrier_arrive_count(warp, mask, address, np.ones(LANES, np.uint32), s=s)


@_arrive("mbarrier.arrive<o>.<s>.b64", "b64 = [b32] u32", o=_ORDER, s=_ANY)
def mbarrier_arrive_count(
    warp: Warp, mask: Mask | None, address: Array, count: Array, *, s: str
) -> Array:
    """``count`` arrivals for each active lane."""
    state = np.zeros(LANES, np.uint64)
    for barrier, lanes in barriers(warp, mask, address, s):
        state[lanes] = barrier.phase
        total = int(count[lanes].sum())
        if total <= barrier.pending:
            barrier.arrive(total)
        else:  # a phase may end between the arrivals of two lanes
            for lane in lanes:
                state[lane] = barrier.phase
                barrier.arrive(int(count[lane]))
    return state


@_arrive("mbarrier.arrive.expect_tx<o>.<s>.b64", "b64 = [b32] u32", o=_ORDER, s=_ANY)
def mbarrier_arrive_expect_tx(
    warp: Warp, mask: Mask | None, address: Array, byte_count: Array, *, s: str
) -> Array:
    """Expect bytes, then arrive once, for each active lane."""
    state = np.zeros(LANES, np.uint64)
    for barrier, lanes in barriers(warp, mask, address, s):
        for lane in lanes:
            state[lane] = barrier.phase
            barrier.expect_tx(int(byte_count[lane]))
            barrier.arrive()
    return state


@_expect("mbarrier.expect_tx.relaxed.<c>.<s>.b64", "[b32] u32", c=("cta", "cluster"), s=_ANY)
@_expect("mbarrier.expect_tx.<s>.b64", "[b32] u32", s=_ANY)
def mbarrier_expect_tx(
    warp: Warp, mask: Mask | None, address: Array, byte_count: Array, *, s: str
) -> None:
    """Expect bytes without arriving."""
    for barrier, lanes in barriers(warp, mask, address, s):
        barrier.expect_tx(int(byte_count[lanes].sum()))


@_wait("mbarrier.test_wait.parity<o>.<s>.b64", "pred = [b32] u32", o=_ACQUIRE, s=_CTA)
@_wait("mbarrier.try_wait.parity<o>.<s>.b64", "pred = [b32] u32", o=_ACQUIRE, s=_CTA)
def mbarrier_wait(warp: Warp, mask: Mask | None, address: Array, parity: Array, *, s: str) -> Any:
    """Whether the phase of a parity has ended. Waits one turn, then answers no: it is allowed to.

    Some kernels ask once without a loop, so it must not wait for good.
    """
    passed = np.zeros(LANES, bool)
    missing = None
    for barrier, lanes in barriers(warp, mask, address, s):
        for value in dict.fromkeys((parity[lanes] & 1).tolist()):
            passed[lanes[parity[lanes] & 1 == value]] = barrier.passed(value)
        if missing is None and not passed[lanes].all():
            first = int(parity[lanes[~passed[lanes]][0]])
            missing = (barrier, f"the end of the phase of parity {first & 1}")
    if missing is None:
        warp.go_on()
        return passed
    warp.block_on(*missing)
    warp.attempted = not warp.attempted
    if warp.attempted:
        return BLOCKED
    warp.poll_failed()
    return passed


@_wait("mbarrier.try_wait.parity<o>.<s>.b64", "pred = [b32] u32 u32", o=_ACQUIRE, s=_CTA)
def mbarrier_try_wait_hint(
    warp: Warp, mask: Mask | None, address: Array, parity: Array, nanoseconds: Array, *, s: str
) -> Any:
    """As above; the time to wait is a hint."""
    return mbarrier_wait(warp, mask, address, parity, s=s)


# 2. Barriers of the CTA and the cluster

_SYNC = ("barrier.sync", "barrier.cta.sync")
_SYNC_ALIGNED = ("bar.sync", "bar.cta.sync", "barrier.sync.aligned", "barrier.cta.sync.aligned")
_ARRIVE = tuple(name.replace("sync", "arrive") for name in _SYNC)
_ARRIVE_ALIGNED = tuple(name.replace("sync", "arrive") for name in _SYNC_ALIGNED)
_bar = functools.partial(instruction, section="9.7.13.1 bar, barrier")


@_bar("<op>", "u32", op=_SYNC_ALIGNED, kind=Kind.WAIT, converged=True)
@_bar("<op>", "u32", op=_SYNC, kind=Kind.WAIT)
def bar_sync(warp: Warp, mask: Mask | None, number: Array) -> Any:
    """Wait for every thread of the CTA that has not exited."""
    return _sync(warp, mask, number, None)


@_bar("<op>", "u32 u32", op=_SYNC_ALIGNED, kind=Kind.WAIT, converged=True)
@_bar("<op>", "u32 u32", op=_SYNC, kind=Kind.WAIT)
def bar_sync_count(warp: Warp, mask: Mask | None, number: Array, threads: Array) -> Any:
    """Wait until ``threads`` threads have arrived at barrier ``number``."""
    return _sync(warp, mask, number, threads)


@_bar("<op>", "u32 u32", op=_ARRIVE_ALIGNED, kind=Kind.EFFECT, converged=True)
@_bar("<op>", "u32 u32", op=_ARRIVE, kind=Kind.EFFECT)
def bar_arrive(warp: Warp, mask: Mask | None, number: Array, threads: Array) -> None:
    """Arrive at barrier ``number`` without waiting."""
    _gather(warp, mask, number, threads)


def _sync(warp: Warp, mask: Mask | None, number: Array, threads: Array | None) -> Any:
    if warp.ticket is None:
        warp.ticket = _gather(warp, mask, number, threads)
    barrier = warp.cta.named_barrier(int(number[0]))
    if not barrier.opened(warp.ticket):
        warp.block_on(barrier, "the opening")
        return BLOCKED
    warp.ticket = None
    warp.go_on()
    return None


def _gather(warp: Warp, mask: Mask | None, number: Array, threads: Array | None) -> int:
    """Arrive at a barrier with all threads of the warp."""
    _require_whole(warp, mask)
    barrier = warp.cta.named_barrier(_same(number, "barrier number"))
    if threads is None:
        lanes = LANES if mask is None else int(mask.sum())
        return barrier.arrive(lanes, warp.cta.threads, everyone=True)
    awaited, most = _same(threads, "thread count"), LANES * len(warp.cta.warps)
    if awaited % LANES or not 0 < awaited <= most:
        raise Trap(f"barrier of {awaited} threads: not a multiple of {LANES} up to {most}")
    return barrier.arrive(LANES, awaited)  # of a named number a warp counts whole


def _same(values: Array, what: str) -> int:
    if not uniform(values):
        raise Trap(f"{what} that differs between lanes")
    return int(values[0])


def _require_whole(warp: Warp, mask: Mask | None) -> None:
    """Raise ``Unsupported`` if lanes are missing: here they would come when it is too late."""
    if mask is not None and (mask != warp.alive).any():
        raise Unsupported(
            "a barrier that some lanes of a warp reach before others",
            Location(lanes=tuple(np.flatnonzero(mask).tolist())),
        )


@instruction("bar.warp.sync", "b32", section="9.7.13.2 bar.warp.sync", kind=Kind.EFFECT)
def bar_warp_sync(warp: Warp, mask: Mask | None, members: Array) -> None:
    """Lanes run in lockstep here, so those that are named have arrived, if they are active."""
    groups(warp, mask, members)


_cluster = functools.partial(instruction, section="9.7.13.3 barrier.cluster")


@_cluster("barrier.cluster.arrive<o>.aligned", o=_CLUSTER_ARRIVE, kind=Kind.EFFECT, converged=True)
@_cluster("barrier.cluster.arrive<o>", o=_CLUSTER_ARRIVE, kind=Kind.EFFECT)
def cluster_arrive(warp: Warp, mask: Mask | None) -> None:
    """Arrive at the barrier of the cluster."""
    _require_whole(warp, mask)
    if warp.cluster_ticket is not None:
        raise ProtocolError("barrier.cluster.arrive twice without a wait between")
    barrier = warp.cta.cluster.barrier
    warp.cluster_ticket = barrier.arrive(LANES if mask is None else int(mask.sum()))


@_cluster("barrier.cluster.wait<o>.aligned", o=("", ".acquire"), kind=Kind.WAIT, converged=True)
@_cluster("barrier.cluster.wait<o>", o=("", ".acquire"), kind=Kind.WAIT)
def cluster_wait(warp: Warp, mask: Mask | None) -> Any:
    """Wait until every thread of the cluster that has not exited has arrived."""
    _require_whole(warp, mask)
    barrier = warp.cta.cluster.barrier
    if warp.cluster_ticket is None:
        raise ProtocolError("barrier.cluster.wait without an arrive before it")
    if not barrier.opened(warp.cluster_ticket):
        warp.block_on(barrier, "the opening")
        return BLOCKED
    warp.cluster_ticket = None
    warp.go_on()
    return None


# 3. Fences: nothing to do while memory is one sequence of accesses

_SCOPES = ("cta", "cluster", "gpu", "sys")
_FENCES = (
    *(f"fence{o}.{s}" for o in ("", ".sc", ".acq_rel", ".acquire", ".release") for s in _SCOPES),
    *(f"fence.proxy.async{s}" for s in ("", ".global", ".shared::cta", ".shared::cluster")),
    "fence.proxy.alias",
    "fence.mbarrier_init.release.cluster",
    *(f"membar.{s}" for s in ("cta", "gl", "sys")),
)


@instruction("<f>", f=_FENCES, section="9.7.13.4 membar, fence", kind=Kind.EFFECT)
def fence(warp: Warp, mask: Mask | None, *, f: str) -> None:
    """Orders accesses; they are in order here. That one is missing is for a check to find."""
    if warp.cta.cluster.observer is not None:
        warp.cta.cluster.observer.fenced(f, mask)
