"""global_races: warps, a bulk store and clusters, with and without what orders them."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.policy import POLICIES, Policy
from tests.simulator.ptx_text import address, aligned
from tests.simulator.sanitizer.faulty import findings, sentence
from tests.simulator.test_bulk_copy import tensor_map

OTHER = "xor.b32 %r2, %t2, 32;" + address("out", index="%r2")
MINE = address("out", index="%t2")


def found(body: str, **options) -> list[str]:
    out = np.zeros(64, np.uint32)
    return findings("global_races", body, {"out": out}, threads=64, **options)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_barrier_orders_what_warps_exchange(policy):
    body = f"{MINE} st.global.b32 [%at0], %t2; bar.sync 0; {OTHER} ld.global.b32 %r3, [%at0];"
    assert found(body, policy=Policy(policy)) == []


def test_an_exchange_without_a_barrier_is_a_race():
    first, *_ = found(f"{MINE} st.global.b32 [%at0], %t2; {OTHER} ld.global.b32 %r3, [%at0];")
    assert sentence(first) == "nothing orders two accesses to global memory"
    assert "warp 0 of cta 0" in first
    assert "warp 1 of cta 0" in first


def test_bytes_side_by_side_are_no_race():
    body = address("out", item_bytes=1, index="%t2") + "cvt.u16.u32 %h1, %t2;"
    assert found(body + "st.global.b8 [%at0], %h1;") == []


def stored(wait: str) -> list[str]:
    """A box is stored by a bulk copy, and a word of it read again."""
    out = aligned((32,), "uint32")
    body = f"""
        mov.u32 %r1, smem; shl.b32 %r3, %lane, 2; add.u32 %r4, %r1, %r3; st.shared.b32 [%r4], %lane;
        mov.b64 %rd1, map; ld.param.u64 %rd2, [out]; setp.ne.u32 %p1, %lane, 0; @%p1 bra END;
        cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%rd1, {{0}}], [%r1];
        cp.async.bulk.commit_group; {wait}
        ld.global.b32 %r5, [%rd2];
        END: mov.b32 %r6, 0;
    """
    arguments = {"map": tensor_map(out, (32,)), "out": out}
    return findings("global_races", body, arguments, shared_bytes=128)


def test_a_bulk_store_has_written_when_its_group_was_waited_for():
    assert stored("cp.async.bulk.wait_group 0;") == []
    for wait in ("", "cp.async.bulk.wait_group.read 0;", "cp.async.bulk.wait_group 1;"):
        (one,) = stored(wait)
        assert "after write by bulk stores of warp 0" in one


def clusters(write: str, read: str) -> list[str]:
    """CTA 0 writes a word, which CTA 1 reads; each is a cluster. Word 8 is a flag."""
    body = f"""
        ld.param.u64 %rd1, [out]; setp.ne.u32 %p1, %t0, 0; @%p1 bra READ;
        {write} bra END;
        READ: {read}
        END: mov.b32 %r6, 0;
    """
    return findings("global_races", body, {"out": np.zeros(64, np.uint32)}, grid=2, threads=1)


WRITE, READ = "st.global.b32 [%rd1], 5;", "ld.global.b32 %r5, [%rd1];"


def test_clusters_touch_the_same_only_through_a_flag():
    (one,) = clusters(WRITE, READ)
    assert sentence(one).startswith("two clusters of a grid access the same global memory")
    assert "  read by warp 0 of cta 0 of cluster 1" in one
    assert "after write by warp 0 of cta 0 of cluster 0" in one
    assert clusters(WRITE, "ld.global.b32 %r5, [%rd1+4];") == []
    assert clusters(READ, READ) == []


@pytest.mark.parametrize(
    ("tell", "ask"),
    [
        ("st.release.gpu.global.b32 [%rd1+32], 1;", "ld.acquire.gpu.global.b32 %r7, [%rd1+32];"),
        (*["atom.acq_rel.gpu.global.add.u32 %r7, [%rd1+32], 1;"] * 2,),
    ],
)
def test_a_flag_orders_clusters(tell, ask):
    assert clusters(WRITE + tell, ask + READ) == []
    assert len(clusters(tell + WRITE, READ + ask)) == 1
