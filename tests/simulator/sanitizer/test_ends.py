"""races: whatever uses memory that is freed, or whose CTA exits, must have been waited for."""

from __future__ import annotations

import pytest

from simulator.policy import POLICIES
from simulator.policy import Policy as Schedule
from tests.simulator.sanitizer.faulty import findings, sentence

MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


def remote(statement: str, last: str, policy: str) -> list[str]:
    """CTA 1 of two does something to the shared memory of CTA 0."""
    body = f"""
        mov.u32 %r1, smem; mov.u32 %r9, %cluster_ctarank; mov.b32 %r8, 1;
        st.shared.b32 [%r1+64], 0;
        setp.ne.u32 %p2, %t2, 0;
        @!%p2 mbarrier.init.shared.b64 [%r1], %r8;
        @!%p2 fence.mbarrier_init.release.cluster;
        {MEET}
        setp.eq.u32 %p1, %r9, 0; @%p1 bra END;
        mapa.shared::cluster.u32 %r2, %r1, 0;
        @%p2 bra END;
        {statement}
        END: {last}
    """
    return findings("races", body, grid=2, cluster=2, shared_bytes=128, policy=Schedule(policy))


STORE = "st.shared::cluster.b32 [%r2+64], %r8;"
ARRIVE = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2];"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("statement", [STORE, ARRIVE])
def test_a_cluster_barrier_at_the_end_orders_it(statement, policy):
    assert remote(statement, MEET, policy) == []


@pytest.mark.parametrize("policy", ["fair", "run_to_block"])
@pytest.mark.parametrize(("statement", "what"), [(STORE, "shared memory"), (ARRIVE, "an mbarrier")])
def test_without_one_the_cta_may_have_exited(statement, what, policy):
    (one,) = remote(statement, "", policy)
    assert sentence(one) == f"nothing orders two accesses to {what}"
    assert "write that ends it by exit of cta 0" in one
    assert "by warp 0 of cta 1" in one


def columns(store_wait: str, last: str) -> str:
    """Warp 4 reads columns that warp 0 allocates, writes and frees."""
    return f"""
        mov.u32 %r1, smem;
        setp.ge.u32 %p1, %t2, 32; setp.lt.u32 %p2, %t2, 128;
        @%p1 bra MADE;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;
        MADE: bar.sync 0;
        ld.shared.b32 %r2, [%r1];
        @%p1 bra READY;
        tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {{%t2}};
        {store_wait}
        READY: bar.sync 0;
        @%p2 bra READ;
        tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r3}}, [%r2];
        READ: {last}
        @%p1 bra END;
        tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32;
        END: mov.b32 %r4, 0;
    """


def found(store_wait: str, last: str) -> list[str]:
    return findings("races", columns(store_wait, last), threads=160, shared_bytes=64)


def test_columns_are_freed_after_their_last_use():
    assert found("tcgen05.wait::st.sync.aligned;", "bar.sync 0;") == []


def test_columns_are_freed_while_another_warp_may_read_them():
    (one,) = found("tcgen05.wait::st.sync.aligned;", "")
    assert sentence(one) == "nothing orders two accesses to TMEM"
    assert "write that frees it by warp 0" in one
    assert "read by warp 4" in one


def test_a_store_that_nobody_waited_for():
    reads, frees = found("", "bar.sync 0;")
    assert "read by warp 4" in reads
    assert "write by tcgen05.st of warp 0" in reads
    assert "write that frees it by warp 0" in frees
