"""tensor_order: a transfer between two warps through TMEM, with each wait and fence left out."""

from __future__ import annotations

import pytest

from simulator.policy import POLICIES, Policy
from tests.simulator.sanitizer.faulty import findings, sentence

STEPS = {
    "stored": "tcgen05.wait::st.sync.aligned;",
    "before": "tcgen05.fence::before_thread_sync;",
    "after": "tcgen05.fence::after_thread_sync;",
    "loaded": "tcgen05.wait::ld.sync.aligned;",
    "told": "tcgen05.fence::before_thread_sync;",
}


def transfer(without: str = "") -> str:
    """Warp 0 writes to TMEM, warp 4 reads it, and warp 0 frees it."""
    step = {name: "" if name == without else text for name, text in STEPS.items()}
    return f"""
        mov.u32 %r1, smem;
        setp.ge.u32 %p1, %t2, 32; setp.lt.u32 %p2, %t2, 128;
        @%p1 bra MADE;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;
        MADE: bar.sync 0;
        ld.shared.b32 %r2, [%r1];
        @%p1 bra READY;
        tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {{%t2}};
        {step["stored"]}
        {step["before"]}
        READY: bar.sync 0;
        @%p2 bra READ;
        {step["after"]}
        tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r3}}, [%r2];
        {step["loaded"]}
        {step["told"]}
        READ: bar.sync 0;
        @%p1 bra END;
        tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32;
        END: mov.b32 %r4, 0;
    """


def found(without: str = "", policy: str = "fair") -> list[str]:
    options = {"threads": 160, "shared_bytes": 64, "policy": Policy(policy)}
    return findings("tensor_order", transfer(without), **options)


@pytest.mark.parametrize("policy", POLICIES)
def test_with_all_waits_and_fences_there_is_no_finding(policy):
    assert found(policy=policy) == []


@pytest.mark.parametrize("without", STEPS)
def test_each_of_them_is_needed(without):
    names = found(without)
    assert names
    assert {sentence(one) for one in names} == {
        "no wait or fence of tcgen05 orders two accesses to TMEM"
    }


def test_a_load_is_not_done_before_its_wait():
    (one,) = found("loaded")
    assert "write that frees it by warp 0 of cta 0" in one
    assert "read by tcgen05.ld of warp 4 of cta 0" in one
