"""mbarriers: each rule of an mbarrier's life, kept and broken."""

from __future__ import annotations

import pytest

from simulator.policy import POLICIES, Policy
from tests.simulator.sanitizer.faulty import findings, sentence

FIRST = "setp.ne.u32 %p1, %t2, 0; @%p1 bra READY;\n"
READY = "READY: bar.sync 0;\n"
WAIT = "{0}: mbarrier.try_wait.parity.shared.b64 %p2, [%r1], {1}; @!%p2 bra {0};\n"


def found(body: str, **options) -> list[str]:
    options.setdefault("shared_bytes", 64)
    return findings("mbarriers", body, **options)


# 1. Memory


def touched(statement: str) -> list[str]:
    body = "mov.u32 %r1, smem;\nmbarrier.init.shared.b64 [%r1+8], 1;\n" + statement
    return found(body, threads=1)


@pytest.mark.parametrize(
    ("statement", "how"),
    [
        ("st.shared.u32 [%r1+8], 1;", "write"),
        ("st.shared.u32 [%r1+12], 1;", "write"),
        ("ld.shared.u64 %rd1, [%r1+8];", "read"),
        ("st.shared.v4.u32 [%r1], {%r2, %r2, %r2, %r2};", "write"),
    ],
)
def test_an_access_to_a_live_object(statement, how):
    one = touched(statement)[0]
    assert sentence(one) == (
        "an access other than by mbarrier operations touches a live mbarrier object"
    )
    assert f"  {how} by warp 0 of cta 0 (kernel k, PTX line" in one
    assert f": {statement})" in one
    assert "after initialisation by warp 0 of cta 0" in one
    assert "mbarrier.init.shared.b64 [%r1+8], 1;)" in one


@pytest.mark.parametrize(
    "statement",
    [
        "st.shared.u32 [%r1+4], 1;",
        "st.shared.u32 [%r1+16], 1;",
        "mbarrier.inval.shared.b64 [%r1+8]; st.shared.u64 [%r1+8], %rd1;",
        "mbarrier.arrive.shared.b64 _, [%r1+8];",
    ],
)
def test_beside_the_object_or_after_its_life(statement):
    assert touched(statement) == []


# 2. A phase that nobody has seen to end


def arrivals(between: str) -> list[str]:
    arrive = "mbarrier.arrive.shared.b64 _, [%r1];\n"
    body = "mov.u32 %r1, smem; mbarrier.init.shared.b64 [%r1], 1;\n" + arrive + between + arrive
    return found(body, threads=1)


def test_an_arrival_before_anybody_has_seen_the_phase_before():
    (one,) = arrivals("")
    assert sentence(one) == (
        "an arrival at an mbarrier whose phase before has ended without any wait having returned "
        "true"
    )
    assert one.count("arrival by warp 0") == 2
    (of_the_phase_before,) = arrivals("mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 1;\n")
    assert sentence(of_the_phase_before) == sentence(one)


def test_an_arrival_after_a_wait():
    assert arrivals("mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 0;\n") == []
    assert arrivals(WAIT.format("W", 0)) == []


# 3. Lapping


def lapped(consume: str, policy: str) -> list[str]:
    """Warp 1 ends two phases, seeing both; warp 0 waits for the first one."""
    return found(
        "mov.u32 %r1, smem;" + FIRST + "mbarrier.init.shared.b64 [%r1], 1;\n" + READY
        + "mov.u32 %r9, 0; setp.ge.u32 %p3, %t2, 32; @%p3 bra OTHER;\n"
        + "mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 0;\nbar.sync 1;\nbar.sync 2;\n"
        + consume
        + "bra END;\nOTHER: bar.sync 1;\n"
        "setp.eq.u32 %p4, %lane, 0; @%p4 mbarrier.arrive.shared.b64 _, [%r1];\n"
        + WAIT.format("A", 0)
        + "@%p4 mbarrier.arrive.shared.b64 _, [%r1];\n"
        + WAIT.format("B", 1)
        + "bar.sync 2;\nEND: mov.b32 %r8, 0;",
        threads=64,
        policy=Policy(policy),
    )  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_a_waiter_that_was_lapped(policy):
    (one,) = lapped("mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 0;\n", policy)
    assert sentence(one).startswith("two phases of an mbarrier have ended since this wait began")
    assert "  wait by warp 0 of cta 0" in one
    assert "  after arrival by warp 1 of cta 0" in one


@pytest.mark.parametrize("policy", POLICIES)
def test_a_wait_for_the_phase_before_is_in_time(policy):
    assert lapped("mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 1;\n", policy) == []


# 4. The usual ring


@pytest.mark.parametrize("policy", POLICIES)
def test_a_producer_and_a_consumer_keep_all_rules(policy):
    """Warp 1 hands 20 numbers to warp 0 through one slot, with a full and an empty barrier."""
    body = (
        "mov.u32 %r2, smem; add.u32 %r3, %r2, 8; mov.u32 %r5, 0;"
        + FIRST
        + "mbarrier.init.shared.b64 [%r2], 1; mbarrier.init.shared.b64 [%r3], 1;"
        + READY
        + """setp.ge.u32 %p4, %t2, 32; setp.eq.u32 %p5, %lane, 0;
        LOOP: and.b32 %r6, %r5, 1; xor.b32 %r7, %r6, 1; @%p4 bra PRODUCE;
        F: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], %r6; @!%p2 bra F;
        ld.shared.u32 %r9, [%r2+16]; bar.warp.sync -1;
        @%p5 mbarrier.arrive.shared.b64 _, [%r3]; bra NEXT;
        PRODUCE:
        E: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], %r7; @!%p2 bra E;
        @%p5 st.shared.u32 [%r2+16], %r5;
        @%p5 mbarrier.arrive.shared.b64 _, [%r2];
        NEXT: add.u32 %r5, %r5, 1; setp.lt.u32 %p6, %r5, 20; @%p6 bra LOOP;"""
    )
    assert found(body, threads=64, policy=Policy(policy, 3)) == []
