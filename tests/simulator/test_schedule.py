"""Policies, deadlocks and endless loops: what a schedule may do and what it must find."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import Deadlock, SimulationError, Trap, Uninitialised
from simulator.launch import Extent, Tensor, launch_kernel
from simulator.policy import POLICIES, Policy
from tests.simulator.ptx_text import failure, module, run, store

# Warp 1 produces tile after tile with cp.async, warp 0 adds them up; two stages of shared memory.
TILES = 9
PIPELINE = """
    mov.u32 %r1, smem; setp.ne.u32 %p1, %idx, 0; @%p1 bra INIT;
    mbarrier.init.shared.b64 [%r1], 32; mbarrier.init.shared.b64 [%r1+8], 32;
    mbarrier.init.shared.b64 [%r1+16], 32; mbarrier.init.shared.b64 [%r1+24], 32;
    INIT: bar.sync 0;
    shl.b32 %r2, %lane, 2; add.u32 %r2, %r2, %r1; add.u32 %r2, %r2, 128;
    mov.u32 %r3, 0; mov.u32 %r4, 0; ld.param.u64 %rd1, [x];
    mul.wide.u32 %rd2, %lane, 4; add.u64 %rd1, %rd1, %rd2;
    setp.ge.u32 %p2, %idx, 32;
    LOOP:
    and.b32 %r5, %r3, 1; shr.u32 %r6, %r3, 1; and.b32 %r6, %r6, 1; xor.b32 %r7, %r6, 1;
    shl.b32 %r8, %r5, 3; add.u32 %r9, %r1, %r8; add.u32 %r10, %r9, 16;
    shl.b32 %r11, %r5, 7; add.u32 %r12, %r2, %r11;
    @%p2 bra PRODUCER;
    {full}
    ld.shared.u32 %r13, [%r12]; add.u32 %r4, %r4, %r13;
    mbarrier.arrive.shared.b64 %rd3, [%r10];
    bra NEXT;
    PRODUCER:
    {empty}
    cp.async.ca.shared.global [%r12], [%rd1], 4;
    cp.async.mbarrier.arrive.noinc.shared.b64 [%r9];
    add.u64 %rd1, %rd1, 128;
    NEXT: add.u32 %r3, %r3, 1; setp.lt.u32 %p4, %r3, {tiles}; @%p4 bra LOOP;
    @%p2 ret;
"""
FULL = "V: mbarrier.try_wait.parity.shared.b64 %p3, [%r9], %r6; @!%p3 bra V;"
EMPTY = "W: mbarrier.try_wait.parity.shared.b64 %p3, [%r10], %r7; @!%p3 bra W;"


def pipeline(policy: Policy, *, full: str = FULL, empty: str = EMPTY) -> tuple[np.ndarray, object]:
    """The sums that warp 0 stores, less the right ones, and the run."""
    x = np.random.default_rng(1).integers(0, 1000, (TILES, 32), np.uint32)
    out = np.zeros(32, np.uint32)
    body = PIPELINE.format(full=full, empty=empty, tiles=TILES) + store("%r4", index="%lane")
    found = run(body, {"x": x, "out": out}, threads=64, shared_bytes=128 + 256, policy=policy)
    return out.astype(np.int64) - x.sum(axis=0), found


# 1. Policies


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_correct_kernel_is_right_under_every_policy(policy, seed):
    wrong, _ = pipeline(Policy(policy, seed))
    assert not wrong.any()


def outcomes(seeds: range, policy: str, **changes: str) -> list[str]:
    """How the pipeline ends for each seed: ``right``, ``wrong`` or the name of an error."""
    found = []
    for seed in seeds:
        try:
            wrong, _ = pipeline(Policy(policy, seed), **changes)
            found.append("wrong" if wrong.any() else "right")
        except SimulationError as error:
            found.append(type(error).__name__)
    return found


def test_a_missing_wait_for_data_is_exposed():
    """Without the consumer's wait each tile is read before it is there."""
    assert outcomes(range(1), "late", full="") == ["Uninitialised"]
    assert outcomes(range(1), "late") == ["right"]


HANDED_ON = """mov.u32 %r1, smem; shl.b32 %r2, %lane, 2; add.u32 %r1, %r1, %r2;
    ld.param.u64 %rd1, [x]; mul.wide.u32 %rd2, %lane, 4; add.u64 %rd1, %rd1, %rd2;
    setp.ge.u32 %p1, %idx, 32; @%p1 bra READER;
    cp.async.ca.shared.global [%r1], [%rd1], 4; {wait}
    READER: bar.sync 0; ld.shared.u32 %r3, [%r1];"""


@pytest.mark.parametrize("policy", POLICIES)
def test_a_missing_wait_that_eager_completion_hides(policy):
    """The barrier orders the warps, not the copy: that it has ended, only a wait makes sure."""
    x, out = np.arange(100, 132, dtype=np.uint32), np.zeros(64, np.uint32)
    arguments = {"x": x, "out": out}
    options = {"threads": 64, "shared_bytes": 128, "policy": Policy(policy, 1)}
    body = HANDED_ON + store("%r3")
    run(body.replace("{wait}", "cp.async.wait_all;"), arguments, **options)
    assert np.array_equal(out, np.tile(x, 2))
    if policy in ("late", "delay"):
        failure(Uninitialised, body.replace("{wait}", ""), arguments, **options)
    elif policy not in ("random", "pct"):
        run(body.replace("{wait}", ""), arguments, **options)


def test_a_missing_wait_for_room_is_exposed_by_running_to_the_block():
    """Without the producer's wait it runs ahead of the consumer: phases pass, tiles are lost."""
    found = outcomes(range(1), "run_to_block", empty="")
    assert found != ["right"]
    assert outcomes(range(1), "run_to_block") == ["right"]


def test_random_schedules_differ_and_each_replays_from_its_seed():
    runs = [pipeline(Policy("random", seed))[1] for seed in range(6)]
    again = [pipeline(Policy("random", seed))[1] for seed in range(6)]
    assert [r.polls for r in runs] == [r.polls for r in again]
    assert [r.warp_instructions for r in runs] == [r.warp_instructions for r in again]
    assert len({r.polls for r in runs}) > 1


def test_the_error_that_a_random_schedule_finds_replays_too():
    found = outcomes(range(12), "random", full="")
    assert set(found) & {"Uninitialised", "wrong"}
    assert outcomes(range(12), "random", full="") == found


@pytest.mark.parametrize("policy", ["late", "random"])
def test_the_order_of_late_completion_replays_from_the_seed(policy):
    """Three warps copy different numbers to one place; which one is last, the seed decides."""
    x = np.repeat(np.arange(3, dtype=np.uint32), 32)
    out = np.zeros(1, np.uint32)
    body = """mov.u32 %r1, smem; ld.param.u64 %rd1, [x]; mul.wide.u32 %rd2, %idx, 4;
        add.u64 %rd1, %rd1, %rd2;
        cp.async.ca.shared.global [%r1], [%rd1], 4; cp.async.wait_all; bar.sync 0;
        ld.shared.u32 %r2, [%r1];""" + store("%r2", index="0")

    def last(seed: int) -> int:
        arguments = {"x": x, "out": out}
        run(body, arguments, threads=96, shared_bytes=4, policy=Policy(policy, seed))
        return int(out[0])

    found = [last(seed) for seed in range(8)]
    assert found == [last(seed) for seed in range(8)]
    assert len(set(found)) > 1


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="'lazy' is not one of fair"):
        Policy("lazy")


# 2. Deadlock

TWO_WAITS = """mov.u32 %r1, smem; setp.ne.u32 %p1, %idx, 0; @%p1 bra INIT;
    mbarrier.init.shared.b64 [%r1], 3; mbarrier.init.shared.b64 [%r1+8], 1; INIT: bar.sync 0;
    setp.ge.u32 %p2, %idx, 32; @%p2 bra SECOND;
    setp.ne.u32 %p3, %lane, 0;
    @%p3 bra FIRST; mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 96;
    FIRST: mbarrier.try_wait.parity.shared.b64 %p4, [%r1], 0;
    @!%p4 bra FIRST;
    bra END;
    SECOND: mbarrier.try_wait.parity.shared.b64 %p4, [%r1+8], 0;
    @!%p4 bra SECOND;
    END: bar.sync 0;"""


@pytest.mark.parametrize("policy", POLICIES)
def test_a_deadlock_names_each_warp_and_what_it_waits_for(policy):
    error = failure(Deadlock, TWO_WAITS, threads=64, shared_bytes=16, policy=Policy(policy, 3))
    lines = error.message.splitlines()
    assert lines[0] == "no warp can go on"
    assert lines[1] == "0 asynchronous operations are pending"
    at_first, first, at_second, second = lines[2:]
    assert "cta (0,0,0), warp 0: mbarrier.try_wait.parity" in at_first
    assert "waits for the end of the phase of parity 0 of mbarrier shared[0] of CTA rank 0" in first
    assert "in phase 0 (2 of 3 arrivals pending, tx-count 96 bytes)" in first
    assert "cta (0,0,0), warp 1: mbarrier.try_wait.parity" in at_second
    assert "mbarrier shared[8] of CTA rank 0 in phase 0 (1 of 1 arrivals pending" in second
    assert error.kernel == "k"


def test_the_report_gives_the_line_and_the_text_of_the_wait():
    text = "bar.sync 2, 64;"
    body = f"setp.lt.u32 %p1, %idx, 32; @%p1 bra L;\n{text}\nbra M;\nL:\nbar.sync 3, 64;\nM:"
    message = failure(Deadlock, body, threads=64).message
    first, waits, second, also_waits = message.splitlines()[2:]
    assert first.endswith("warp 0: bar.sync 3, 64;")
    assert "waits for the opening of barrier 3 (32 of 64 threads" in waits
    assert second.endswith("warp 1: bar.sync 2, 64;")
    assert "waits for the opening of barrier 2 (32 of 64 threads" in also_waits
    assert int(first.split("PTX line ")[1].split(",")[0]) == (
        int(second.split("PTX line ")[1].split(",")[0]) + 3
    )


def test_late_work_is_no_deadlock_and_its_number_is_told_where_there_is_one():
    """The copies of warp 0 are in no group that it waits for; what it waits for never comes."""
    body = """mov.u32 %r1, smem; ld.param.u64 %rd1, [x];
    cp.async.ca.shared.global [%r1], [%rd1], 4; cp.async.ca.shared.global [%r1], [%rd1], 4;"""
    arguments = {"x": np.zeros(1, np.uint32)}
    options = {"shared_bytes": 4, "policy": Policy("late")}
    run(body + "cp.async.wait_all;", arguments, **options)
    wait = """mbarrier.init.shared.b64 [%r1], 32;
    W: mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0; @!%p1 bra W;"""
    error = failure(Deadlock, body + wait, arguments, **{**options, "shared_bytes": 8})
    assert "0 asynchronous operations are pending" in error.message


def test_lanes_of_one_warp_that_wait_for_each_other_are_told_apart():
    """Lane 0 waits for what lane 1 would do after it: here lanes cannot overtake each other."""
    body = """mov.u32 %r1, smem; setp.ne.u32 %p1, %lane, 0; @%p1 bra REST;
    mbarrier.init.shared.b64 [%r1], 1;
    W: mbarrier.try_wait.parity.shared.b64 %p2, [%r1], 0; @!%p2 bra W;
    bra END;
    REST: mbarrier.arrive.shared.b64 %rd1, [%r1];
    END: mov.u32 %r2, 0;"""
    body = body.replace("@%p1 bra REST", "@!%p1 bra FIRST; bra REST; FIRST:")
    where, waits, rest = failure(Deadlock, body, shared_bytes=8).message.splitlines()[2:]
    assert "lane 0: mbarrier.try_wait" in where
    assert "waits for the end of the phase of parity 0" in waits
    assert rest.strip() == "lanes 1-31 can go on only after these"


LONG_WORK = """
    mov.u32 %r1, smem; setp.ne.u32 %p1, %idx, 0; @%p1 bra INIT;
    mbarrier.init.shared.b64 [%r1], 1; mbarrier.init.shared.b64 [%r1+8], 32; INIT: bar.sync 0;
    setp.lt.u32 %p2, %idx, 32; @%p2 bra WAITER;
    mbarrier.{poll}.parity.shared.b64 %p3, [%r1], 0;
    mov.u32 %r2, 0;
    WORK: add.u32 %r2, %r2, 1; setp.lt.u32 %p4, %r2, 3000; @%p4 bra WORK;
    mbarrier.arrive.shared.b64 %rd1, [%r1+8];
    bra END;
    WAITER: mbarrier.try_wait.parity.shared.b64 %p3, [%r1+8], 0; @!%p3 bra WAITER;
    END: mov.u32 %r3, 0;"""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("poll", ["try_wait", "test_wait"])
def test_who_asks_once_and_then_works_long_is_no_deadlock(policy, poll):
    run(LONG_WORK.format(poll=poll), threads=64, shared_bytes=16, policy=Policy(policy))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("poll", ["try_wait", "test_wait"])
def test_polling_for_ever_is_a_deadlock_however_the_loop_is_built(policy, poll):
    """A loop of several blocks, which does other things between two polls."""
    body = f"""mov.u32 %r1, smem; mbarrier.init.shared.b64 [%r1], 32; mov.u32 %r2, 0;
    LOOP: add.u32 %r2, %r2, 1; and.b32 %r3, %r2, 1; setp.eq.u32 %p1, %r3, 0; @%p1 bra EVEN;
    xor.b32 %r4, %r4, %r2;
    EVEN: mbarrier.{poll}.parity.shared.b64 %p2, [%r1], 0; @%p2 bra END;
    setp.ge.u32 %p1, %lane, 7; @%p1 bra HIGH; add.u32 %r5, %r5, 1; HIGH: bra LOOP;
    END: mov.u32 %r6, 0;"""
    message = failure(Deadlock, body, shared_bytes=8, policy=Policy(policy)).message
    assert "mbarrier shared[0] of CTA rank 0 in phase 0 (32 of 32 arrivals pending" in message


SPIN = """mov.u32 %r1, smem; setp.ne.u32 %p1, %idx, 0; @%p1 bra INIT;
    mov.u32 %r2, 0; st.shared.u32 [%r1], %r2; mbarrier.init.shared.b64 [%r1+8], 1;
    INIT: bar.sync 0;
    setp.ge.u32 %p2, %idx, 32; @%p2 bra OTHER;
    FLAG: ld.volatile.shared.u32 %r3, [%r1]; setp.eq.u32 %p3, %r3, 0; @%p3 bra FLAG;
    bra END;
    OTHER: mbarrier.try_wait.parity.shared.b64 %p4, [%r1+8], 0;
    mov.u32 %r4, 1; st.shared.u32 [%r1], %r4;
    END: mov.u32 %r5, 0;"""


@pytest.mark.parametrize("policy", [p for p in POLICIES if not Policy(p).is_stepwise])
def test_one_warp_may_spin_on_memory_that_another_writes_after_a_peek(policy):
    """The peek fails and the warp goes on; that the other spins must not keep it asleep.

    Stepwise policies keep it asleep while anything else can go on: docs/simulator/schedules.md.
    """
    run(SPIN, threads=64, shared_bytes=16, policy=Policy(policy))


# 3. Endless loops


@pytest.mark.parametrize("policy", POLICIES)
def test_an_endless_loop_ends_at_the_limit(policy):
    error = failure(
        Trap, "L: add.u32 %r1, %r1, 1;\nbra L;", policy=Policy(policy), instruction_limit=5000
    )
    assert "endless loop" in error.message
    assert "warp 0: " in error.message
    assert error.message.endswith("runs on")


def test_the_limit_counts_all_clusters_and_warps():
    body = "mov.u32 %r1, 0; L: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 50; @%p1 bra L;"
    steps = run(body, threads=64, grid=3).warp_instructions
    run(body, threads=64, grid=3, instruction_limit=steps)
    failure(Trap, body, threads=64, grid=3, instruction_limit=steps - 1)


# 4. Grids


def test_every_cta_of_a_grid_runs_once_with_its_own_registers():
    """Grid, cluster and block in all three dimensions, written out by each thread."""
    names = ["ctaid", "nctaid", "clusterid", "cluster_ctaid", "cluster_nctaid", "tid"]
    columns = [f"%{n}.{a}" for n in names for a in "xyz"]
    columns += ["%cluster_ctarank", "%cluster_nctarank", "%warpid", "%laneid"]
    grid, block, cluster = (4, 3, 2), (5, 3, 4), (2, 3, 1)
    body = "ld.param.u64 %rd1, [out];"
    body += """mov.u32 %r1, %ctaid.z; mad.lo.u32 %r1, %r1, 3, 0; mov.u32 %r2, %ctaid.y;
    add.u32 %r1, %r1, %r2; mul.lo.u32 %r1, %r1, 4; add.u32 %r1, %r1, %t0;
    mov.u32 %r2, %tid.z; mad.lo.u32 %r2, %r2, 3, 0; mov.u32 %r3, %tid.y; add.u32 %r2, %r2, %r3;
    mad.lo.u32 %r2, %r2, 5, %t2; mad.lo.u32 %r1, %r1, 60, %r2;"""
    body += f"mul.wide.u32 %rd2, %r1, {4 * len(columns)}; add.u64 %rd1, %rd1, %rd2;"
    body += "".join(
        f"mov.u32 %r9, {name}; st.global.u32 [%rd1+{4 * i}], %r9;" for i, name in enumerate(columns)
    )
    out = np.full((2, 3, 4, 4, 3, 5, len(columns)), 0xFFFFFFFF, np.uint32)
    text = module(body, [".param .u64 out"])
    launch_kernel(text, Extent(grid, block, cluster), [Tensor.of(out, "out")])
    for z, y, x, tz, ty, tx in np.ndindex(out.shape[:-1]):
        found = dict(zip(columns, out[z, y, x, tz, ty, tx].tolist(), strict=True))
        index, local, thread = (x, y, z), (x % 2, y % 3, 0), (tz * 3 + ty) * 5 + tx
        expected = {
            "ctaid": index, "nctaid": grid, "cluster_ctaid": local, "cluster_nctaid": cluster,
            "clusterid": (x // 2, y // 3, z), "tid": (tx, ty, tz),
        }  # fmt: skip
        for name, values in expected.items():
            assert tuple(found[f"%{name}.{a}"] for a in "xyz") == values
        assert found["%cluster_ctarank"] == local[0] + 2 * local[1]
        assert found["%cluster_nctarank"] == 6
        assert (found["%warpid"], found["%laneid"]) == divmod(thread, 32)
