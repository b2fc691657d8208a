"""Barriers and fences. Source: PTX ISA 9.7.13, Parallel Synchronization and Communication."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.errors import Trap
from simulator.isa.table import BLOCKED, Kind, instruction
from simulator.machine.barriers import Mbarrier
from simulator.machine.memory_map import OFFSET_MASK
from simulator.machine.warp import LANES, Mask, Warp, uniform

Array = Any
_CTA = ("shared", "shared::cta")
_ANY = (*_CTA, "shared::cluster")
_ORDER = ("", ".release.cta", ".release.cluster", ".relaxed.cta", ".relaxed.cluster")
_NO_TRANSACTION = "9.7.13.15 mbarrier"


def barriers(warp: Warp, mask: Mask | None, address: Array) -> list[tuple[Mbarrier, Array]]:
    """The mbarrier objects that the active lanes address, each with its lanes."""
    active = address if mask is None else address[mask]
    lanes = warp.lanes(mask)
    cluster = warp.cta.cluster
    if uniform(active):
        return [(cluster.mbarrier(int(active[0])), lanes)]
    return [(cluster.mbarrier(int(a)), lanes[active == a]) for a in np.unique(active)]


# 1. mbarrier

@instruction("mbarrier.init.<s>.b64", "[b32] u32", s=_CTA, section="9.7.13.15.9 mbarrier.init", kind=Kind.EFFECT)
def mbarrier_init(warp: Warp, mask: Mask | None, address: Array, count: Array) -> None:
    """Make an mbarrier object that awaits ``count`` arrivals a phase."""
    cluster = warp.cta.cluster
    for lane in warp.lanes(mask):
        where = int(address[lane])
        if where % 8:
            raise Trap(f"mbarrier at {cluster.shared_name(where)} is not aligned to 8 bytes")
        cluster.cta(where).mbarriers[where & OFFSET_MASK] = Mbarrier(
            cluster.shared_name(where), int(count[lane]), cluster.note_event
        )


@instruction("mbarrier.inval.<s>.b64", "[b32]", s=_CTA, section="9.7.13.15.10 mbarrier.inval", kind=Kind.EFFECT)
def mbarrier_inval(warp: Warp, mask: Mask | None, address: Array) -> None:
    """The object is gone; its memory may be used for anything."""
    for barrier, _ in barriers(warp, mask, address):
        where = next(a for a, b in warp.cta.mbarriers.items() if b is barrier)
        del warp.cta.mbarriers[where]


@instruction("mbarrier.arrive<o>.<s>.b64", "b64 = [b32]", o=_ORDER, s=_ANY, section="9.7.13.15.13 mbarrier.arrive", kind=Kind.EFFECT)
def mbarrier_arrive(warp: Warp, mask: Mask | None, address: Array) -> Array:
    """One arrival for each active lane; the result is the phase that was arrived at."""
    return _arrive(warp, mask, address, np.ones(LANES, np.uint32))


@instruction("mbarrier.arrive<o>.<s>.b64", "b64 = [b32] u32", o=_ORDER, s=_ANY, section="9.7.13.15.13 mbarrier.arrive", kind=Kind.EFFECT)
def mbarrier_arrive_count(warp: Warp, mask: Mask | None, address: Array, count: Array) -> Array:
    """``count`` arrivals for each active lane."""
    return _arrive(warp, mask, address, count)


def _arrive(warp: Warp, mask: Mask | None, address: Array, count: Array) -> Array:
    state = np.zeros(LANES, np.uint64)
    for barrier, lanes in barriers(warp, mask, address):
        state[lanes] = barrier.phase
        total = int(count[lanes].sum())
        if total <= barrier.pending:
            barrier.arrive(total)
        else:  # a phase may end between the arrivals of two lanes
            for lane in lanes:
                barrier.arrive(int(count[lane]))
    return state


@instruction("mbarrier.arrive.expect_tx<o>.<s>.b64", "b64 = [b32] u32", o=_ORDER, s=_ANY, section="9.7.13.15.13 mbarrier.arrive", kind=Kind.EFFECT)
def mbarrier_arrive_expect_tx(warp: Warp, mask: Mask | None, address: Array, byte_count: Array) -> Array:
    """Expect bytes, then arrive once, for each active lane."""
    state = np.zeros(LANES, np.uint64)
    for barrier, lanes in barriers(warp, mask, address):
        for lane in lanes:
            state[lane] = barrier.phase
            barrier.expect_tx(int(byte_count[lane]))
            barrier.arrive()
    return state


@instruction("mbarrier.expect_tx.relaxed.<c>.<s>.b64", "[b32] u32", c=("cta", "cluster"), s=_ANY, section="9.7.13.15.11 mbarrier.expect_tx", kind=Kind.EFFECT)
@instruction("mbarrier.expect_tx.<s>.b64", "[b32] u32", s=_ANY, section="9.7.13.15.11 mbarrier.expect_tx", kind=Kind.EFFECT)
def mbarrier_expect_tx(warp: Warp, mask: Mask | None, address: Array, byte_count: Array) -> None:
    """Expect bytes without arriving."""
    for barrier, lanes in barriers(warp, mask, address):
        barrier.expect_tx(int(byte_count[lanes].sum()))


_ACQUIRE = ("", ".acquire.cta", ".acquire.cluster", ".relaxed.cta", ".relaxed.cluster")


@instruction("mbarrier.try_wait.parity<o>.<s>.b64", "pred = [b32] u32", o=_ACQUIRE, s=_CTA, section="9.7.13.15.16 mbarrier.try_wait", kind=Kind.WAIT)
def mbarrier_try_wait(warp: Warp, mask: Mask | None, address: Array, parity: Array) -> Any:
    """Whether the phase of a parity has ended. Waits one turn, then answers no: it is allowed to.

    Some kernels ask once without a loop, so it must not wait for good.
    """
    passed = np.zeros(LANES, bool)
    for barrier, lanes in barriers(warp, mask, address):
        values = parity[lanes]
        for value in values[:1] if uniform(values) else np.unique(values):
            passed[lanes[values == value]] = barrier.passed(int(value))
        warp.waiting = (barrier, f"parity {int(values[0])}")
    if passed[warp.lanes(mask)].all():
        warp.waiting, warp.attempted, warp.polling = None, False, False
        return passed
    if not warp.attempted:
        warp.attempted = True
        return BLOCKED
    warp.attempted, warp.polling = False, True
    return passed


@instruction("mbarrier.try_wait.parity<o>.<s>.b64", "pred = [b32] u32 u32", o=_ACQUIRE, s=_CTA, section="9.7.13.15.16 mbarrier.try_wait", kind=Kind.WAIT)
def mbarrier_try_wait_hint(warp: Warp, mask: Mask | None, address: Array, parity: Array, nanoseconds: Array) -> Any:
    """As above; the time to wait is a hint."""
    return mbarrier_try_wait(warp, mask, address, parity)


@instruction("mbarrier.test_wait.parity<o>.<s>.b64", "pred = [b32] u32", o=_ACQUIRE, s=_CTA, section="9.7.13.15.16 mbarrier.test_wait", kind=Kind.EFFECT)
def mbarrier_test_wait(warp: Warp, mask: Mask | None, address: Array, parity: Array) -> Array:
    """Whether the phase of a parity has ended, at once."""
    passed = np.zeros(LANES, bool)
    for barrier, lanes in barriers(warp, mask, address):
        passed[lanes] = [barrier.passed(int(p)) for p in parity[lanes]]
    warp.polling = not passed[warp.lanes(mask)].all()
    return passed


# 2. Barriers of the CTA and the cluster

@instruction("<op>", "u32", op=("bar.sync", "barrier.sync", "barrier.sync.aligned", "bar.cta.sync", "barrier.cta.sync.aligned"), section="9.7.13.1 bar", kind=Kind.WAIT)
def bar_sync(warp: Warp, mask: Mask | None, number: Array) -> Any:
    """Wait for every thread of the CTA."""
    return _bar(warp, mask, int(number[0]), warp.cta.threads)


@instruction("<op>", "u32 u32", op=("bar.sync", "barrier.sync", "barrier.sync.aligned", "bar.cta.sync", "barrier.cta.sync.aligned"), section="9.7.13.1 bar", kind=Kind.WAIT)
def bar_sync_count(warp: Warp, mask: Mask | None, number: Array, threads: Array) -> Any:
    """Wait until ``threads`` threads have arrived at barrier ``number``."""
    return _bar(warp, mask, int(number[0]), int(threads[0]))


def _bar(warp: Warp, mask: Mask | None, number: int, threads: int) -> Any:
    barrier = warp.cta.named_barrier(number)
    if warp.ticket is None:
        warp.ticket = barrier.arrive(_arriving(warp, mask, threads), threads)
    if not barrier.opened(warp.ticket):
        warp.waiting = (barrier, "the opening")
        return BLOCKED
    warp.ticket, warp.waiting, warp.polling = None, None, False
    return None


@instruction("<op>", "u32 u32", op=("bar.arrive", "barrier.arrive", "barrier.arrive.aligned", "bar.cta.arrive"), section="9.7.13.1 bar", kind=Kind.EFFECT)
def bar_arrive(warp: Warp, mask: Mask | None, number: Array, threads: Array) -> None:
    """Arrive at barrier ``number`` without waiting."""
    barrier = warp.cta.named_barrier(int(number[0]))
    barrier.arrive(_arriving(warp, mask, int(threads[0])), int(threads[0]))


def _arriving(warp: Warp, mask: Mask | None, threads: int) -> int:
    """A warp counts whole: a barrier counts threads in units of the warp size."""
    if threads % LANES and threads != warp.cta.threads:
        raise Trap(f"barrier of {threads} threads: not a multiple of {LANES}")
    return LANES if mask is None else int(mask.sum())


@instruction("bar.warp.sync", "b32", section="9.7.13.2 bar.warp.sync", kind=Kind.EFFECT)
def bar_warp_sync(warp: Warp, mask: Mask | None, members: Array) -> None:
    """Lanes run in lockstep here, so those that are named have arrived."""


@instruction("barrier.cluster.arrive<o><a>", o=("", ".release", ".relaxed"), a=("", ".aligned"), section="9.7.13.4 barrier.cluster", kind=Kind.EFFECT)
def cluster_arrive(warp: Warp, mask: Mask | None) -> None:
    """Arrive at the barrier of the cluster."""
    if warp.cluster_ticket is not None:
        raise Trap("barrier.cluster.arrive twice without a wait between")
    barrier = warp.cta.cluster.barrier
    warp.cluster_ticket = barrier.arrive(LANES if mask is None else int(mask.sum()))


@instruction("barrier.cluster.wait<o><a>", o=("", ".acquire"), a=("", ".aligned"), section="9.7.13.4 barrier.cluster", kind=Kind.WAIT)
def cluster_wait(warp: Warp, mask: Mask | None) -> Any:
    """Wait until every thread of the cluster has arrived."""
    barrier = warp.cta.cluster.barrier
    if warp.cluster_ticket is None:
        raise Trap("barrier.cluster.wait without an arrive before it")
    if not barrier.opened(warp.cluster_ticket):
        warp.waiting = (barrier, "the opening")
        return BLOCKED
    warp.cluster_ticket, warp.waiting, warp.polling = None, None, False
    return None


# 3. Fences: nothing to do while memory is one sequence of accesses

_FENCES = (
    "fence.mbarrier_init.release.cluster", "fence.proxy.async", "fence.proxy.async.global",
    "fence.proxy.async.shared::cta", "fence.proxy.async.shared::cluster", "fence.proxy.alias",
    *(f"fence{o}.{s}" for o in ("", ".sc", ".acq_rel", ".acquire", ".release") for s in ("cta", "cluster", "gpu", "sys")),
    "membar.cta", "membar.gl", "membar.sys",
)  # fmt: skip


@instruction("<fence>", fence=_FENCES, section="9.7.13.3 membar, fence", kind=Kind.EFFECT)
def fence(warp: Warp, mask: Mask | None) -> None:
    """Orders accesses; they are in order here. What is missing when it is absent is a check's matter."""
