"""publication: an mbarrier with each way of making its initialisation visible, and without."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.policy import POLICIES, Policy
from tests.simulator.ptx_text import aligned, copy_out
from tests.simulator.sanitizer.faulty import findings, sentence
from tests.simulator.test_bulk_copy import tensor_map

UNKNOWN = "nothing makes the initialisation of an mbarrier visible to this use of it"
UNFENCED = (
    "a copy of the async proxy signals an mbarrier that was initialised with neither "
    "fence.mbarrier_init nor fence.proxy.async between them"
)
INIT = "@{0} mbarrier.init.shared.b64 [%r1], 1;\n"
FENCE = "fence.mbarrier_init.release.cluster;"


# 1. To the warps of the CTA


def within(between: str, policy: str = "fair") -> list[str]:
    """Warp 0 makes an object, warp 1 arrives; the poll in between lets warp 0 go first."""
    body = (
        "mov.u32 %r1, smem; setp.eq.u32 %p1, %t2, 0; setp.lt.u32 %p2, %t2, 32;\n"
        + INIT.format("%p1")
        + between
        + "\n@%p2 bra END; setp.eq.u32 %p3, %lane, 0;\n"
        "@%p3 mbarrier.arrive.shared.b64 _, [%r1];\nEND: mov.b32 %r9, 0;"
    )
    return findings("publication", body, threads=64, shared_bytes=64, policy=Policy(policy))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_barrier_of_the_cta_publishes(policy):
    assert within("bar.sync 0;", policy) == []


def test_nothing_publishes():
    # Run warp 0 to its end, so that the object is there by chance.
    (one,) = within("", "run_to_block")
    assert sentence(one) == UNKNOWN
    assert "  arrival by warp 1 of cta 0" in one
    assert "after initialisation by warp 0 of cta 0" in one


def test_barriers_that_each_warp_passes_alone_do_not_publish():
    assert len(within("shr.u32 %r4, %t2, 5; bar.sync %r4, 32;", "run_to_block")) == 1


def test_a_fence_alone_does_not_publish():
    assert len(within(FENCE, "run_to_block")) == 1


# 2. To the cluster


def across(before: str, arrive: str, after: str = "") -> list[str]:
    """The CTA of rank 1 arrives at the object of rank 0."""
    body = (
        "mov.u32 %r1, smem; mov.u32 %r2, %cluster_ctarank; setp.eq.u32 %p1, %r2, 0;\n"
        "setp.eq.and.u32 %p4, %t2, 0, %p1;\n"
        + INIT.format("%p4")
        + f"{before}\nbarrier.cluster.arrive{arrive};\n{after}\nbarrier.cluster.wait;\n"
        + "mapa.shared::cluster.u32 %r3, %r1, 0; @%p1 bra END;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];\n"
        "END: barrier.cluster.arrive; barrier.cluster.wait;"
    )
    return findings("publication", body, threads=1, grid=2, cluster=2, shared_bytes=64)


@pytest.mark.parametrize(
    ("before", "arrive"),
    [
        (FENCE, ".relaxed"),
        ("fence.acq_rel.cluster;", ".relaxed"),
        ("fence.sc.cluster;", ".relaxed"),
        ("", ".release"),
        ("", ""),
    ],
)
def test_the_barrier_of_the_cluster_publishes_what_it_releases(before, arrive):
    assert across(before, arrive) == []


@pytest.mark.parametrize("before", ["", "fence.proxy.async;"])
def test_a_relaxed_arrival_publishes_nothing_by_itself(before):
    (one,) = across(before, ".relaxed")
    assert sentence(one) == UNKNOWN
    assert "barrier.cluster" not in one


def test_a_fence_after_the_arrival_is_too_late():
    assert len(across("", ".relaxed", FENCE)) == 1


# 3. To the async proxy


def copied(before: str, after: str = "", *, maker: int = 0) -> list[str]:
    """A bulk load that signals the object; the fence in the warp that makes it or that issues."""
    data = aligned((32,), "uint32")
    data[...] = np.random.default_rng(5).integers(0, 2**32, 32, np.uint32)
    out = np.zeros(32, np.uint32)
    body = (
        f"mov.u32 %r1, smem; setp.eq.u32 %p1, %t2, {32 * maker};\n"
        + INIT.format("%p1")
        + f"{before}\nbar.sync 0;\nsetp.ge.u32 %p2, %t2, 32; @%p2 bra END;\n{after}\n"
        "setp.ne.u32 %p3, %t2, 0; mov.b64 %rd4, map; cvta.param.u64 %rd4, %rd4;\n@%p3 bra WAIT;\n"
        "mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 128;\n"
        "cp.async.bulk.tensor.1d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
        " [%r1+128], [%rd4, {0}], [%r1];\n"
        "WAIT: mbarrier.try_wait.parity.shared.b64 %p4, [%r1], 0; @!%p4 bra WAIT;\n"
        + "add.u32 %r5, %r1, 128;\n"
        + copy_out(32, "%r5")
        + "END: mov.b32 %r9, 0;"
    )
    arguments = {"map": tensor_map(data, (32,)), "data": data, "out": out}
    found = findings("publication", body, arguments, threads=64, shared_bytes=256)
    assert (out == data).all()
    return found


@pytest.mark.parametrize("maker", [0, 1])
@pytest.mark.parametrize("fence", [FENCE, "fence.proxy.async;", "fence.proxy.async.shared::cta;"])
def test_a_fence_of_the_maker_shows_the_object_to_the_async_proxy(fence, maker):
    assert copied(fence, maker=maker) == []


def test_a_proxy_fence_before_the_issue_does_too():
    assert copied("", "fence.proxy.async;", maker=1) == []


@pytest.mark.parametrize(
    ("before", "after", "maker"),
    [
        ("", "", 0),
        ("", "", 1),
        ("fence.acq_rel.cta;", "", 0),
        ("fence.proxy.async.global;", "", 0),
        ("", FENCE, 1),  # orders what its own thread has made, and that is another
    ],
)
def test_without_it_the_copy_is_reported_though_its_data_are_right(before, after, maker):
    (one,) = copied(before, after, maker=maker)
    assert sentence(one) == UNFENCED
    assert "  complete of bytes by the bulk loads to shared[0] of CTA rank 0" in one
    assert f"after initialisation by warp {maker} of cta 0" in one
