"""What a launch executed, counted: against counts made by hand for a kernel with a loop."""

import numpy as np
import pytest

from simulator.launch import Extent, KernelRun, Tensor, launch_kernel

LOOP = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 times) {
    .reg .b32 %r<6>; .reg .b64 %rd<4>; .reg .f32 %f<4>; .reg .pred %p<3>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [times];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd1, %rd1, %rd2;
    mov.u32 %r3, 0;
AGAIN:
    ld.global.f32 %f1, [%rd1];
    ex2.approx.ftz.f32 %f2, %f1;
    st.global.f32 [%rd1], %f2;
    add.s32 %r3, %r3, 1;
    setp.lt.s32 %p1, %r3, %r1;
    @%p1 bra AGAIN;
    setp.ge.s32 %p2, %r2, 16;
    @%p2 bra OVER;
    ld.global.f32 %f3, [%rd1];
    rcp.approx.ftz.f32 %f3, %f3;
OVER:
    ret;
}
"""
TIMES, WARPS = 5, 2


def run(**options: object) -> KernelRun:
    room = np.zeros(32 * WARPS + 8, np.float32)
    begin = -room.ctypes.data % 32 // 4  # a sector begins there
    extent = Extent(block=(32 * WARPS, 1, 1))
    values = Tensor.of(room[begin : begin + 32 * WARPS], "out")
    return launch_kernel(LOOP, extent, [values, TIMES], **options)


@pytest.fixture(scope="module")
def profiled() -> KernelRun:
    return run(profile=True)


def test_every_instruction_is_counted_as_often_as_warps_executed_it(profiled: KernelRun) -> None:
    executed = {line.number: line.executed for line in profiled.profile.lines}
    lines = {n: text.strip() for n, text in enumerate(LOOP.splitlines(), start=1)}
    for number, text in lines.items():
        if text.startswith(("ex2", "st.global", "add.s32")):
            assert executed[number] == TIMES * WARPS
        if text.startswith(("mov", "mul", "add.s64", "setp.ge")):
            assert executed[number] == WARPS
        if text.startswith("rcp"):  # warp 1 has no lane below 16
            assert executed[number] == 1
    assert profiled.profile.warp_instructions == profiled.warp_instructions


def test_special_functions_are_counted_lane_by_lane(profiled: KernelRun) -> None:
    assert profiled.profile.special_functions == 32 * (TIMES * WARPS + 1)


def test_global_memory_is_counted_in_sectors(profiled: KernelRun) -> None:
    # A warp's 32 floats are four sectors of 32 bytes, 16 lanes' are two.
    assert profiled.profile.bytes == {
        "global_read": 128 * TIMES * WARPS + 64,
        "global_written": 128 * TIMES * WARPS,
    }


def test_opcodes_add_up(profiled: KernelRun) -> None:
    opcodes = profiled.profile.by_opcode
    assert opcodes["ex2"] == TIMES * WARPS
    assert opcodes["bra"] == TIMES * WARPS + WARPS
    assert opcodes["exit"] == 3  # once for each warp, and once more where lanes parted
    assert opcodes.total() == profiled.warp_instructions


def test_nothing_is_counted_that_was_not_asked_for() -> None:
    assert run().profile is None
    assert run().warp_instructions == run(profile=True).warp_instructions


def test_native_code_cannot_count() -> None:
    with pytest.raises(ValueError, match="profile: counted by executor 'interpreter' alone"):
        run(profile=True, executor="native")
