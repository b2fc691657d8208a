"""Which blocks and branch edges a launch executed, by a kernel whose paths are known by hand."""

import numpy as np
import pytest

from simulator.coverage import Coverage, merged, never_executed
from simulator.launch import Extent, Tensor, launch_kernel
from tests.simulator.ptx_text import module

# Blocks in order: 0 decides, 1 falls through, 2 is where the branch goes; 3 leaves.
TEXT = module(
    """ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [bound];
    mov.u32 %r2, %tid.x;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra OTHER;
    st.global.u32 [%rd1], 1;
    bra END;
OTHER:
    st.global.u32 [%rd1], 2;
END:
    st.global.u32 [%rd1], 3;""",
    [".param .u64 data", ".param .u32 bound"],
)
DECIDES, FALLS, OTHER, END, EXIT = range(5)


def covered(bound: int, executor: str = "native", threads: int = 32) -> Coverage:
    data = np.zeros(1, np.uint32)
    extent = Extent(block=(threads, 1, 1))
    arguments = [Tensor.of(data, "data"), bound]
    run = launch_kernel(TEXT, extent, arguments, executor=executor, coverage=True)
    assert run.coverage is not None
    return run.coverage


def test_the_lines_of_what_ran():
    ran = {TEXT.splitlines()[line - 1].strip() for line in covered(32).ptx_lines}
    assert {"@%p1 bra OTHER;", "st.global.u32 [%rd1], 1;", "st.global.u32 [%rd1], 3;"} <= ran
    assert "st.global.u32 [%rd1], 2;" not in ran


@pytest.mark.parametrize("executor", ["native", "interpreter"])
@pytest.mark.parametrize(
    ("bound", "blocks", "edges"),
    [
        (32, {DECIDES, FALLS, END}, {(DECIDES, FALLS), (FALLS, END), (END, EXIT)}),
        (0, {DECIDES, OTHER, END}, {(DECIDES, OTHER), (OTHER, END), (END, EXIT)}),
        (
            16,
            {DECIDES, FALLS, OTHER, END},
            {(DECIDES, FALLS), (DECIDES, OTHER), (FALLS, END), (OTHER, END), (END, EXIT)},
        ),
    ],
    ids=["all lanes fall through", "all lanes branch", "lanes diverge"],
)
def test_what_ran_is_what_the_bound_lets_run(
    executor: str, bound: int, blocks: set[int], edges: set[tuple[int, int]]
) -> None:
    found = covered(bound, executor)
    assert found.blocks == blocks
    assert found.edges == edges
    assert (found.num_blocks, found.num_edges) == (4, 5)


def test_each_launch_counts_from_zero() -> None:
    assert covered(16) != covered(32) == covered(32)


def test_warps_that_go_different_ways_cover_both() -> None:
    assert covered(32, threads=64) == covered(16)


def test_a_launch_that_is_not_asked_says_nothing() -> None:
    data = np.zeros(1, np.uint32)
    run = launch_kernel(TEXT, Extent(), [Tensor.of(data, "data"), 5])
    assert run.coverage is None


# 2. What it says of lines

SOURCES = """
.loc 1 10 3
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [bound];
    mov.u32 %r2, %tid.x;
.loc 1 11 3
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra OTHER;
.loc 1 12 5
    st.global.u32 [%rd1], 1;
    bra END;
OTHER:
.loc 1 14 5
    st.global.u32 [%rd1], 2;
$L__tmp7:
    st.global.u32 [%rd1+4], 2;
END:
.loc 1 15 3
    st.global.u32 [%rd1], 3;"""
WITH_LINES = module(SOURCES, [".param .u64 data", ".param .u32 bound"]) + '\n.file 1 "k.py"\n'


def with_lines(bound: int) -> Coverage:
    data = np.zeros(2, np.uint32)
    run = launch_kernel(WITH_LINES, Extent(), [Tensor.of(data, "data"), bound], coverage=True)
    assert run.coverage is not None
    return run.coverage


@pytest.mark.parametrize(("bound", "line"), [(32, "k.py:14"), (0, "k.py:12")])
def test_the_side_that_no_lane_takes_is_named_by_its_source(bound: int, line: str) -> None:
    coverage = with_lines(bound)
    (region,) = coverage.uncovered
    assert region.sources == (line,)
    assert region.text.startswith("st.global.u32 [%rd1]")
    texts = WITH_LINES.splitlines()
    assert "st.global" in texts[region.ptx_lines[0] - 1]
    assert never_executed([coverage]) == (line,)


def test_several_launches_cover_what_each_of_them_does() -> None:
    one, other = with_lines(32), with_lines(0)
    both = merged(one, other)
    assert both.uncovered == both.one_way == ()
    assert never_executed([one, other]) == never_executed([both]) == ()
    assert both == with_lines(16)


def test_a_label_that_nothing_branches_to_cuts_no_block() -> None:
    assert with_lines(16).num_blocks == covered(16).num_blocks


def test_coverage_of_two_programs_is_not_added() -> None:
    body = "setp.eq.u32 %p1, %lane, 0; @%p1 bra END; mov.u32 %r1, 1; END:"
    other = launch_kernel(module(body), Extent(), [], coverage=True).coverage
    with pytest.raises(ValueError, match="3 blocks, cannot be added to that of k, 4 blocks"):
        merged(with_lines(16), other)


def test_a_branch_that_never_goes_back_is_told() -> None:
    """Both sides of the branch run, but nobody repeats the loop."""
    body = """ld.param.u32 %r1, [bound]; mov.u32 %r2, 0;
    AGAIN: add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, %r1; @%p1 bra AGAIN;"""
    text = module(body, [".param .u32 bound"])
    once, twice = (launch_kernel(text, Extent(), [n], coverage=True).coverage for n in (1, 2))
    (branch,) = once.one_way
    assert (branch.never, branch.text) == ("taken", "@%p1 bra AGAIN;")
    assert twice.one_way == ()
