"""Time to read and decode PTX, and warp-instructions a second: printed, never gated."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from simulator.decode import decode
from simulator.launch import Extent, KernelRun, Tensor, launch_kernel
from simulator.ptx.parser import parse

EXECUTORS = ("interpreter", "native")
THREADS = 128
STEPS = 200

HEADER = """.version 8.8
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .u64 x, .param .u32 steps) {
    .reg .pred %p<2>; .reg .b32 %r<20>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [x]; ld.param.u32 %r1, [steps];
    mov.u32 %r2, %tid.x; mul.wide.u32 %rd2, %r2, 4; add.u64 %rd1, %rd1, %rd2;
    ld.global.u32 %r3, [%rd1]; mov.u32 %r4, 0; mov.u32 %r5, smem; shl.b32 %r6, %r2, 2;
    add.u32 %r5, %r5, %r6; st.shared.u32 [%r5], %r3;
LOOP:
"""
FOOTER = """
    add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, %r1; @%p1 bra LOOP;
    st.global.u32 [%rd1], %r3;
    ret;
}
"""
BODIES = {
    "alu": """
        mad.lo.u32 %r3, %r3, 1664525, 1013904223; xor.b32 %r7, %r3, %r4; shr.u32 %r7, %r7, 3;
        add.u32 %r3, %r3, %r7; fma.rn.f32 %r8, %r8, 0f3F000000, 0f3F800000; min.u32 %r9, %r3, %r7;
        sub.u32 %r3, %r3, %r9; and.b32 %r10, %r3, 255; add.u32 %r3, %r3, %r10;
    """,
    "memory": """
        ld.shared.u32 %r7, [%r5]; add.u32 %r7, %r7, 1; st.shared.u32 [%r5], %r7;
        ld.global.u32 %r8, [%rd1]; add.u32 %r8, %r8, %r7; st.global.u32 [%rd1], %r8;
    """,
}


def text(body: str, copies: int = 1) -> str:
    return HEADER + BODIES[body] * copies + FOOTER


def run(body: str, executor: str) -> KernelRun:
    x = Tensor.of(np.arange(THREADS, dtype=np.uint32), "x")
    extent = Extent(block=(THREADS, 1, 1), dynamic_shared_bytes=4 * THREADS)
    return launch_kernel(text(body), extent, [x, STEPS], executor=executor)


@pytest.mark.parametrize("copies", [1, 200])
def test_parse(benchmark: BenchmarkFixture, copies: int) -> None:
    source = text("alu", copies)
    module = benchmark(parse, source)
    benchmark.extra_info["lines"] = source.count("\n")
    assert len(module.kernels["k"].body) > 9 * copies


@pytest.mark.parametrize("copies", [1, 200])
def test_decode(benchmark: BenchmarkFixture, copies: int) -> None:
    kernel = parse(text("alu", copies)).kernels["k"]
    program = benchmark(decode, kernel)
    assert sum(len(block.operations) for block in program.blocks) > 9 * copies


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("body", BODIES)
def test_run(
    benchmark: BenchmarkFixture, body: str, executor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(body, executor)  # native code is compiled once and kept
    found = benchmark(run, body, executor)
    rate = found.warp_instructions / benchmark.stats.stats.min
    benchmark.extra_info["warp_instructions_per_second"] = rate
    with capsys.disabled():
        sys.stdout.write(f"\n{body}, {executor}: {rate / 1e6:.2f} M warp-instructions a second\n")
