"""barrier.cluster: what it orders, whom it does not await, how it is misused."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import Deadlock, ProtocolError
from simulator.policy import POLICIES, Policy
from tests.simulator.ptx_text import failure, run, store

CLUSTER = {"threads": 64, "grid": 2, "cluster": 2}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_cluster_barrier_orders_its_ctas(policy):
    out = np.zeros(128, np.uint32)
    run(
        """mov.u32 %r1, smem; mov.u32 %r2, %tid.x; shl.b32 %r3, %r2, 2; add.u32 %r1, %r1, %r3;
        mov.u32 %r4, %cluster_ctarank; xor.b32 %r5, %r4, 1;
        mapa.shared::cluster.u32 %r6, %r1, %r5;
        st.shared::cluster.u32 [%r6], %idx;
        barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
        ld.shared.u32 %r7, [%r1];"""
        + store("%r7"),
        {"out": out},
        shared_bytes=256,
        policy=Policy(policy),
        **CLUSTER,
    )
    assert np.array_equal(out, np.arange(128) ^ 64)


def test_the_cluster_barrier_does_not_await_threads_that_exited():
    body = """mov.u32 %r1, %cluster_ctarank; setp.eq.u32 %p1, %r1, 1; @%p1 ret;
    setp.lt.u32 %p1, %idx, 32; @%p1 ret;
    barrier.cluster.arrive; barrier.cluster.wait; barrier.cluster.arrive; barrier.cluster.wait;"""
    for policy in POLICIES:
        run(body, policy=Policy(policy), **CLUSTER)


def test_who_arrived_and_exited_does_not_stand_for_another():
    """CTA 1 arrives and leaves; CTA 0 may not pass before its second warp has written."""
    out = np.zeros(64, np.uint32)
    body = (
        """mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, smem;
        setp.eq.u32 %p1, %r1, 1; @%p1 bra FIRST;
        setp.lt.u32 %p2, %idx, 32; @%p2 bra WAIT;
        mov.u32 %r3, 0;
        LOOP: add.u32 %r3, %r3, 1; setp.lt.u32 %p3, %r3, 100; @%p3 bra LOOP;
        st.shared.u32 [%r2], %r3;
        WAIT: barrier.cluster.arrive; barrier.cluster.wait;
        ld.shared.u32 %r4, [%r2];"""
        + store("%r4")
        + "ret; FIRST: barrier.cluster.arrive;"
    )
    run(body, {"out": out}, shared_bytes=4, **CLUSTER)
    assert out.tolist() == [100] * 64


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("barrier.cluster.wait;", "without an arrive"),
        ("barrier.cluster.arrive;\nbarrier.cluster.arrive;", "twice"),
    ],
)
def test_the_cluster_barrier_is_arrived_at_and_waited_for_in_turn(body, word):
    error = failure(ProtocolError, body, **CLUSTER)
    assert word in error.message
    assert error.location.ptx_text == body.splitlines()[-1]


def test_a_cluster_barrier_that_somebody_never_reaches():
    """In CTA 1 the two warps wait for each other at different barriers."""
    body = """mov.u32 %r1, %cluster_ctarank; setp.eq.u32 %p1, %r1, 1; @%p1 bra HANG;
    barrier.cluster.arrive; barrier.cluster.wait; ret;
    HANG: shr.u32 %r2, %t2, 5; add.u32 %r2, %r2, 3; bar.sync %r2, 64;"""
    message = failure(Deadlock, body, **CLUSTER).message
    assert "the cluster barrier (64 of 128 threads have arrived)" in message
    assert "barrier 3 (32 of 64 threads have arrived)" in message
    assert "barrier 4 (32 of 64 threads have arrived)" in message
