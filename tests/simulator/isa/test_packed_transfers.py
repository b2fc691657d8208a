"""tcgen05.ld and .st of halves, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simulator.ptx_text import load, run, store

BEGIN = """mov.u32 %r1, smem;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32; ld.shared.u32 %r2, [%r1];"""
END = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32;"
FORM = "sync.aligned.32x32b"


def registers(first: int, count: int) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


@pytest.mark.parametrize("count", [1, 4])
def test_halves_of_two_columns_share_a_register_and_part_again(count):
    """Written whole and read packed; then written unpacked and read whole."""
    rng = np.random.default_rng(count)
    words = [rng.integers(0, 2**32, 32, np.uint32) for _ in range(2 * count)]
    packed, parted = ([np.zeros(32, np.uint32) for _ in range(n)] for n in (count, 2 * count))
    body = BEGIN + "".join(load(f"%r{10 + i}", f"x{i}") for i in range(2 * count))
    body += f"""tcgen05.st.{FORM}.x{2 * count}.b32 [%r2], {registers(10, 2 * count)};
        tcgen05.wait::st.sync.aligned;
        tcgen05.ld.{FORM}.x{count}.pack::16b.b32 {registers(30, count)}, [%r2];
        tcgen05.wait::ld.sync.aligned;
        tcgen05.st.{FORM}.x{count}.unpack::16b.b32 [%r2], {registers(30, count)};
        tcgen05.wait::st.sync.aligned;
        tcgen05.ld.{FORM}.x{2 * count}.b32 {registers(50, 2 * count)}, [%r2];
        tcgen05.wait::ld.sync.aligned; {END}"""
    body += "".join(store(f"%r{30 + i}", f"p{i}") for i in range(count))
    body += "".join(store(f"%r{50 + i}", f"u{i}") for i in range(2 * count))
    run(body, {f"{name}{i}": a for name, arrays in (("x", words), ("p", packed), ("u", parted))
               for i, a in enumerate(arrays)}, shared_bytes=16)  # fmt: skip
    for i in range(count):
        first, second = words[2 * i] % 2**16, words[2 * i + 1] % 2**16
        assert np.array_equal(packed[i], second * np.uint32(2**16) + first)
        assert np.array_equal(parted[2 * i], first)
        assert np.array_equal(parted[2 * i + 1], second)
