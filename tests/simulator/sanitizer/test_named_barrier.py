"""named_barriers: warps that come once, and one that comes twice."""

from __future__ import annotations

import pytest

from simulator.errors import Deadlock, ProtocolError
from simulator.policy import POLICIES, Policy
from tests.simulator.ptx_text import failure
from tests.simulator.sanitizer.faulty import findings, sentence

TWICE = "a warp arrives at a barrier a second time before the barrier has opened"


def found(body: str, policy: str = "fair", threads: int = 64) -> list[str]:
    return findings("named_barriers", body, threads=threads, policy=Policy(policy))


def handed(again: str) -> str:
    """Warp 0 announces two items to warp 1, and hears of each that it was taken."""
    return f"""
        setp.ge.u32 %p1, %t2, 32; @%p1 bra TAKE;
        bar.arrive 1, 64;
        {again}
        bar.arrive 1, 64;
        bra END;
        TAKE: bar.sync 1, 64; bar.sync 2, 64; bar.sync 1, 64;
        END: mov.b32 %r9, 0;"""


@pytest.mark.parametrize("policy", POLICIES)
def test_a_barrier_between_two_arrivals(policy):
    assert found(handed("bar.sync 2, 64;"), policy) == []


@pytest.mark.parametrize("second", ["bar.arrive 1, 64;", "bar.sync 1, 64;"])
def test_two_arrivals_of_a_warp_at_once(second):
    body = f"""
        setp.ge.u32 %p1, %t2, 32; @%p1 bra TAKE;
        bar.arrive 1, 64;
        {second}
        TAKE: mov.b32 %r9, 0;"""
    (one,) = found(body)
    assert sentence(one) == TWICE
    assert f"  arrival by warp 0 of cta 0 (kernel k, PTX line 16: {second})" in one
    assert "  after arrival by warp 0 of cta 0 (kernel k, PTX line 15: bar.arrive 1, 64;)" in one


def test_other_barriers_and_other_warps_are_not_the_same():
    assert found("bar.arrive 1, 64; bar.arrive 2, 64; bar.sync 0;", threads=64) == []
    assert found("bar.sync 1, 64; bar.sync 1, 64; bar.sync 0; bar.sync 0;") == []


@pytest.mark.parametrize("policy", POLICIES)
def test_a_warp_that_leaves_does_not_arrive(policy):
    body = "setp.lt.u32 %p1, %t2, 32; @%p1 ret; setp.lt.u32 %p1, %lane, 3; @%p1 ret; bar.sync 0;"
    assert found(body + "bar.sync 0;", policy, threads=96) == []


# What needs no check: it is always an error


def test_a_warp_that_has_exited_is_awaited_for_good():
    error = failure(Deadlock, "setp.lt.u32 %p1, %t2, 32; @%p1 ret;\nbar.sync 1, 64;", threads=64)
    assert "waits for the opening of barrier 1 (32 of 64 threads have arrived)" in error.message


def test_one_barrier_with_two_counts():
    body = "setp.lt.u32 %p1, %t2, 32; @%p1 bra A; bar.arrive 1, 64; bra B; A: bar.sync 1, 96; B:"
    error = failure(ProtocolError, body + "mov.b32 %r9, 0;", threads=96)
    assert "barrier 1: some threads await" in error.message
