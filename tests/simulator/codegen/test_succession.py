"""Clusters that native code begins by itself: each starts as if nothing had run before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.codegen.image import Layout
from simulator.errors import ProgramError, Trap, Uninitialised
from simulator.launch import Extent, Tensor, launch_kernel
from simulator.machine.cluster import Cluster
from tests.simulator.ptx_text import module, run

CTAS = 600

EXCHANGE = """
    ld.param.u64 %rd1, [out];
    mul.wide.u32 %rd2, %idx, 4; add.s64 %rd1, %rd1, %rd2;
    mov.u32 %r1, smem; shl.b32 %r2, %t2, 2; add.u32 %r3, %r1, %r2;
    mad.lo.u32 %r4, %t0, 1009, %t2; st.shared.b32 [%r3], %r4;
    bar.sync 0;
    xor.b32 %r5, %r2, 128; add.u32 %r5, %r5, %r1; ld.shared.b32 %r6, [%r5];
    setp.ge.u32 %p2, %lane, 20; @%p2 exit;
    st.global.b32 [%rd1], %r6;
"""


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clusters native code has begun, each time that Python follows."""
    counted: list[int] = []
    follow = Cluster.follow

    def noted(self: Cluster, number: int) -> None:
        counted.append(number)
        follow(self, number)

    monkeypatch.setattr(Cluster, "follow", noted)
    return counted


@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_every_cluster_of_a_long_grid_runs(cluster: int, begun: list[int]) -> None:
    out = np.full((CTAS, 64), 0xFFFF, np.uint32)
    result = run(EXCHANGE, {"out": out}, threads=64, grid=CTAS, cluster=cluster, shared_bytes=256)
    thread = np.arange(64)
    expected = np.arange(CTAS)[:, None] * 1009 + (thread ^ 32)
    lane = thread % 32
    assert (out == np.where(lane < 20, expected, 0xFFFF)).all()
    assert sum(begun) > 0.9 * (CTAS // cluster)
    assert result.warp_instructions > 10 * CTAS


def test_special_registers_tell_clusters_of_a_grid_apart(begun: list[int]) -> None:
    names = [
        f"{base}.{axis}" for base in ("%ctaid", "%clusterid", "%cluster_ctaid") for axis in "xyz"
    ]
    names.append("%cluster_ctarank")
    lines = [f"mov.u32 %r{10 + i}, {name};" for i, name in enumerate(names)]
    lines += [f"st.global.b32 [%rd1+{4 * i}], %r{10 + i};" for i in range(len(names))]
    place = """ld.param.u64 %rd1, [out]; mov.u32 %r1, %ctaid.y; mov.u32 %r2, %ctaid.z;
        mad.lo.u32 %r3, %r2, 2, %r1; mad.lo.u32 %r3, %r3, 4, %t0;
        mul.wide.u32 %rd2, %r3, 40; add.s64 %rd1, %rd1, %rd2;"""
    text = module("\n".join([place, *lines]), [".param .u64 out"])
    found = []
    for executor in ("interpreter", "native"):
        out = np.zeros((3, 2, 4, len(names)), np.uint32)
        extent = Extent((4, 2, 3), (32, 1, 1), (2, 1, 1))
        launch_kernel(text, extent, [Tensor.of(out, "out")], executor=executor)
        found.append(out)
    z, y, x = np.indices((3, 2, 4))
    expected = [x, y, z, x // 2, y, z, x % 2, 0 * y, 0 * z, x % 2]
    assert (found[0] == np.stack(expected, axis=-1)).all()
    assert (found[1] == found[0]).all()
    assert begun


def test_without_the_table_of_special_registers_the_above_fails(
    monkeypatch: pytest.MonkeyPatch, begun: list[int]
) -> None:
    monkeypatch.setattr(Layout, "move_specials", lambda *_: None)
    out = np.zeros((CTAS, 32), np.uint32)
    body = """ld.param.u64 %rd1, [out]; mov.u32 %r1, %ctaid.x;
        mad.wide.u32 %rd1, %t0, 4, %rd1; st.global.b32 [%rd1], %r1;"""
    text = module(body, [".param .u64 out"])
    launch_kernel(text, Extent((8, 1, 1)), [Tensor.of(out, "out")], executor="native")
    assert begun
    assert out.ravel()[:8].tolist() != list(range(8))


def test_registers_begin_with_zeros(begun: list[int]) -> None:
    out = np.full((50, 32), 5, np.uint32)
    run(
        """ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %idx, 4; add.s64 %rd1, %rd1, %rd2;
        and.b32 %r9, %t0, 1; setp.eq.u32 %p1, %r9, 0; @%p1 bra SET; bra END;
        SET: mov.u32 %r1, 77; END: st.global.b32 [%rd1], %r1;""",
        {"out": out},
        grid=50,
    )
    assert begun
    assert (out == np.where(np.arange(50)[:, None] % 2, 0, 77)).all()


LATE = "setp.ne.u32 %p1, %t0, 37; mov.u32 %r1, smem; "
FAULTS: dict[str, tuple[str, type[Exception], str]] = {
    "shared memory that only earlier CTAs have written": (
        LATE + "@%p1 st.shared.b32 [%r1], %lane; ld.shared.b32 %r2, [%r1];",
        Uninitialised,
        "cta (37,0,0)",
    ),
    "a trap": (LATE + "@%p1 bra END; trap; END:", Trap, "cta (37,0,0)"),
    "an endless loop": (LATE + "AGAIN: @!%p1 bra AGAIN;", Trap, "limit of warp-instructions"),
    "a barrier that waits for more warps than there are": (
        LATE + "@%p1 bra END; bar.sync 1, 64; END:",
        ProgramError,
        "cta (37,0,0)",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_late_cluster_is_told_as_by_the_interpreter(
    fault: str, begun: list[int]
) -> None:
    body, kind, words = FAULTS[fault]
    with pytest.raises(kind) as caught:
        run(body, grid=60, shared_bytes=64, instruction_limit=20_000)
    assert words.lower() in str(caught.value).lower()
    assert sum(begun) == 37


def counts(text: str, executor: Any) -> tuple[int, int]:
    extent = Extent((90, 1, 1), (96, 1, 1), (3, 1, 1), 0)
    result = launch_kernel(text, extent, [], executor=executor)
    return result.warp_instructions, result.polls


def test_counts_and_cluster_barriers_are_the_interpreters(
    begun: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some lanes of every third warp leave before the barrier of the cluster."""
    text = module("""mov.u32 %r1, %warpid; setp.eq.u32 %p1, %r1, 2; setp.gt.u32 %p2, %lane, 9;
        and.pred %p1, %p1, %p2; @%p1 exit;
        barrier.cluster.arrive; barrier.cluster.wait;""")
    expected = counts(text, "interpreter")
    assert counts(text, "native") == expected
    assert begun
    nothing = property(lambda _: 0, lambda *_: None)
    monkeypatch.setattr(Cluster, "past_instructions", nothing, raising=False)
    assert counts(text, "native") != expected
