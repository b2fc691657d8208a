"""Bank conflicts against a count bank by bank, and bytes against what a kernel's text says."""

from collections import defaultdict

import numpy as np
import pytest

from simulator.checks import Checks
from simulator.launch import Extent, KernelRun, Tensor, launch_kernel
from simulator.traffic import wavefronts
from tests.simulator.ptx_text import address, module

DEGREES = (1, 2, 4, 8, 16, 32)


def profiled(body: str, *, threads: int = 32, shared_bytes: int = 8192, **options) -> KernelRun:
    out = np.zeros(8 * threads, np.uint32)
    return launch_kernel(
        module(body, [".param .u64 out"]),
        Extent(block=(threads, 1, 1), dynamic_shared_bytes=shared_bytes),
        [Tensor.of(out, "out")],
        profile=True,
        checks=Checks(initialisation=False),
        **options,
    )


def strided(words: int, kind: str = "u32") -> str:
    """Each lane stores to and loads from the word ``words`` times its number."""
    return f"""
        mov.u32 %r1, smem; mul.lo.u32 %r2, %lane, {4 * words}; add.u32 %r1, %r1, %r2;
        st.shared.{kind} [%r1], %r2;
        ld.shared.{kind} %r3, [%r1];"""


@pytest.mark.parametrize("degree", DEGREES)
def test_a_stride_of_n_words_has_conflicts_of_degree_n(degree: int) -> None:
    store, load = profiled(strided(degree)).profile.shared.values()
    assert (store.write, load.write) == (True, False)
    for access in (store, load):
        assert (access.degree, access.worst) == (degree, degree)
        assert (access.wavefronts, access.bytes) == (degree, 128)


def test_padding_cures_a_stride_of_32() -> None:
    for access in profiled(strided(33)).profile.shared.values():
        assert access.degree == 1


def test_lanes_that_read_one_word_share_it() -> None:
    body = "mov.u32 %r1, smem; ld.shared.u32 %r3, [%r1];"
    (access,) = profiled(body).profile.shared.values()
    assert (access.degree, access.wavefronts, access.bytes) == (1, 1, 128)


def test_wide_accesses_take_a_pass_for_each_128_bytes() -> None:
    body = """mov.u32 %r1, smem; shl.b32 %r2, %lane, 4; add.u32 %r1, %r1, %r2;
        ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [%r1];"""
    (access,) = profiled(body).profile.shared.values()
    assert (access.wavefronts, access.groups, access.degree) == (4, 4, 1)


def test_only_active_lanes_conflict() -> None:
    body = f"setp.lt.u32 %p1, %lane, 4; @!%p1 bra OVER; {strided(32)} OVER:"
    for access in profiled(body).profile.shared.values():
        assert (access.degree, access.bytes) == (4, 16)


def test_an_instruction_is_found_by_its_line_and_counted_for_each_warp() -> None:
    run = profiled(strided(2), threads=96)
    texts = {line.number: line.text for line in run.profile.lines}
    (store, first), (load, second) = sorted(run.profile.shared.items())
    assert texts[store].startswith("st.shared")
    assert texts[load].startswith("ld.shared")
    assert first.executed == second.executed == 3


def test_wavefronts_are_those_of_a_count_bank_by_bank() -> None:
    random = np.random.default_rng(0)
    for span in (1, 2, 4, 8, 16, 32):
        for _ in range(50):
            lanes = np.flatnonzero(random.random(32) < random.random())
            offsets = span * random.integers(0, 256, len(lanes))
            passes, groups = 0, 0
            for first in range(0, 32, max(1, 128 // max(span, 4))):
                asked = defaultdict(set)
                for lane, offset in zip(lanes, offsets, strict=True):
                    if first <= lane < first + max(1, 128 // max(span, 4)):
                        for word in range(offset // 4, (offset + span - 1) // 4 + 1):
                            asked[word % 32].add(word)
                passes += max(map(len, asked.values()), default=0)
                groups += bool(asked)
            assert wavefronts(offsets, span, lanes) == (passes, groups)


def test_bytes_of_lanes_and_of_cp_async_are_told_apart() -> None:
    copy = f"""mov.u32 %r1, smem; shl.b32 %r2, %lane, 4; add.u32 %r1, %r1, %r2;
        {address("out", "%rd1", item_bytes=16)}
        cp.async.ca.shared.global [%r1], [%rd1], 16; cp.async.wait_all;
        ld.shared.u32 %r3, [%r1];"""
    moved = profiled(copy, threads=32, shared_bytes=1024).profile.bytes
    assert moved["shared_written_by_cp.async"] == 512
    assert moved["shared_read"] == 128
    assert moved["global_read"] >= 512


def test_profiling_with_checks_finds_the_same_and_counts_the_same() -> None:
    body = strided(4)
    both = launch_kernel(
        module(body),
        Extent(dynamic_shared_bytes=8192),
        [],
        profile=True,
        checks=Checks.of("all", on_finding="collect"),
    )
    assert both.findings == ()
    assert [a.degree for a in both.profile.shared.values()] == [4, 4]
