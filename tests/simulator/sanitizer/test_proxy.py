"""proxy: a bulk store of what threads wrote, with the fence in each place it can have."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.checks import Checks
from simulator.errors import CheckFailed
from simulator.policy import POLICIES, Policy
from tests.simulator.ptx_text import aligned, run
from tests.simulator.test_bulk_copy import tensor_map

FENCE = "fence.proxy.async.shared::cta;"
WRITER = "setp.lt.u32 %p1, %t2, 32;"
"""The second warp stores; the first one issues the bulk store."""


def found(
    *, early: str = "", after: str = "", between: str = "", before: str = "", policy: str = "fair"
) -> list[str]:
    """What the check says of a kernel with these statements, whose output is right in any case.

    ``early`` stands before the store and ``after`` behind it, in the warp that stores; ``between``
    in the other warp before the barrier that orders the two, ``before`` behind it.
    """
    out = aligned((32,), "uint32")
    values = np.random.default_rng(3).integers(1, 2**20, 64, np.uint32)
    body = f"""
        {WRITER} mov.b32 %r1, smem; ld.param.u64 %rd1, [values];
        cvt.u64.u32 %rd2, %t2; mad.lo.u64 %rd1, %rd2, 4, %rd1;
        @%p1 bra OTHER;
        ld.global.b32 %r2, [%rd1];
        shl.b32 %r3, %lane, 2; add.u32 %r3, %r3, %r1;
        {early}
        st.shared.b32 [%r3], %r2;
        {after}
        bra JOIN;
        OTHER: {between}
        JOIN: bar.sync 0;
        setp.ne.u32 %p2, %t2, 0; @%p2 bra END;
        {before}
        mov.b64 %rd4, map; cvta.param.u64 %rd4, %rd4;
        cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%rd4, {{0}}], [%r1];
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        END: mov.b32 %r9, 0;
    """
    arguments = {"values": values, "map": tensor_map(out, (32,)), "out": out}
    checks = Checks(proxy=True, on_finding="collect")
    result = run(
        body, arguments, threads=64, shared_bytes=1024, checks=checks, policy=Policy(policy)
    )
    assert (out == values[32:]).all()
    return [str(finding) for finding in result.findings]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("place", ["after", "before"])
@pytest.mark.parametrize("fence", [FENCE, "fence.proxy.async;"])
def test_a_fence_after_the_store_or_before_the_issue_will_do(place, fence, policy):
    assert found(**{place: fence}, policy=policy) == []


@pytest.mark.parametrize("policy", POLICIES)
def test_a_missing_fence_is_found_though_the_output_is_right(policy):
    (text,) = found(policy=policy)
    assert "cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group" in text
    assert "st.shared.b32 [%r3], %r2;" in text


@pytest.mark.parametrize(
    "wrong",
    [
        {"early": FENCE},
        {"between": FENCE},
        {"after": "fence.proxy.async.global;"},
        {"after": "fence.acq_rel.cta;"},
        {"after": "fence.proxy.alias;"},
    ],
    ids=["before the store", "in another warp", "of global memory", "of one proxy", "alias"],
)
def test_a_fence_that_does_not_order_store_and_read(wrong):
    # Run the first warp until it waits, so that its fence is not after the store by chance.
    assert len(found(**wrong, policy="run_to_block")) == 1


def test_the_message():
    (text,) = found()
    first, later, earlier = text.splitlines()
    assert first == (
        "proxy: the async proxy reads shared memory that a generic store wrote, with no "
        "fence.proxy.async between them"
    )
    assert later.startswith(
        "  read by the bulk stores of warp 0 of CTA rank 0 (kernel k, PTX line "
    )
    assert "cta (0,0,0), warp 0, lane 0: cp.async.bulk.tensor.1d.global" in later
    assert earlier.startswith("  after write by warp 1 of cta (0, 0, 0) (kernel k, PTX line ")


def test_without_a_collector_it_is_an_error():
    out = aligned((32,), "uint32")
    body = """
        mov.b32 %r1, smem; shl.b32 %r2, %lane, 2; add.u32 %r2, %r2, %r1;
        st.shared.b32 [%r2], %lane; bar.sync 0; setp.ne.u32 %p2, %t2, 0; @%p2 bra END;
        mov.b64 %rd4, map; cvta.param.u64 %rd4, %rd4;
        cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%rd4, {0}], [%r1];
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; END: mov.b32 %r9, 0;
    """
    arguments = {"map": tensor_map(out, (32,)), "out": out}
    with pytest.raises(CheckFailed, match=r"no fence\.proxy\.async between them"):
        run(body, arguments, shared_bytes=1024, checks=Checks.of("proxy"))
