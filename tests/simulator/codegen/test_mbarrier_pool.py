"""mbarrier objects that native code makes: the interpreter's, also where Python has to go on."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.codegen.state import MBARRIER_POOL
from simulator.errors import ProgramError
from tests.simulator.ptx_text import run

MAKE = """mov.u32 %r1, smem; mov.u32 %r9, 0; setp.ne.u32 %p1, %t2, 0; @%p1 bra MADE;
    NEXT: mbarrier.init.shared.b64 [%r1], {arrivals};
    add.u32 %r1, %r1, 8; add.u32 %r9, %r9, 1; setp.lt.u32 %p2, %r9, {number}; @%p2 bra NEXT;
    MADE: bar.sync 0; mov.u32 %r1, smem; add.u32 %r2, %r1, {last};
"""
USE = """mbarrier.arrive.shared.b64 %rd5, [%r2]; mov.u32 %r7, 0;
    WAIT: mbarrier.try_wait.parity.shared.b64 %p3, [%r2], 0; @!%p3 bra WAIT;
    ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %idx, 8; add.s64 %rd1, %rd1, %rd2;
    st.global.b64 [%rd1], %rd5;
"""


@pytest.mark.parametrize("number", [1, MBARRIER_POOL, MBARRIER_POOL + 3])
def test_objects_of_the_pool_and_beyond_it_count_arrivals(number: int) -> None:
    out = np.full((5, 64), 7, np.uint64)
    body = MAKE.format(arrivals=64, number=number, last=8 * (number - 1)) + USE
    run(body, {"out": out}, threads=64, grid=5, shared_bytes=8 * number)
    assert (out == 0).all()


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ("mbarrier.init.shared.b64 [%r2], 3;", "live object"),
        ("mbarrier.arrive.shared.b64 %rd5, [%r2], 65;", "more than are pending"),
        ("mbarrier.init.shared.b64 [%r2+4], 3;", "not a multiple of 8"),
        ("mbarrier.init.shared.b64 [%r2+8], 3;", "beyond the end"),
        ("WAIT: mbarrier.try_wait.parity.shared.b64 %p3, [%r2], 0; @!%p3 bra WAIT;", "64 of 64"),
        ("mbarrier.inval.shared.b64 [%r2]; mbarrier.arrive.shared.b64 %rd5, [%r2];", "no mbarrier"),
    ],
)
def test_faults_are_told_as_by_the_interpreter(after: str, words: str) -> None:
    """``run`` holds both executors to one message."""
    body = MAKE.format(arrivals=64, number=3, last=16) + "@%p1 bra END;" + after + "END:"
    with pytest.raises(ProgramError, match=words):
        run(body, threads=64, grid=2, shared_bytes=24)


@pytest.mark.parametrize("count", [0, 1 << 20])
def test_a_count_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(ProgramError, match="is not in 1"):
        run(MAKE.format(arrivals=count, number=1, last=0), shared_bytes=8)


def test_each_cluster_begins_without_objects() -> None:
    """The second cluster may make an object where the first left one."""
    body = MAKE.format(arrivals=32, number=2, last=8)
    result = run(body, threads=32, grid=6, cluster=2, shared_bytes=16)
    assert result.warp_instructions > 6
