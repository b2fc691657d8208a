"""mbarrier objects and the barriers of a CTA: what they wait for and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import Deadlock, OutOfBounds, ProtocolError, Trap, Unsupported
from simulator.machine.barriers import MAX_COUNT, Mbarrier, NamedBarrier
from simulator.policy import POLICIES, Policy
from tests.simulator.ptx_text import failure, run, store

BARRIER = "mov.u32 %r1, smem; setp.ne.u32 %p1, %idx, 0;"
INIT = BARRIER + "@%p1 bra INIT; mbarrier.init.shared.b64 [%r1], {count}; INIT: bar.sync 0;"


def wait(parity: str = "0", address: str = "%r1", label: str = "W") -> str:
    """Wait in a loop for the end of the phase of a parity."""
    return (
        f"{label}: mbarrier.try_wait.parity.shared.b64 %p9, [{address}], {parity};"
        f" @!%p9 bra {label};"
    )


# 1. The object


class Model:
    """An mbarrier as the PTX ISA describes it, one arrival or one change of tx at a time."""

    def __init__(self, count: int) -> None:
        self.count = self.pending = count
        self.tx = self.phase = 0

    def step(self, kind: str, amount: int) -> bool:
        """Whether the step is legal."""
        if kind == "arrive":
            if amount > self.pending:
                return False
            self.pending -= amount
        else:
            self.tx += amount if kind == "expect" else -amount
            if abs(self.tx) > MAX_COUNT:
                return False
        if self.pending == 0 and self.tx == 0:
            self.phase, self.pending = self.phase + 1, self.count
        return True


STEPS = st.lists(
    st.tuples(st.sampled_from(["arrive", "expect", "complete"]), st.integers(0, 4)), max_size=30
)


@given(st.integers(1, 5), STEPS)
def test_an_mbarrier_goes_through_the_phases_of_the_model(count, steps):
    ended: list[int] = []
    barrier, model = Mbarrier("b", count, lambda: ended.append(1)), Model(count)
    for kind, amount in steps:
        act = {
            "arrive": barrier.arrive, "expect": barrier.expect_tx, "complete": barrier.complete_tx,
        }[kind]  # fmt: skip
        if not model.step(kind, amount):
            with pytest.raises(ProtocolError):
                act(amount)
            return
        act(amount)
        assert (barrier.phase, barrier.pending, barrier.tx) == (
            model.phase, model.pending, model.tx,
        )  # fmt: skip
        assert len(ended) == model.phase
        for parity in (0, 1):
            assert barrier.passed(parity) == ((model.phase - 1) % 2 == parity)


@pytest.mark.parametrize("count", [0, MAX_COUNT + 1])
def test_the_count_of_an_mbarrier_has_limits(count):
    Mbarrier("b", MAX_COUNT, lambda: None)
    with pytest.raises(ProtocolError, match=str(count)):
        Mbarrier("b", count, lambda: None)


def test_tx_has_limits_on_both_sides():
    for sign in (1, -1):
        barrier = Mbarrier("b", 1, lambda: None)
        act = barrier.expect_tx if sign > 0 else barrier.complete_tx
        act(MAX_COUNT)
        with pytest.raises(ProtocolError, match=rf"\{sign:+} bytes leave"):
            act(1)


# 2. mbarrier instructions


@pytest.mark.parametrize("policy", POLICIES)
def test_phases_and_parities(policy):
    """Warp 1 hands numbers to warp 0 through one slot, with a full and an empty barrier."""
    out = np.zeros(20, np.uint32)
    run(
        """mov.u32 %r1, smem; add.u32 %r2, %r1, 8; add.u32 %r3, %r1, 16; mov.u32 %r5, 0;
        setp.ne.u32 %p1, %idx, 0; @%p1 bra INIT;
        mbarrier.init.shared.b64 [%r1], 32; mbarrier.init.shared.b64 [%r2], 1;
        INIT: bar.sync 0;
        setp.ge.u32 %p2, %idx, 32; ld.param.u64 %rd1, [out];
        LOOP:
        and.b32 %r6, %r5, 1; xor.b32 %r7, %r6, 1;
        @%p2 bra PRODUCER;
        """
        + wait("%r6")
        + """ld.shared.u32 %r9, [%r3]; setp.eq.u32 %p3, %lane, 0;
        mul.wide.u32 %rd2, %r5, 4; add.u64 %rd2, %rd2, %rd1;
        @%p3 st.global.u32 [%rd2], %r9;
        bar.warp.sync -1;
        @%p3 mbarrier.arrive.shared.b64 %rd3, [%r2];
        bra NEXT;
        PRODUCER:
        """
        + wait("%r7", "%r2", "V")
        + """mul.lo.u32 %r8, %r5, %r5; setp.eq.u32 %p3, %lane, 7;
        @%p3 st.shared.u32 [%r3], %r8;
        mbarrier.arrive.shared.b64 %rd3, [%r1];
        NEXT: add.u32 %r5, %r5, 1; setp.lt.u32 %p4, %r5, 20; @%p4 bra LOOP;""",
        {"out": out},
        threads=64,
        shared_bytes=24,
        policy=Policy(policy, 5),
    )
    assert out.tolist() == [i * i for i in range(20)]


def test_parity_1_passes_on_a_fresh_barrier_and_parity_0_does_not():
    out = np.zeros(2, np.uint32)
    body = INIT.format(count=1) + "".join(
        f"mbarrier.{op}.parity.shared.b64 %p2, [%r1], {parity}; selp.u32 %r2, 1, 0, %p2;"
        + store("%r2", index=index)
        for op, parity, index in (("test_wait", 0, "0"), ("try_wait", 1, "1"))
    )
    run(body, {"out": out}, threads=1, shared_bytes=8)
    assert out.tolist() == [0, 1]


def test_every_active_lane_arrives_at_the_barrier_that_it_addresses():
    """32 lanes spread over 4 barriers; each is complete with 8 arrivals, one short is not."""
    body = """mov.u32 %r1, smem; and.b32 %r2, %lane, 3; shl.b32 %r2, %r2, 3; add.u32 %r1, %r1, %r2;
    setp.lt.u32 %p1, %lane, 4; @%p1 mbarrier.init.shared.b64 [%r1], 8;
    setp.ne.u32 %p2, %lane, {missing};
    @%p2 mbarrier.arrive.shared.b64 %rd1, [%r1];
    mbarrier.test_wait.parity.shared.b64 %p3, [%r1], 0; selp.u32 %r3, 1, 0, %p3;"""
    out = np.zeros(32, np.uint32)
    run(body.format(missing=32) + store("%r3"), {"out": out}, shared_bytes=32)
    assert out.tolist() == [1] * 32
    run(body.format(missing=9) + store("%r3"), {"out": out}, shared_bytes=32)
    assert out.tolist() == [int(lane % 4 != 1) for lane in range(32)]


def test_counts_of_arrivals_and_the_state_that_comes_back():
    out = np.zeros((32, 2), np.uint64)
    run(
        INIT.format(count=64)
        + """mbarrier.arrive.shared.b64 %rd1, [%r1], 2; mbarrier.arrive.shared.b64 %rd2, [%r1], 2;
        ld.param.u64 %rd3, [out]; mul.wide.u32 %rd4, %lane, 16; add.u64 %rd3, %rd3, %rd4;
        st.global.v2.u64 [%rd3], {%rd1, %rd2};""",
        {"out": out},
        shared_bytes=8,
    )
    assert out.tolist() == [[0, 1]] * 32


def test_bytes_may_come_before_they_are_expected():
    """tx goes below zero; the phase ends when as many are expected, and not before."""
    out = np.zeros(3, np.uint32)
    peek = "mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 0; selp.u32 %r2, 1, 0, %p2;"
    body = INIT.format(count=1) + "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], {first};"
    body += "mbarrier.arrive.shared.b64 _, [%r1];" + peek + store("%r2", index="0")
    body += "mbarrier.expect_tx.shared.b64 [%r1], {second};" + peek + store("%r2", index="1")
    arguments = {"out": out}
    run(body.format(first=0, second=0), arguments, threads=1, shared_bytes=8)
    assert out.tolist() == [1, 1, 0]
    error = failure(
        ProtocolError, body.format(first=16, second=16), arguments, threads=1, shared_bytes=8
    )
    assert "tx-count 32 bytes" in error.message
    assert "the kernel ended" in error.message
    assert out.tolist() == [0, 0, 0]


def test_arrive_expect_tx_expects_first():
    error = failure(
        Deadlock,
        INIT.format(count=1) + "mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 48;" + wait(),
        threads=1,
        shared_bytes=8,
    )
    assert "0 of 1 arrivals pending, tx-count 48 bytes" in error.message


def test_arrivals_at_the_barrier_of_another_cta():
    """The barrier of rank 0 waits for one thread of each of four CTAs."""
    out = np.zeros(1, np.uint32)
    body = (
        """mov.u32 %r1, smem; mov.u32 %r2, %cluster_ctarank; setp.ne.u32 %p1, %r2, 0;
        @%p1 bra INIT; mbarrier.init.shared.b64 [%r1], 4; fence.mbarrier_init.release.cluster;
        INIT: barrier.cluster.arrive; barrier.cluster.wait;
        mapa.shared::cluster.u32 %r3, %r1, 0;
        mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];
        @%p1 bra END;"""
        + wait()
        + "mov.u32 %r4, 7;"
        + store("%r4", index="0")
        + "END: barrier.cluster.arrive; barrier.cluster.wait;"
    )
    run(body, {"out": out}, threads=1, grid=4, cluster=4, shared_bytes=8)
    assert out[0] == 7


REMOTE = "mapa.shared::cluster.u32 %r1, %r1, 1;"


@pytest.mark.parametrize(
    "statement",
    [
        "mbarrier.init.shared.b64 [%r1], 1",
        "mbarrier.inval.shared.b64 [%r1]",
        "mbarrier.arrive.shared::cta.b64 %rd1, [%r1]",
        "mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r1], 4",
        "mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 1",
        "mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 1",
        "cp.async.mbarrier.arrive.noinc.shared.b64 [%r1]",
    ],
)
def test_the_barrier_of_another_cta_needs_the_cluster_space(statement):
    body = f"mov.u32 %r1, smem; mbarrier.init.shared.b64 [%r1], 1; {REMOTE}\n{statement};"
    error = failure(Trap, body, threads=1, grid=2, cluster=2, shared_bytes=8)
    assert "CTA rank 1" in error.message
    assert error.location.ptx_text.startswith(statement.split("[")[0].strip())


@pytest.mark.parametrize(
    ("statement", "kind", "word"),
    [
        ("mbarrier.arrive.shared.b64 %rd1, [%r1];", Trap, "no mbarrier was initialised at"),
        ("mbarrier.try_wait.parity.shared.b64 %p2, [%r1], 1;", Trap, "no mbarrier"),
        ("mbarrier.inval.shared.b64 [%r1];", Trap, "no mbarrier"),
        ("mbarrier.init.shared.b64 [%r1], 0;", ProtocolError, "count 0"),
        ("mbarrier.init.shared.b64 [%r1+4], 1;", Trap, "multiple of 8"),
        ("mbarrier.init.shared.b64 [%r1+16], 1;", OutOfBounds, "beyond the end"),
        (
            "mbarrier.init.shared.b64 [%r1], 1;\nmbarrier.init.shared.b64 [%r1], 1;",
            ProtocolError, "live",
        ),
        (
            "mbarrier.init.shared.b64 [%r1], 1;\nmbarrier.inval.shared.b64 [%r1];"
            "\nmbarrier.arrive.shared.b64 %rd1, [%r1];",
            Trap, "no mbarrier",
        ),
        (
            "mbarrier.init.shared.b64 [%r1], 3;\nmbarrier.arrive.shared.b64 %rd1, [%r1], 4;",
            ProtocolError, "more than are pending",
        ),
        (
            "mbarrier.init.shared.b64 [%r1], 1;\nmbarrier.expect_tx.shared.b64 [%r1], 64;\n"
            "mbarrier.arrive.shared.b64 %rd1, [%r1];\nmbarrier.arrive.shared.b64 %rd1, [%r1];",
            ProtocolError, "0 of 1 arrivals pending, tx-count 64",
        ),
        (
            "mbarrier.init.shared.b64 [%r1], 1;\nmbarrier.expect_tx.shared.b64 [%r1], 1048576;",
            ProtocolError, "leave the range",
        ),
    ],
)  # fmt: skip
def test_misuse_of_an_mbarrier(statement, kind, word):
    error = failure(kind, f"mov.u32 %r1, smem;\n{statement}", threads=1, shared_bytes=16)
    assert word in error.message
    assert error.location.ptx_text == statement.splitlines()[-1]


def test_an_invalidated_object_may_be_made_anew():
    run(
        """mov.u32 %r1, smem; mbarrier.init.shared.b64 [%r1], 1; mbarrier.inval.shared.b64 [%r1];
        mbarrier.init.shared.b64 [%r1], 2; mbarrier.arrive.shared.b64 %rd1, [%r1], 2;""",
        threads=1,
        shared_bytes=8,
    )


def test_one_instruction_makes_one_object_though_all_lanes_execute_it():
    body = "mov.u32 %r1, smem; mbarrier.init.shared.b64 [%r1], 32;"
    run(body + "mbarrier.arrive.shared.b64 %rd1, [%r1];" + wait(), shared_bytes=8)


# 3. Barriers of the CTA


@pytest.mark.parametrize("policy", POLICIES)
def test_bar_sync_orders_all_warps(policy):
    """Four warps add up what the others wrote, eight times over."""
    out = np.zeros(128, np.uint32)
    run(
        """mov.u32 %r1, smem; shl.b32 %r2, %idx, 2; add.u32 %r2, %r2, %r1;
        mov.u32 %r3, %idx; mov.u32 %r9, 0;
        LOOP: st.shared.u32 [%r2], %r3; bar.sync 0;
        add.u32 %r4, %idx, 37; and.b32 %r4, %r4, 127; shl.b32 %r4, %r4, 2; add.u32 %r4, %r4, %r1;
        ld.shared.u32 %r5, [%r4]; add.u32 %r3, %r3, %r5; bar.sync 0;
        add.u32 %r9, %r9, 1; setp.lt.u32 %p1, %r9, 8; @%p1 bra LOOP;"""
        + store("%r3"),
        {"out": out},
        threads=128,
        shared_bytes=512,
        policy=Policy(policy, 1),
    )
    expected = np.arange(128, dtype=np.uint32)
    for _ in range(8):
        expected = expected + np.roll(expected, -37)
    assert np.array_equal(out, expected)


def test_named_barriers_with_counts_let_the_other_warps_pass():
    """Warps 0 and 1 meet at barrier 3, warps 2 and 3 at barrier 4; nobody waits for all."""
    out = np.zeros(128, np.uint32)
    run(
        """shr.u32 %r1, %idx, 6; add.u32 %r2, %r1, 3; mov.u32 %r3, smem;
        shl.b32 %r4, %idx, 2; add.u32 %r5, %r3, %r4; st.shared.u32 [%r5], %idx;
        barrier.cta.sync.aligned %r2, 64;
        xor.b32 %r6, %idx, 32; shl.b32 %r6, %r6, 2; add.u32 %r6, %r6, %r3;
        ld.shared.u32 %r7, [%r6];"""
        + store("%r7"),
        {"out": out},
        threads=128,
        shared_bytes=512,
    )
    assert np.array_equal(out, np.arange(128) ^ 32)


PRODUCER_CONSUMER = """mov.u32 %r3, smem; and.b32 %r4, %lane, 31; shl.b32 %r4, %r4, 2;
    add.u32 %r3, %r3, %r4; setp.ge.u32 %p1, %idx, 32; @%p1 bra CONSUMER;
    add.u32 %r5, %lane, 500; st.shared.u32 [%r3], %r5; bar.arrive 1, {arrive};
    ret;
    CONSUMER: bar.sync 1, {sync}; ld.shared.u32 %r6, [%r3];"""


@pytest.mark.parametrize("policy", POLICIES)
def test_bar_arrive_does_not_wait(policy):
    out = np.zeros(32, np.uint32)
    body = PRODUCER_CONSUMER.format(arrive=64, sync=64) + store("%r6", index="%lane")
    options = {"threads": 64, "shared_bytes": 128, "policy": Policy(policy, 2)}
    run(body, {"out": out}, **options)
    assert out.tolist() == [500 + lane for lane in range(32)]


@pytest.mark.parametrize(
    ("arrive", "sync", "kind", "word"),
    [
        (64, 32, ProtocolError, "some threads await"),
        (96, 64, Trap, "barrier of 96 threads"),
        (48, 64, Trap, "barrier of 48 threads"),
        (0, 64, Trap, "barrier of 0 threads"),
    ],
)
def test_counts_that_do_not_fit(arrive, sync, kind, word):
    body = PRODUCER_CONSUMER.format(arrive=arrive, sync=sync)
    assert word in failure(kind, body, threads=64, shared_bytes=128).message


def test_more_threads_than_awaited():
    with pytest.raises(ProtocolError, match="32"):
        NamedBarrier("1", lambda: None).arrive(64, 32)


@pytest.mark.parametrize("number", [16, -1])
def test_barrier_numbers(number):
    assert "0..15" in failure(Trap, f"bar.sync {number};").message


def test_a_barrier_number_is_one_for_the_warp():
    assert "differs between lanes" in failure(Trap, "bar.sync %lane;").message


@pytest.mark.parametrize("threads", [64, 61])
def test_threads_that_exited_are_not_awaited(threads):
    """Warp 0 leaves at once, and a few lanes of warp 1; the last to come opens the barrier."""
    out = np.zeros(threads, np.uint32)
    body = """setp.lt.u32 %p1, %idx, 32; @%p1 ret;
        setp.lt.u32 %p1, %lane, 3; @%p1 ret;
        bar.sync 0; bar.sync 0;""" + store("%idx")
    for policy in POLICIES:
        out[:] = 0
        run(body, {"out": out}, threads=threads, policy=Policy(policy))
        assert out.tolist() == [0] * 35 + list(range(35, threads))


def test_a_warp_that_leaves_opens_the_barrier_for_those_who_wait():
    """Warp 0 waits at once; warp 1 exits only after a long loop."""
    out = np.zeros(64, np.uint32)
    run(
        """mov.u32 %r1, 0; setp.lt.u32 %p1, %idx, 32; @%p1 bra WAIT;
        LOOP: add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 300; @%p2 bra LOOP;
        ret;
        WAIT: bar.sync 0;"""
        + store("%idx"),
        {"out": out},
        threads=64,
    )
    assert out.tolist() == [*range(32), *[0] * 32]


def test_of_a_named_number_threads_that_exited_are_missed():
    body = "setp.lt.u32 %p1, %idx, 32; @%p1 ret; bar.sync 1, 64;"
    assert "barrier 1 (32 of 64 threads" in failure(Deadlock, body, threads=64).message


def test_of_a_named_number_a_warp_counts_whole():
    body = "setp.lt.u32 %p1, %lane, 3; @%p1 ret; bar.sync 1, 64;"
    run(body, threads=64)


@pytest.mark.parametrize("statement", ["barrier.sync 0", "barrier.arrive 1, 64"])
def test_a_barrier_that_part_of_a_warp_reaches_is_not_supported(statement):
    """On a device the rest of the warp may come later."""
    error = failure(
        Unsupported, f"setp.lt.u32 %p1, %lane, 3; @%p1 bra L; {statement}; L: mov.u32 %r1, 1;"
        , threads=64,
    )  # fmt: skip
    assert error.lanes == tuple(range(3, 32))
