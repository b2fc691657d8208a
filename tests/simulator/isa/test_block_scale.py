"""tcgen05.cp: what comes to lie where in TMEM, and that MMAs after it see it."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import Trap
from tests.simulator.ptx_text import failure, random, run

QUARTERS = {
    "128x256b": (8, (0, 32, 64, 96)),
    "128x128b": (4, (0, 32, 64, 96)),
    "64x128b.warpx2::02_13": (4, (0, 32, 0, 32)),
    "64x128b.warpx2::01_23": (4, (0, 0, 32, 32)),
    "32x128b.warpx4": (4, (0, 0, 0, 0)),
}
"""Columns, and the row that each quarter of the lanes begins with, from the names."""

FILL = """
    mov.u32 %r1, smem; ld.param.u64 %rd1, [x]; mul.wide.u32 %rd2, %t2, 32; add.u64 %rd1, %rd1, %rd2;
    ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd1];
    ld.global.v4.u32 {%r14, %r15, %r16, %r17}, [%rd1+16];
    mad.lo.u32 %r2, %t2, 16, %r1; st.shared.v4.u32 [%r2], {%r10, %r11, %r12, %r13};
    st.shared.v4.u32 [%r2+2048], {%r14, %r15, %r16, %r17};
    fence.proxy.async.shared::cta;
    setp.lt.u32 %p1, %t2, 32; @!%p1 bra READY;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+4096], 32;
    READY: setp.eq.u32 %p2, %t2, 0; @%p2 mbarrier.init.shared.b64 [%r1+4104], 1;
    bar.sync 0; ld.shared.u32 %r3, [%r1+4096];
"""
COPY = """
    @!%p2 bra COPIED;
    shr.u32 %r4, %r1, 4; cvt.u64.u32 %rd3, %r4; or.b64 %rd3, %rd3, {layout};
    tcgen05.cp.cta_group::{group}.{shape} [%r3], %rd3;
    tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster.b64 [%r1+4104];
    COPIED: mbarrier.try_wait.parity.shared.b64 %p3, [%r1+4104], 0; @!%p3 bra COPIED;
"""
READ = """
    and.b32 %r5, %t2, 96; shl.b32 %r5, %r5, 16; add.u32 %r5, %r5, %r3;
    tcgen05.ld.sync.aligned.32x32b.x{count}.b32 {registers}, [%r5];
    tcgen05.wait::ld.sync.aligned;
    mul.wide.u32 %rd4, %t2, {span}; ld.param.u64 %rd5, [out]; add.u64 %rd5, %rd5, %rd4;
"""
LAYOUT = 2048 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46
"""8 rows by 16 bytes lie together; 2,048 bytes further the next 16 bytes of each row."""
END = "bar.sync 0; @!%p1 bra DONE; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r3, 32; DONE:"


@pytest.mark.parametrize("shape", QUARTERS)
def test_a_copy_puts_rows_into_lanes(shape):
    columns, quarters = QUARTERS[shape]
    data, out = random((128, 8), "u4"), np.zeros((128, columns), np.uint32)
    names = [f"%r{20 + i}" for i in range(columns)]
    body = FILL + COPY.format(group=1, shape=shape, layout=LAYOUT)
    body += READ.format(count=columns, registers="{" + ", ".join(names) + "}", span=4 * columns)
    body += "".join(f"st.global.u32 [%rd5+{4 * i}], {name};" for i, name in enumerate(names))
    run(body + END, {"x": data, "out": out}, threads=128, shared_bytes=4112)
    expected = [data[quarters[lane // 32] + lane % 32, :columns] for lane in range(128)]
    assert np.array_equal(out, np.stack(expected))


def test_a_pair_needs_a_cluster():
    body = FILL + COPY.format(group=2, shape="32x128b.warpx4", layout=LAYOUT) + END
    error = failure(Trap, body, {"x": random((128, 8), "u4")}, threads=128, shared_bytes=4112)
    assert "the last of its cluster" in error.message
