"""st.async and red.async: what arrives in the other CTA, and that its mbarrier says when."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import Deadlock, Trap
from simulator.policy import Policy
from tests.simulator.ptx_text import copy_out, failure, random, run

START = """
    mov.u32 %r1, smem; add.u32 %r2, %r1, 1024; mov.u32 %r3, %cluster_ctarank;
    mad.lo.u32 %r7, %lane, 4, %r1; st.shared.u32 [%r7], 1000;
    setp.eq.u32 %p1, %t2, 0;
    @%p1 mbarrier.init.shared.b64 [%r2], 1;
    @%p1 mbarrier.expect_tx.shared.b64 [%r2], {bytes};
    @%p1 mbarrier.arrive.shared.b64 %rd9, [%r2];
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    xor.b32 %r4, %r3, 1;
    mapa.shared::cluster.u32 %r5, %r1, %r4; mapa.shared::cluster.u32 %r6, %r2, %r4;
    mad.lo.u32 %r8, %r3, 100, %lane;
"""
WAIT = """
    TRY: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra TRY;
    setp.ne.u32 %p3, %r3, 0; @%p3 bra DONE;
"""
END = "DONE: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
PAIR = {"grid": 2, "cluster": 2, "shared_bytes": 1040}
STORE = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"


@pytest.mark.parametrize("policy", ["fair", "late"])
def test_a_store_arrives_with_its_bytes(policy):
    """Rank 0 finds what rank 1 sent, however late it comes."""
    out = np.zeros(32, np.uint32)
    body = (
        START.format(bytes=128) + f"mad.lo.u32 %r9, %lane, 4, %r5; {STORE}.b32 [%r9], %r8, [%r6];"
    )
    run(body + WAIT + copy_out(32) + END, {"out": out}, policy=Policy(policy), **PAIR)
    assert out.tolist() == [100 + lane for lane in range(32)]


def test_vectors_and_wide_words():
    out, values = np.zeros(128, np.uint32), random((32, 4), "u4")
    body = (
        START.format(bytes=512)
        + f"""mul.wide.u32 %rd1, %lane, 16; ld.param.u64 %rd2, [x]; add.u64 %rd2, %rd2, %rd1;
        ld.global.v2.u64 {{%rd3, %rd4}}, [%rd2]; mad.lo.u32 %r9, %lane, 16, %r5;
        {STORE}.v2.b64 [%r9], {{%rd3, %rd4}}, [%r6];"""
    )
    run(body + WAIT + copy_out(128) + END, {"out": out, "x": values}, **PAIR)
    assert np.array_equal(out, values.reshape(-1))


@pytest.mark.parametrize(
    ("op", "t", "expected"),
    [
        ("add", "u32", 1000 + sum(range(100, 132))),
        ("min", "s32", 100),
        ("max", "u32", 1000),
        ("xor", "b32", int(np.bitwise_xor.reduce([1000, *range(100, 132)]))),
    ],
)
def test_reductions(op, t, expected):
    out = np.zeros(32, np.uint32)
    name = f"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{op}.{t}"
    body = START.format(bytes=128) + f"{name} [%r5], %r8, [%r6];"
    run(body + WAIT + copy_out(32) + END, {"out": out}, **PAIR)
    assert out[0] == expected
    assert (out[1:] == 1000).all()


def test_without_its_bytes_the_barrier_stays_closed():
    """One lane too few: the phase must not end."""
    body = (
        START.format(bytes=128)
        + f"""
        setp.ne.u32 %p5, %lane, 31; mad.lo.u32 %r9, %lane, 4, %r5;
        @%p5 {STORE}.b32 [%r9], %r8, [%r6];"""
    )
    failure(Deadlock, body + WAIT + END, **PAIR)


def test_data_and_barrier_must_be_in_one_cta():
    body = START.format(bytes=0) + f"{STORE}.b32 [%r5], %r8, [%r2];"
    assert "in two CTAs" in failure(Trap, body + END, **PAIR).message
