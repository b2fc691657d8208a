"""clusterlaunchcontrol: who does which part of a grid, and what the responses say."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import Trap
from simulator.isa import launch_control
from simulator.policy import POLICIES, Policy
from tests.simulator.isa.instructions import Family
from tests.simulator.ptx_text import failure, run

TRY = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes{all}.b128"
QUERY = "clusterlaunchcontrol.query_cancel"
LOOP = """
    mov.u32 %r1, smem; add.u32 %r2, %r1, 16; setp.ne.u32 %p1, %lane, 0;
    mov.u32 %r10, %cluster_ctarank; mov.u32 %r11, %ctaid.x; mov.u32 %r20, %ctaid.x;
    @%p1 bra READY; mbarrier.init.shared.b64 [%r2], 1; READY:
    barrier.cluster.arrive; barrier.cluster.wait;
    mov.u32 %r3, 0; mov.u32 %r4, 0;
    WORK:
    ld.param.u64 %rd1, [out]; cvt.u64.u32 %rd2, %r11; mad.lo.u64 %rd3, %rd2, 8, %rd1;
    add.u32 %r21, %r20, 1;
    st.global.u32 [%rd3], %r21; st.global.u32 [%rd3+4], %r4;
    @%p1 bra ASKED; mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r2], 16; ASKED:
    barrier.cluster.arrive; barrier.cluster.wait;
    setp.ne.u32 %p2, %r10, 0; or.pred %p3, %p1, %p2;
    @%p3 bra AWAIT; TRY [%r1], [%r2]; AWAIT:
    mbarrier.try_wait.parity.shared.b64 %p4, [%r2], %r3; @!%p4 bra AWAIT;
    ld.shared.v2.u64 {%rd4, %rd5}, [%r1];
    { .reg .b128 %q; mov.b128 %q, {%rd4, %rd5};
      QUERY.is_canceled.pred.b128 %p5, %q;
      QUERY.get_first_ctaid::x.b32.b128 %r12, %q; QUERY.get_first_ctaid::y.b32.b128 %r13, %q;
      QUERY.get_first_ctaid::z.b32.b128 %r14, %q;
      QUERY.get_first_ctaid.v4.b32.b128 {%r15, %r16, %r17, %r18}, %q; }
    xor.b32 %r3, %r3, 1; add.u32 %r4, %r4, 1;
    or.b32 %r13, %r13, %r14; or.b32 %r13, %r13, %r16; or.b32 %r13, %r13, %r17;
    sub.u32 %r15, %r15, %r12; or.b32 %r13, %r13, %r15;
    setp.ne.u32 %p6, %r13, 0; @%p6 trap;
    add.u32 %r11, %r12, %r10; @%p5 bra WORK;
"""


def text(cluster: int) -> str:
    request = TRY.format(all=".multicast::cluster::all" if cluster > 1 else "")
    return LOOP.replace("TRY [", f"{request} [").replace("QUERY", QUERY)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cluster", [1, 2])
def test_the_first_cluster_takes_over_the_others_in_order(cluster, policy):
    """Each CTA writes down who did its part, and in which turn."""
    out = np.zeros((6, 2), np.uint32)
    run(
        text(cluster), {"out": out}, grid=6, cluster=cluster, shared_bytes=32, policy=Policy(policy)
    )
    done_by, turn = out.T.tolist()
    assert done_by == [1 + i % cluster for i in range(6)]
    assert turn == [i // cluster for i in range(6)]


def test_a_response_to_another_cta_is_refused():
    request = TRY.format(all="")
    body = f"mov.u32 %r1, smem; mapa.shared::cluster.u32 %r2, %r1, 1; {request} [%r2], [%r1];"
    assert "CTA rank 1" in str(failure(Trap, body, {}, grid=2, cluster=2, shared_bytes=32))


# What the queries read, lane by lane, from a response of any bits

FAMILY = Family(launch_control)


@FAMILY.oracle(f"{QUERY}.is_canceled.pred.b128", "pred = b128")
def is_canceled(response):
    return response[1] >> 32 != 0


@FAMILY.oracle(f"{QUERY}.get_first_ctaid::<d>.b32.b128", "b32 = b128", d=("x", "y", "z"))
def first_ctaid(response, *, d):
    return {"x": response[0], "y": response[0] >> 32, "z": response[1]}[d] & 0xFFFFFFFF


@FAMILY.oracle(f"{QUERY}.get_first_ctaid.v4.b32.b128", "(b32*4) = b128")
def first_ctaid_vector(response):
    return tuple(half >> shift & 0xFFFFFFFF for half in response for shift in (0, 32))


@pytest.mark.parametrize("template", [name for name in FAMILY.templates if name.startswith(QUERY)])
def test_a_query_reads_its_part_of_the_response(template):
    FAMILY.check(template)
