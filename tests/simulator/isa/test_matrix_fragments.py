"""ldmatrix and stmatrix, against the figures of the PTX ISA read one element at a time."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import Trap
from tests.simulator.ptx_text import failure, load, run, store

FORMS = [(count, trans) for count in (1, 2, 4) for trans in (False, True)]
FILL = """mov.u32 %r1, smem; shl.b32 %r2, %lane, 4; add.u32 %r3, %r1, %r2;
    ld.param.u64 %rd1, [x]; cvt.u64.u32 %rd2, %r2; add.u64 %rd3, %rd1, %rd2;
    ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd3]; st.shared.v4.u32 [%r3], {%r4, %r5, %r6, %r7};
    bar.warp.sync -1;"""


def registers(first: int, count: int) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


def element(lane: int, which: int, trans: bool) -> tuple[int, int]:
    """Row and column, in the memory, of the lane's first or second element of a matrix."""
    row, column = lane // 4, 2 * (lane % 4) + which
    return (column, row) if trans else (row, column)


@pytest.mark.parametrize(("count", "trans"), FORMS)
def test_ldmatrix(count, trans):
    """The rows are taken from 32 places in a random order: each lane's address counts."""
    rng = np.random.default_rng(count)
    x = rng.integers(0, 2**16, (32, 8), np.uint16)
    rows = rng.permutation(32).astype(np.uint32)
    out = [np.zeros(32, np.uint32) for _ in range(count)]
    body = (
        FILL
        + load("%r8", "rows")
        + f"""
        shl.b32 %r8, %r8, 4; add.u32 %r8, %r8, %r1;
        ldmatrix.sync.aligned.m8n8.x{count}{".trans" if trans else ""}.shared.b16
        {registers(10, count)}, [%r8];"""
    )
    body += "".join(store(f"%r{10 + j}", f"out{j}") for j in range(count))
    arguments = {f"out{j}": array for j, array in enumerate(out)}
    run(body, {"x": x, "rows": rows, **arguments}, shared_bytes=512)
    for j in range(count):
        for lane in range(32):
            for which in range(2):
                row, column = element(lane, which, trans)
                value = int(out[j][lane]) >> 16 * which & 0xFFFF
                assert value == x[rows[8 * j + row], column]


@pytest.mark.parametrize(("count", "trans"), FORMS)
def test_stmatrix(count, trans):
    """Rows that no lane names stay as they are."""
    rng = np.random.default_rng(10 + count)
    x, out = rng.integers(0, 2**16, (32, 8), np.uint16), np.zeros((32, 8), np.uint16)
    rows = rng.permutation(32).astype(np.uint32)
    sources = {f"in{j}": rng.integers(0, 2**32, 32, np.uint32) for j in range(count)}
    body = FILL + load("%r8", "rows")
    body += "".join(load(f"%r{10 + j}", f"in{j}") for j in range(count))
    body += f"""shl.b32 %r8, %r8, 4; add.u32 %r8, %r8, %r1;
        stmatrix.sync.aligned.m8n8.x{count}{".trans" if trans else ""}.shared.b16
        [%r8], {registers(10, count)}; bar.warp.sync -1;
        ld.shared.v4.u32 {{%r4, %r5, %r6, %r7}}, [%r3]; ld.param.u64 %rd1, [out];
        add.u64 %rd3, %rd1, %rd2; st.global.v4.u32 [%rd3], {{%r4, %r5, %r6, %r7}};"""
    run(body, {"x": x, "rows": rows, "out": out, **sources}, shared_bytes=512)
    expected = x.copy()
    for j in range(count):
        for lane in range(32):
            for which in range(2):
                row, column = element(lane, which, trans)
                value = int(sources[f"in{j}"][lane]) >> 16 * which & 0xFFFF
                expected[rows[8 * j + row], column] = value
    assert np.array_equal(out, expected)


def test_rows_are_multiples_of_16_bytes():
    body = (
        FILL
        + """add.u32 %r3, %r3, 8;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%r3];"""
    )
    error = failure(Trap, body, {"x": np.zeros((32, 8), np.uint16)}, shared_bytes=1024)
    assert "16 bytes at an address that is not a multiple of 16" in str(error)
