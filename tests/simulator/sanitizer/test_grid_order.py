"""grid_order: global memory before and after the wait for the grid before."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.checks import Checks
from simulator.launch import Extent, Tensor, launch_kernel
from tests.simulator.ptx_text import address, module
from tests.simulator.sanitizer.faulty import sentence

WAIT = "griddepcontrol.wait;"
ONE_WARP_WAITS = "setp.ge.u32 %p1, %t2, 32; @!%p1 griddepcontrol.wait;"
STORE = f"{address('out')} st.global.b32 [%at0], %t2;"
LOAD = f"{address('out')} ld.global.b32 %r1, [%at0];"
COPY = f"""mov.u32 %r2, smem; {address("out")}
    cp.async.ca.shared.global [%r2], [%at0], 4; cp.async.wait_all;"""


def found(body: str, *, early: bool = True) -> list[str]:
    out = np.arange(64, dtype=np.uint32)
    result = launch_kernel(
        module(body, [".param .u64 out"]),
        Extent(block=(64, 1, 1), dynamic_shared_bytes=64),
        [Tensor.of(out, "out")],
        checks=Checks(grid_order=True, on_finding="collect"),
        may_start_early=early,
    )
    return [str(finding) for finding in result.findings]


@pytest.mark.parametrize("access", [STORE, LOAD, COPY])
def test_after_the_wait_all_is_in_order(access):
    assert found(WAIT + access) == []


@pytest.mark.parametrize(("access", "what"), [(STORE, "write"), (LOAD, "read"), (COPY, "read")])
def test_an_access_before_the_wait_is_found(access, what):
    (one,) = found(access + WAIT)
    assert sentence(one) == (
        "a grid that may start early touches global memory before griddepcontrol.wait"
    )
    assert f"  {what} by " in one
    assert "2 times in all" in one


def test_a_grid_that_starts_after_the_one_before_need_not_wait():
    assert found(STORE, early=False) == []


def test_a_barrier_puts_the_others_in_order():
    assert found(ONE_WARP_WAITS + "bar.sync 0;" + STORE) == []
    (one,) = found(ONE_WARP_WAITS + STORE + "bar.sync 0;")
    assert "by warp 1 of cta 0" in one


def test_parameters_are_no_global_memory():
    assert found("ld.param.u64 %rd1, [out];" + WAIT) == []
