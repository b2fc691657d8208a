"""Which blocks and branch edges a launch executed, by a kernel whose paths are known by hand."""

import numpy as np
import pytest

from simulator.coverage import Coverage
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
