"""Local memory: every lane's own bytes, through local and generic addresses."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import OutOfBounds, Trap, Uninitialised
from tests.simulator.ptx_text import failure, random, run, store

DEPOT = ".local .align 16 .b8 first[24]; .local .align 16 .b8 depot[64];\n"


@pytest.mark.parametrize("generic", [False, True])
def test_each_lane_reads_what_it_wrote(generic):
    """Lanes index by their own numbers, so that one lane's array cannot pass for another's."""
    values = random((32,), "u4")
    space = "" if generic else ".local"
    out = np.zeros(32, np.uint32)
    run(
        DEPOT
        + f"""
        mov.b64 %rd1, depot; {"cvta.local.u64 %rd1, %rd1;" if generic else ""}
        ld.param.u64 %rd5, [x]; mul.wide.u32 %rd6, %lane, 4; add.u64 %rd5, %rd5, %rd6;
        ld.global.u32 %r1, [%rd5];
        and.b32 %r2, %lane, 15; mul.wide.u32 %rd2, %r2, 4; add.u64 %rd3, %rd1, %rd2;
        st{space}.u32 [%rd3], %r1;
        xor.b32 %r3, %r1, -1; st{space}.u8 [%rd3+1], %r3;
        ld{space}.u32 %r4, [%rd3];"""
        + store("%r4"),
        {"x": values, "out": out},
    )
    expected = values.copy()
    expected.view(np.uint8)[1::4] = ~expected.view(np.uint8)[0::4]
    assert np.array_equal(out, expected)


def test_vectors_and_masks():
    """Odd lanes store over what all have stored."""
    out = np.zeros(64, np.uint32)
    run(
        DEPOT
        + """
        mov.b64 %rd1, depot; add.u32 %r1, %lane, 100;
        st.local.v2.b32 [%rd1+8], {%lane, %r1};
        and.b32 %r2, %lane, 1; setp.ne.u32 %p1, %r2, 0;
        @%p1 st.local.v4.b32 [%rd1], {7, 8, 9, 10};
        ld.local.v2.b32 {%r3, %r4}, [%rd1+8];
        ld.param.u64 %rd5, [out]; mul.wide.u32 %rd6, %lane, 8; add.u64 %rd5, %rd5, %rd6;
        st.global.v2.u32 [%rd5], {%r3, %r4};""",
        {"out": out},
    )
    lanes = np.arange(32)
    odd = lanes % 2 == 1
    expected = np.stack([np.where(odd, 9, lanes), np.where(odd, 10, lanes + 100)], axis=1)
    assert np.array_equal(out.reshape(32, 2), expected)


def test_what_is_wrong():
    place = DEPOT + "mov.b64 %rd1, depot;"
    error = failure(
        Uninitialised, place + "st.local.u32 [%rd1], %lane; ld.local.u32 %r1, [%rd1+4];"
    )
    assert "local[36]" in error.message
    failure(OutOfBounds, place + "ld.local.u32 %r1, [%rd1+64];")
    failure(Trap, place + "st.local.u32 [%rd1+2], %lane;")


def test_nothing_is_left_for_the_next_cta():
    """Each CTA's threads begin with local memory that nobody has written."""
    body = (
        DEPOT
        + """
        mov.b64 %rd1, depot; mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0;
        @%p1 st.local.u32 [%rd1], %lane;
        ld.local.u32 %r2, [%rd1];"""
    )
    assert failure(Uninitialised, body, grid=2).location.cta == (1, 0, 0)
