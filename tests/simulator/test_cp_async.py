"""cp.async: sizes, zero fill, groups, arrival at an mbarrier, and whose fault a late error is."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import OutOfBounds, Trap, Uninitialised
from simulator.policy import POLICIES, Policy
from tests.simulator.ptx_text import address, copy_out, failure, random, run

LATE = Policy("late", 3)

PLACES = (
    "mov.u32 %r1, smem; mad.lo.u32 %r1, %lane, {size}, %r1;"
    + address("x", "%rd1", item_bytes=0)
    + "cvt.u64.u32 %rd2, %lane; mad.lo.u64 %rd1, %rd2, {size}, %rd1;"
)


@pytest.mark.parametrize("form", ["ca 4", "ca 8", "ca 16", "cg 16"])
@pytest.mark.parametrize("policy", POLICIES)
def test_cp_async(form, policy):
    way, size = form.split()
    size = int(size)
    x, out = random((32 * size,), "uint8"), np.zeros(32 * size, np.uint8)
    run(
        PLACES.format(size=size)
        + f"cp.async.{way}.shared.global [%r1], [%rd1], {size}; cp.async.wait_all;"
        + copy_out(8 * size),
        {"x": x, "out": out},
        shared_bytes=32 * size,
        policy=Policy(policy, 1),
    )
    assert np.array_equal(out, x)


@pytest.mark.parametrize("size", [4, 8, 16])
def test_cp_async_fills_with_zeros_from_any_byte_on(size):
    x, out = random((32 * size,), "uint8"), np.zeros(32 * size, np.uint8)
    body = PLACES.format(size=size) + f"min.u32 %r2, %lane, {size};"
    body += f"cp.async.ca.shared.global [%r1], [%rd1], {size}, %r2; cp.async.wait_all;"
    run(body + copy_out(8 * size), {"x": x, "out": out}, shared_bytes=32 * size)
    expected = x.reshape(32, size).copy()
    for lane in range(32):
        expected[lane, min(lane, size) :] = 0
    assert np.array_equal(out.reshape(32, size), expected)


def test_cp_async_of_no_bytes_reads_nothing():
    """Half of the lanes point outside every allocation, and copy nothing from there."""
    x, out = random((16 * 16,), "uint8"), np.zeros(32 * 16, np.uint8)
    body = PLACES.format(size=16) + "setp.lt.u32 %p1, %lane, 16; selp.u32 %r2, {}, %p1;"
    body += "cp.async.cg.shared.global [%r1], [%rd1], 16, %r2; cp.async.wait_all;"
    arguments = {"x": x, "out": out}
    run(body.format("16, 0") + copy_out(128), arguments, shared_bytes=512)
    assert np.array_equal(out[:256], x)
    assert not out[256:].any()
    error = failure(OutOfBounds, body.format("16, 1"), arguments, shared_bytes=512)
    assert "x (uint8[256]): index [256], 1 bytes past the end" in error.message


TWO_GROUPS = (
    PLACES.format(size=16)
    + """add.u64 %rd2, %rd1, 512; add.u32 %r2, %r1, 512;
    cp.async.cg.shared.global [%r1], [%rd1], 16; cp.async.commit_group;
    cp.async.cg.shared.global [%r2], [%rd2], 16; cp.async.commit_group;
    cp.async.wait_group {pending};"""
)


def test_cp_async_groups_are_waited_for_in_order():
    """With completion as late as possible, the wait alone decides what has arrived."""
    x, out = random((1024,), "uint8"), np.zeros(1024, np.uint8)
    options = {"shared_bytes": 1024, "policy": LATE}
    arguments = {"x": x, "out": out}
    run(TWO_GROUPS.format(pending=0) + copy_out(256), arguments, **options)
    assert np.array_equal(out, x)
    run(TWO_GROUPS.format(pending=1) + copy_out(128), arguments, **options)
    late = failure(
        Uninitialised, TWO_GROUPS.format(pending=1) + copy_out(256), arguments, **options
    )
    assert "shared[512]" in late.message
    failure(Uninitialised, TWO_GROUPS.format(pending=2) + copy_out(1), arguments, **options)
    run(TWO_GROUPS.format(pending=2) + copy_out(256), arguments, shared_bytes=1024)


def test_cp_async_without_a_commit_is_in_no_group():
    x, out = random((512,), "uint8"), np.zeros(512, np.uint8)
    body = PLACES.format(size=16) + "cp.async.cg.shared.global [%r1], [%rd1], 16;"
    options = {"shared_bytes": 512, "policy": LATE}
    failure(
        Uninitialised,
        body + "cp.async.wait_group 0;" + copy_out(128),
        {"x": x, "out": out},
        **options,
    )
    run(body + "cp.async.wait_all;" + copy_out(128), {"x": x, "out": out}, **options)


@pytest.mark.parametrize("policy", POLICIES)
def test_cp_async_arrives_at_an_mbarrier(policy):
    """One warp copies, the other reads."""
    x, out = random((512,), "uint8"), np.zeros(512, np.uint8)
    run(
        """mov.u32 %r9, smem; add.u32 %r8, %r9, 512; setp.ne.u32 %p1, %idx, 0; @%p1 bra INIT;
        mbarrier.init.shared.b64 [%r8], 32; INIT: bar.sync 0;
        setp.ge.u32 %p1, %idx, 32; @%p1 bra READER;"""
        + PLACES.format(size=16)
        + """cp.async.cg.shared.global [%r1], [%rd1], 16;
        cp.async.mbarrier.arrive.noinc.shared.b64 [%r8]; ret;
        READER:
        W: mbarrier.try_wait.parity.shared.b64 %p2, [%r8], 0; @!%p2 bra W;"""
        + copy_out(128),
        {"x": x, "out": out},
        threads=64,
        shared_bytes=520,
        policy=Policy(policy, 1),
    )
    assert np.array_equal(out, x)


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("cp.async.ca.shared.global [%r1], [%rd1], 2;", "2 bytes"),
        ("cp.async.cg.shared.global [%r1], [%rd1], 8;", "8 bytes"),
        ("cp.async.ca.shared.global [%r1], [%rd1], 8, 9;", "9 bytes into 8"),
        ("cp.async.ca.shared.global [%r1], [%rd1+4], 8;", "not a multiple of 8"),
        ("cp.async.ca.shared.global [%r1+4], [%rd1], 8;", "not a multiple of 8"),
        ("cp.async.ca.shared.global [%r2], [%rd1], 8;", "CTA rank 1"),
    ],
)
def test_misuse_of_cp_async(statement, word):
    x = random((512,), "uint8")
    body = PLACES.format(size=8) + "mapa.shared::cluster.u32 %r2, %r1, 1;\n" + statement
    error = failure(Trap, body, {"x": x}, shared_bytes=512, grid=2, cluster=2)
    assert word in error.message
    assert error.location.ptx_text == statement


def test_an_error_of_late_work_belongs_to_the_instruction_that_issued_it():
    body = PLACES.format(size=16) + "\ncp.async.cg.shared.global [%r1], [%rd1], 16;\n"
    arguments = {"x": random((128,), "uint8")}
    for policy in (Policy(), LATE):
        error = failure(
            OutOfBounds, body + "bar.sync 0; cp.async.wait_all;", arguments,
            shared_bytes=512, policy=policy, threads=32,
        )  # fmt: skip
        assert error.location.ptx_text == "cp.async.cg.shared.global [%r1], [%rd1], 16;"
        assert (error.kernel, error.cta, error.warp) == ("k", (0, 0, 0), 0)
