"""grid_order: global memory before and after the wait for the grid before."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.checks import Checks
from simulator.launch import Extent, Tensor, launch_kernel
from tests.simulator.ptx_text import address, aligned, module
from tests.simulator.sanitizer.faulty import sentence
from tests.simulator.test_bulk_copy import load_box, tensor_map

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


def boxes(before: str, between: str) -> list[str]:
    """A box is loaded by a bulk copy and stored by another one."""
    out = aligned((64,), "uint32")
    body = f"""
        {before}
        {load_box((0,), 128)}
        {between}
        @%p1 bra END;
        cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%rd1, {{32}}], [%r1];
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        END: mov.b32 %r9, 0;
    """
    result = launch_kernel(
        module(body, [".param .align 64 .b8 map[128]", ".param .u64 out"]),
        Extent(block=(64, 1, 1), dynamic_shared_bytes=1024),
        [tensor_map(out, (32,)), Tensor.of(out, "out")],
        checks=Checks(grid_order=True, on_finding="collect"),
        may_start_early=True,
    )
    return [str(finding) for finding in result.findings]


def test_bulk_copies_of_boxes_are_accesses_too():
    assert boxes(WAIT, "") == []
    (load,) = boxes("", WAIT)
    assert "  read by the bulk loads" in load
    load, store = boxes("", "")
    assert "  write by the bulk stores" in store
