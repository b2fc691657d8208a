"""PCT and delay-bounded schedules: planted bugs of known depth, found as often as is promised."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from simulator.decode import decode
from simulator.errors import Deadlock
from simulator.explore import explore
from simulator.interpreter import Interpreter
from simulator.launch import Extent, KernelRun, Tensor, launch_kernel
from simulator.machine.cluster import Launch
from simulator.machine.global_memory import GlobalMemory, tensors_of
from simulator.machine.schedule import Statistics, run_grid
from simulator.native import NativeExecutor
from simulator.policy import Policy
from simulator.ptx.parser import parse
from tests.simulator.ptx_text import module

# Two warps, x in shared memory, an mbarrier; lane 0 of a warp does everything. Each
# label ends a basic block, so that another warp may come between.
FRAME = """mov.u32 %r1, smem; setp.ne.u32 %p1, %idx, 0; @%p1 bra INIT;
    mov.u32 %r2, 0; st.shared.u32 [%r1], %r2; mbarrier.init.shared.b64 [%r1+8], 1;
    INIT: bar.sync 0;
    ld.param.u64 %rd1, [out]; setp.ge.u32 %p2, %idx, 32; setp.ne.u32 %p3, %lane, 0;
    @%p3 ret; @%p2 bra SECOND;
    {first} bra END;
    SECOND: {second}
    END: ret;"""

INCREMENT = "ld.shared.u32 %r3, [%r1]; bra {0}; {0}: add.u32 %r3, %r3, 1; st.shared.u32 [%r1], %r3;"
REPORT = "ld.shared.u32 %r4, [%r1]; st.global.u32 [%rd1+{0}], %r4;"


@functools.cache
def executor(first: str, second: str, make: type[Interpreter]) -> Interpreter:
    """Decoded once: the tests run it some thousand times."""
    text = module(FRAME.format(first=first, second=second), [".param .u64 out"])
    return make(decode(parse(text).kernels["k"]))


def launched(
    body: tuple[str, str], policy: Policy, make: type[Interpreter] = Interpreter
) -> tuple[list[int], Statistics]:
    out, kernel = np.full(4, 99, np.uint32), executor(*body, make)
    tensor = Tensor.of(out, "out")
    state = Launch(
        kernel.program, (1, 1, 1), (64, 1, 1), (1, 1, 1), 64,
        tensor.pointer.to_bytes(8, "little"),
        GlobalMemory(tensors_of([tensor]), check_initialised=False), policy,
    )  # fmt: skip
    run = run_grid(state, kernel, 10**6)
    return out.tolist(), run


# Depth 1: warp 1 must store before warp 0 loads. One ordering of two steps shows it.
ORDER = (REPORT.format(0), "mov.u32 %r3, 1; st.shared.u32 [%r1], %r3;")
# Depth 2: both add one to x; an increment is lost if one comes inside the other.
LOST = tuple(
    INCREMENT.format(name) + f"bra R{name}; R{name}: ld.shared.u32 %r4, [%r1];"
    f"st.global.u32 [%rd1+{place}], %r4;"
    for name, place in (("A", 0), ("B", 4))
)
# Depth 3: x is 1 for a while; warp 1 must load before and after its end.
BLINK = (
    "mov.u32 %r3, 1; st.shared.u32 [%r1], %r3; bra A; A: mov.u32 %r3, 2; st.shared.u32 [%r1], %r3;",
    REPORT.format(0) + "bra B; B: " + REPORT.format(4),
)
# The increments of LOST, one after the other.
ORDERED = (
    LOST[0] + "mbarrier.arrive.shared.b64 _, [%r1+8];",
    "W: mbarrier.try_wait.parity.shared.b64 %p4, [%r1+8], 0; @!%p4 bra W;" + LOST[1],
)

PLANTED = {
    1: (ORDER, lambda out: out[0] == 0),
    2: (LOST, lambda out: max(out[:2]) == 1),
    3: (BLINK, lambda out: out[:2] == [1, 2]),
}
RUNS = 500


def share(body: tuple[str, str], wrong, policy: str, runs: int) -> float:
    return sum(wrong(launched(body, Policy(policy, seed))[0]) for seed in range(runs)) / runs


@pytest.mark.parametrize("depth", PLANTED)
def test_pct_finds_a_bug_at_least_as_often_as_promised(depth):
    """At least 1 in n k^(d-1) runs, less three standard deviations of what a sample shows."""
    body, wrong = PLANTED[depth]
    steps = launched(body, Policy("pct:1"))[1].steps
    promised = 1 / (2 * steps ** (depth - 1))
    runs = RUNS if depth < 3 else 6 * RUNS
    found = share(body, wrong, f"pct:{depth}:{steps}", runs)
    assert found >= promised - 3 * math.sqrt(promised / runs)
    assert found > 0


@pytest.mark.parametrize("depth", [2, 3])
def test_pct_of_a_smaller_depth_does_not_find_it(depth):
    body, wrong = PLANTED[depth]
    steps = launched(body, Policy("pct:1"))[1].steps
    assert share(body, wrong, f"pct:{depth - 1}:{steps}", 60) == 0


def test_pct_finds_nothing_in_a_kernel_that_orders_its_accesses():
    for depth in (1, 2, 3):
        assert share(ORDERED, lambda out: out[:2] != [1, 2], f"pct:{depth}:40", 25) == 0


def test_a_run_of_pct_replays_from_its_seed_and_both_executors_make_it():
    for seed in range(12):
        policy = Policy("pct:3:20", seed)
        once, run = launched(BLINK, policy)
        again, same = launched(BLINK, policy, NativeExecutor)
        assert (once, run.steps) == (again, same.steps)


COPY = """mov.u32 %r1, smem; mov.u32 %r3, 7; st.shared.u32 [%r1], %r3; ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [out]; cp.async.ca.shared.global [%r1], [%rd1], 4; {wait}
    bra NEXT; NEXT: ld.shared.u32 %r2, [%r1]; st.global.u32 [%rd2], %r2;"""


def copied(policy: Policy, wait: str) -> KernelRun:
    """One lane copies an element and reads it; fails if it is not there yet."""
    x, out = np.array([5], np.uint32), np.zeros(1, np.uint32)
    body = module("setp.ne.u32 %p1, %lane, 0; @%p1 ret;" + COPY.format(wait=wait),
                  [".param .u64 x", ".param .u64 out"])  # fmt: skip
    run = launch_kernel(
        body, Extent(dynamic_shared_bytes=16), [Tensor.of(x, "x"), Tensor.of(out, "out")],
        policy=policy,
    )  # fmt: skip
    assert out[0] == 5
    return run


def test_asynchronous_engines_are_agents_too():
    """A copy that is not awaited is late in about every second schedule of depth 1."""
    late = 0
    for seed in range(60):
        try:
            copied(Policy("pct:1", seed), "")
        except AssertionError:
            late += 1
        copied(Policy("pct:1", seed), "cp.async.wait_all;")
    assert 15 <= late <= 45


# The explorer


def checked(body: tuple[str, str], right):
    def run(policy: Policy) -> Statistics:
        out, run = launched(body, policy)
        assert right(out), out
        return run

    return run


def test_what_needs_one_delay_is_found_with_one_and_not_with_none():
    run = checked(LOST, lambda out: 2 in out[:2])
    none = explore(run, delays=0)
    assert (none.schedules, none.failures, none.is_complete) == (1, (), True)
    one = explore(run, delays=1)
    assert one.failures
    assert one.is_complete
    for failure in one.failures:
        assert failure.policy.name.count(":") == 1
        with pytest.raises(AssertionError):
            run(failure.policy)
    first = explore(run, delays=1, stop_at_first=True)
    assert first.failures == first.failures[:1]
    assert not first.is_complete


def test_the_mended_kernel_fails_under_no_schedule_within_the_bound():
    found = explore(checked(ORDERED, lambda out: out[:2] == [1, 2]), delays=2)
    assert found.is_complete
    assert not found.failures
    assert found.schedules > 30


def test_what_needs_three_delays_is_found_with_three_and_not_with_two():
    run = checked(BLINK, lambda out: out[:2] != [1, 2])
    two = explore(run, delays=2)
    assert two.is_complete
    assert not two.failures
    three = explore(run, delays=3, stop_at_first=True)
    assert three.failures[0].policy.name.count(":") == 3


def test_a_late_copy_needs_a_delay():
    assert not explore(functools.partial(copied, wait="cp.async.wait_all;"), delays=3).failures
    assert explore(functools.partial(copied, wait=""), delays=1).failures


def test_an_exploration_that_is_cut_short_says_so():
    found = explore(checked(LOST, lambda out: True), delays=2, most_schedules=10)
    assert (found.schedules, found.is_complete) == (10, False)


def test_a_deadlock_is_a_failure():
    body = ("bar.sync 1, 64;", "ret;")
    found = explore(lambda policy: launched(body, policy)[1], delays=1)
    assert [type(failure.error) for failure in found.failures] == [Deadlock]


@pytest.mark.parametrize(
    "name", ["pct:0", "pct:2:x", "pct:1:2:3", "delay:-1", "fair:3", "lazy", "pct:"]
)
def test_parameters_out_of_their_limits_are_refused(name):
    with pytest.raises(ValueError, match="policy"):
        Policy(name)


def test_a_negative_bound_is_refused():
    with pytest.raises(ValueError, match="delays -1"):
        explore(lambda policy: launched(ORDER, policy)[1], delays=-1)
