"""racecheck: each kernel stands with and without what orders its accesses."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.checks import Checks
from simulator.errors import DataRace
from simulator.policy import POLICIES, Policy
from tests.simulator.ptx_text import address, aligned, run
from tests.simulator.sanitizer.faulty import findings
from tests.simulator.test_bulk_copy import tensor_map

RACES = Checks(races=True)
ON_THE_WRITER = "setp.ge.u32 %p0, %t2, 32; @%p0 bra READ;"


def store_result(register: str = "%r1") -> str:
    return f"{address('out')} st.global.b32 [%at0], {register};"


def races(body: str, *, threads: int = 64, policy: str = "fair", result: str = "%r1") -> list[str]:
    """The races of a kernel as text; empty if it has none."""
    out = np.zeros(threads, np.uint32)
    try:
        run(
            body + store_result(result),
            {"out": out},
            threads=threads,
            shared_bytes=1024,
            checks=RACES,
            policy=Policy(policy),
        )
    except DataRace as found:
        return [str(race) for race in found.findings]
    return []


def exchange(between: str) -> str:
    """Each thread gives its number to the thread 32 further on."""
    return f"""
        shl.b32 %r2, %t2, 2; mov.b32 %r3, smem; add.u32 %r2, %r2, %r3;
        st.shared.b32 [%r2], %t2;
        {between}
        xor.b32 %r4, %r2, 128;
        ld.shared.b32 %r1, [%r4];
    """


@pytest.mark.parametrize("policy", POLICIES)
def test_a_barrier_orders_an_exchange(policy):
    assert races(exchange("bar.sync 0;"), policy=policy) == []


def test_an_exchange_without_a_barrier_is_a_race():
    # Without a barrier an element may not even be there: write all of them once before.
    first = "st.shared.b32 [%r5], 0; bar.sync 0;"
    body = "shl.b32 %r5, %t2, 2; mov.b32 %r3, smem; add.u32 %r5, %r5, %r3;" + first + exchange("")
    found = races(body)
    assert found
    for race in found:
        assert "ld.shared.b32 %r1, [%r4]" in race
        assert "st.shared.b32 [%r2], %t2" in race
        assert "warp 0" in race
        assert "warp 1" in race


def tiles(after: str) -> str:
    """Two rounds of an exchange through one slot, as in a softmax over two tiles."""
    return exchange("bar.sync 0;") + after + exchange("bar.sync 0;")


def test_a_slot_used_again_needs_a_second_barrier():
    assert races(tiles("bar.sync 1;")) == []
    found = races(tiles(""))
    assert found
    assert all("shared memory" in race for race in found)


def produced(wait: str) -> str:
    """Warp 0 writes and arrives at an mbarrier, warp 1 waits and reads."""
    return f"""
        mov.b32 %r3, smem; mov.b32 %r9, 32;
        setp.ne.u32 %p1, %t2, 0; @%p1 bra READY;
        mbarrier.init.shared.b64 [%r3], %r9; st.shared.b32 [%r3+64], 1;
        READY: bar.sync 0;
        mov.b32 %r1, 7;
        {ON_THE_WRITER}
        st.shared.b32 [%r3+64], 5;
        mbarrier.arrive.shared.b64 _, [%r3];
        bra DONE;
        READ:
        {wait}
        ld.shared.b32 %r1, [%r3+64];
        DONE: bar.sync 0;
    """


WAIT = "LOOP: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra LOOP;"


@pytest.mark.parametrize("policy", POLICIES)
def test_an_mbarrier_orders_producer_and_consumer(policy):
    assert races(produced(WAIT), policy=policy) == []


@pytest.mark.parametrize("policy", ["fair", "run_to_block"])
def test_a_missing_wait_is_a_race_though_the_answer_is_right(policy):
    assert len(races(produced(""), policy=policy)) == 1


def copied(wait: str) -> str:
    """cp.async fetches the element, which its own thread reads."""
    return f"""
        shl.b32 %r2, %t2, 2; mov.b32 %r3, smem; add.u32 %r2, %r2, %r3;
        st.shared.b32 [%r2], 0;
        bar.sync 0;
        {address("out")}
        cp.async.ca.shared.global [%r2], [%at0], 4;
        cp.async.commit_group;
        {wait}
        ld.shared.b32 %r1, [%r2];
    """


def test_a_copy_is_done_only_when_it_was_waited_for():
    assert races(copied("cp.async.wait_group 0;")) == []
    found = races(copied(""))
    assert any("ld.shared.b32 %r1, [%r2]" in race for race in found)
    assert all("write by cp.async" in race for race in found)


def two_groups(pending: int, slot: int) -> str:
    """Two copies in a group each; the element of one of them is read."""
    return f"""
        shl.b32 %r2, %t2, 2; mov.b32 %r3, smem; add.u32 %r2, %r2, %r3; add.u32 %r4, %r2, 256;
        {address("out")}
        cp.async.ca.shared.global [%r2], [%at0], 4; cp.async.commit_group;
        cp.async.ca.shared.global [%r4], [%at0], 4; cp.async.commit_group;
        cp.async.wait_group {pending};
        ld.shared.b32 %r1, [%r2+{256 * slot}]; cp.async.wait_all;
    """


@pytest.mark.parametrize("policy", ["fair", "run_to_block", "quantum_1"])
@pytest.mark.parametrize(("pending", "slot"), [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)])
def test_a_wait_for_groups_covers_no_newer_ones(pending, slot, policy):
    """Copies are complete at once under these policies, whatever is waited for."""
    found = races(two_groups(pending, slot), policy=policy)
    assert bool(found) == (slot >= 2 - pending)
    assert all("write by cp.async" in race for race in found)


def stored(pending: int, form: str) -> list[str]:
    """Two boxes are stored from shared memory, whose first words are then used again."""
    body = f"""
        mov.u32 %r1, smem; add.u32 %r2, %r1, 128; shl.b32 %r3, %lane, 2; add.u32 %r4, %r1, %r3;
        st.shared.b32 [%r4], %lane; st.shared.b32 [%r4+128], %lane;
        bar.warp.sync -1; mov.b64 %rd1, map; setp.ne.u32 %p1, %lane, 0; @%p1 bra READY;
        cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%rd1, {{0}}], [%r1];
        cp.async.bulk.commit_group;
        cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%rd1, {{32}}], [%r2];
        cp.async.bulk.commit_group; cp.async.bulk.wait_group{form} {pending};
        st.shared.b32 [%r1], 7;
        cp.async.bulk.wait_group{form} 0;
        READY: bar.sync 0;
    """
    out = aligned((64,), "uint32")
    return findings("races", body, {"map": tensor_map(out, (32,)), "out": out}, shared_bytes=256)


@pytest.mark.parametrize("form", ["", ".read"])
def test_the_source_of_a_bulk_store_is_free_once_its_group_was_waited_for(form):
    assert stored(0, form) == []
    assert stored(1, form) == []
    (race,) = stored(2, form)
    assert "read by bulk stores of warp 0" in race


def test_without_the_check_nothing_is_reported():
    out = np.zeros(64, np.uint32)
    run(produced("") + store_result(), {"out": out}, threads=64, shared_bytes=1024)
    assert set(out[32:].tolist()) <= {1, 5}


def test_a_race_names_both_places_and_counts_repetitions():
    with pytest.raises(DataRace) as caught:
        run(
            tiles("") + store_result(),
            {"out": np.zeros(64, np.uint32)},
            threads=64,
            shared_bytes=1024,
            checks=RACES,
        )
    for race in caught.value.findings:
        lines = {race.later.location.ptx_text, race.earlier.location.ptx_text}
        assert lines == {"st.shared.b32 [%r2], %t2;", "ld.shared.b32 %r1, [%r4];"}
        assert race.later.writes != race.earlier.writes
        assert race.times >= 1
