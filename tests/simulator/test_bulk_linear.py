"""Bulk copies of consecutive bytes between all memories, and bulk reductions, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.checks import Checks
from simulator.errors import CheckFailed, OutOfBounds, Trap
from simulator.policy import Policy
from tests.simulator.ptx_text import aligned, copy_out, failure, random, run
from tests.simulator.test_bulk_copy import tensor_map

POLICIES = [Policy("fair"), Policy("late"), Policy("random", 3)]
BYTES = 256
TX = "mbarrier::complete_tx::bytes"

BEGIN = """
    mov.u32 %r1, smem; add.u32 %r2, %r1, 1024; setp.eq.u32 %p1, %t2, 0;
    @%p1 mbarrier.init.shared.b64 [%r2], 1; bar.sync 0;
    @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r2], {bytes};
    ld.param.u64 %rd1, [x];
"""
WAIT = "TRY: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra TRY;"
STORE = """
    mad.lo.u32 %r3, %lane, 8, %r1; ld.param.u64 %rd3, [x]; mul.wide.u32 %rd4, %lane, 8;
    add.u64 %rd3, %rd3, %rd4; ld.global.u64 %rd5, [%rd3]; st.shared.u64 [%r3], %rd5;
    {fence} bar.sync 0; ld.param.u64 %rd6, [out];
    @%p1 {form} [%rd6], [%r1], {bytes};
    @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0;
"""
FENCE = "fence.proxy.async.shared::cta;"


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_global_to_shared(policy):
    data, out = random((BYTES // 4,), "u4"), np.zeros(BYTES // 4, np.uint32)
    body = BEGIN.format(bytes=BYTES)
    body += f"@%p1 cp.async.bulk.shared::cluster.global.{TX} [%r1], [%rd1], {BYTES}, [%r2];"
    run(body + WAIT + copy_out(BYTES // 4), {"x": data, "out": out}, shared_bytes=1040,
        policy=policy)  # fmt: skip
    assert np.array_equal(out, data)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_shared_to_global(policy):
    data, out = random((BYTES // 4,), "u4"), aligned(BYTES // 4, "u4")
    body = "mov.u32 %r1, smem; setp.eq.u32 %p1, %t2, 0;"
    form = "cp.async.bulk.global.shared::cta.bulk_group"
    body += STORE.format(form=form, bytes=BYTES, fence=FENCE)
    run(body, {"x": data, "out": out}, shared_bytes=BYTES, policy=policy)
    assert np.array_equal(out, data)


def test_a_store_without_a_proxy_fence_is_found():
    data, out = random((BYTES // 4,), "u4"), aligned(BYTES // 4, "u4")
    form = "cp.async.bulk.global.shared::cta.bulk_group"
    for fence in (FENCE, ""):
        body = "mov.u32 %r1, smem; setp.eq.u32 %p1, %t2, 0;"
        body += STORE.format(form=form, bytes=BYTES, fence=fence)
        given = {"shared_bytes": BYTES, "checks": Checks(proxy=True)}
        if fence:
            run(body, {"x": data, "out": out}, **given)
        else:
            failure(CheckFailed, body, {"x": data, "out": out}, **given)


@pytest.mark.parametrize("multicast", [False, True])
def test_to_other_ctas_of_a_cluster(multicast):
    """Each rank sends the other its shared bytes, or rank 1 loads the same bytes for both."""
    data, out = random((2 * BYTES // 4,), "u4"), np.zeros(BYTES // 4, np.uint32)
    body = (
        BEGIN.format(bytes=BYTES)
        + """mov.u32 %r4, %cluster_ctarank; setp.eq.u32 %p3, %r4, 1; and.pred %p4, %p1, %p3;
        xor.b32 %r9, %r4, 1;
        mapa.shared::cluster.u32 %r5, %r1, %r9; mapa.shared::cluster.u32 %r6, %r2, %r9;
        add.u32 %r7, %r1, 512; mad.lo.u32 %r8, %lane, 8, %r7; mul.wide.u32 %rd4, %lane, 8;
        add.u64 %rd3, %rd1, %rd4; ld.global.u64 %rd5, [%rd3]; st.shared.u64 [%r8], %rd5;
        fence.proxy.async.shared::cta;
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        """
    )
    if multicast:
        form = f"cp.async.bulk.shared::cluster.global.{TX}.multicast::cluster"
        body += f"mov.b16 %h1, 3; @%p4 {form} [%r1], [%rd1], {BYTES}, [%r2], %h1;"
    else:
        form = f"cp.async.bulk.shared::cluster.shared::cta.{TX}"
        body += f"@%p1 {form} [%r5], [%r7], {BYTES}, [%r6];"
    body += WAIT + "@%p3 bra DONE;" + copy_out(BYTES // 4)
    body += "DONE: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    run(body, {"x": data, "out": out}, grid=2, cluster=2, shared_bytes=1040)
    assert np.array_equal(out, data[: BYTES // 4])


REDUCTIONS = [
    ("add.u32", "u4", np.add),
    ("min.s64", "i8", np.minimum),
    ("xor.b32", "u4", np.bitwise_xor),
    ("add.f32", "f4", np.add),
    ("add.noftz.f16", "f2", np.add),
    ("max.f16", "f2", np.maximum),
]


def numbers(count: int, dtype: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    array = aligned(count, dtype)
    if dtype[0] == "f":
        array[...] = rng.standard_normal(count)
    else:
        array[...] = random((count, seed + 1), dtype)[:, 0]
    return array


@pytest.mark.parametrize(("form", "dtype", "function"), REDUCTIONS)
def test_reductions_into_global_memory(form, dtype, function):
    count = BYTES // np.dtype(dtype).itemsize
    data, out = numbers(count, dtype, 1), numbers(count, dtype, 2)
    expected = function(out, data)
    body = "mov.u32 %r1, smem; setp.eq.u32 %p1, %t2, 0;"
    name = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{form}"
    body += STORE.format(form=name, bytes=BYTES, fence=FENCE)
    run(body, {"x": data, "out": out}, shared_bytes=BYTES)
    assert np.array_equal(out, expected)


def test_a_reduction_within_a_cluster():
    data, out = random((64,), "u4"), np.zeros(64, np.uint32)
    form = f"cp.reduce.async.bulk.shared::cluster.shared::cta.{TX}.add.u32"
    body = (
        BEGIN.format(bytes=BYTES)
        + f"""mad.lo.u32 %r8, %lane, 8, %r1; mul.wide.u32 %rd4, %lane, 8;
        add.u64 %rd3, %rd1, %rd4; ld.global.u64 %rd5, [%rd3];
        st.shared.u64 [%r8], %rd5; st.shared.u64 [%r8+512], %rd5;
        fence.proxy.async.shared::cta; bar.sync 0; add.u32 %r7, %r1, 512;
        @%p1 {form} [%r1], [%r7], {BYTES}, [%r2];
        """
    )
    run(body + WAIT + copy_out(64), {"x": data, "out": out}, shared_bytes=1040)
    assert np.array_equal(out, data + data)


def test_a_tensor_reduction_drops_what_leaves_the_tensor():
    tensor, data = numbers(5 * 8, "f4", 3).reshape(5, 8), numbers(64, "f4", 4)
    whole = aligned((5, 8), "f4")
    whole[...] = tensor
    expected = tensor.copy()
    expected[3:, :] += data[:32].reshape(4, 8)[:2]
    body = "mov.u32 %r1, smem; setp.eq.u32 %p1, %t2, 0;" + STORE.replace(
        "[%rd6], [%r1], {bytes}", "[%rd7, {{0, 3}}], [%r1]"
    ).replace("ld.param.u64 %rd6, [out];", "mov.u64 %rd7, map;").format(
        form="cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group", fence=FENCE
    )
    arguments = {"map": tensor_map(whole, (8, 4)), "x": data, "out": whole}
    run(body, arguments, shared_bytes=BYTES)
    assert np.array_equal(whole, expected)


def test_what_is_wrong():
    data = random((64,), "u4")
    body = BEGIN.format(bytes=BYTES)
    load = f"@%p1 cp.async.bulk.shared::cluster.global.{TX} "
    for rest, kind in (
        (f"[%r1], [%rd1], {BYTES + 16}, [%r2];", OutOfBounds),
        ("[%r1], [%rd1], 40, [%r2];", Trap),
        (f"[%r1+8], [%rd1], {BYTES}, [%r2];", Trap),
    ):
        failure(kind, body + load + rest, {"x": data}, shared_bytes=1040)
