"""The bulk tensor copies, end to end, against numpy slices of what was copied."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest

from simulator.checks import Checks
from simulator.errors import Deadlock, OutOfBounds, ProtocolError, Trap, Uninitialised
from simulator.launch import Tensor
from simulator.policy import POLICIES, Policy
from tests.simulator.ptx_text import address, aligned, copy_out, failure, load, random, run, store

LATE = Policy("late", 3)
ELEMENTS = {"uint8": 0, "uint16": 1, "uint32": 2, "int32": 3, "uint64": 4, "float32": 7}
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


def tensor_map(array: np.ndarray, box: tuple[int, ...], swizzle: int = 0) -> bytes:
    """The 128 bytes of a tensor map, the second half noise; ``box`` innermost dimension first."""
    dims, strides = array.shape[::-1], array.strides[::-1][1:]
    rank = array.ndim
    flags = 1 << 1 | (rank - 1) << 4 | ELEMENTS[array.dtype.name] << 7 | SWIZZLES[swizzle] << 13
    pad = [0] * (5 - rank)
    words = [s // 16 for s in strides] + [0] * (4 - len(strides))
    raw = struct.pack("<QI", array.ctypes.data, flags)
    raw += struct.pack("<4I", *(w & 0xFFFFFFFF for w in words))
    raw += struct.pack("<I", sum((w >> 32) << 4 * i for i, w in enumerate(words)))
    raw += struct.pack("<5I", *(d - 1 for d in dims), *pad)
    raw += struct.pack("<3B", 0, 0, 0) + struct.pack("<5B", *(b - 1 for b in box), *pad)
    return raw + bytes(4) + np.random.default_rng(7).bytes(64)


def box_of(array: np.ndarray, corner: tuple[int, ...], box: tuple[int, ...]) -> np.ndarray:
    """The box at ``corner`` (both innermost first), one element at a time, zeros outside."""
    found = np.zeros(box[::-1], array.dtype)
    for index in np.ndindex(*box[::-1]):
        place = tuple(c + i for c, i in zip(corner[::-1], index, strict=True))
        if all(0 <= p < n for p, n in zip(place, array.shape, strict=True)):
            found[index] = array[place]
    return found


def swizzled(data: bytes, span: int, start: int = 0) -> np.ndarray:
    """Dense bytes as they lie in shared memory from ``start`` (a multiple of 1024) on."""
    placed = np.zeros(len(data), np.uint8)
    mask = {0: 0, 32: 1, 64: 3, 128: 7}[span]
    for i, byte in enumerate(data):
        a = start + i
        placed[(a ^ (a >> 7 & mask) << 4) - start] = byte
    return placed


# 1. Bulk tensor loads

START = """mov.u32 %r1, smem; add.u32 %r2, %r1, {barrier}; setp.ne.u32 %p1, %t2, 0;
    @%p1 bra INIT; mbarrier.init.shared.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
    INIT: bar.sync 0;"""
WAIT = "W: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra W;"


def load_box(
    corner: tuple[int, ...], box_bytes: int, *, tx: int | None = None, into: str = "%r1"
) -> str:
    """Thread 0 issues the load of one box of ``map`` to ``smem``; all threads wait for it."""
    coordinates = ", ".join(map(str, corner))
    return (
        START.format(barrier=-(-box_bytes // 128) * 128)
        + f"""@%p1 bra WAIT; mov.b64 %rd1, map; cvta.param.u64 %rd1, %rd1;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r2], {box_bytes if tx is None else tx};
        cp.async.bulk.tensor.{len(corner)}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"""
        f" [{into}], [%rd1, {{{coordinates}}}], [%r2];\nWAIT:" + WAIT
    )


CASES = [
    ((50,), "uint8", (16,), (5,)),
    ((50,), "float32", (20,), (-7,)),
    ((9, 16), "uint32", (8, 4), (2, 3)),
    ((9, 16), "uint32", (8, 4), (12, 7)),
    ((9, 32), "uint16", (16, 3), (-5, -1)),
    ((4, 5, 16), "uint8", (16, 3, 2), (0, 4, 3)),
    ((3, 4, 5, 8), "int32", (4, 2, 3, 2), (6, 1, 2, -1)),
    ((2, 3, 2, 3, 2), "uint64", (2, 2, 2, 2, 2), (0, 1, 1, 2, 1)),
]


@pytest.mark.parametrize(("shape", "dtype", "box", "corner"), CASES)
def test_bulk_tensor_load(shape, dtype, box, corner):
    """Boxes inside, across an edge on either side, and of every rank."""
    array = random(shape, dtype)
    expected = box_of(array, corner, box)
    out = np.zeros(expected.nbytes, np.uint8)
    run(
        load_box(corner, expected.nbytes) + copy_out(expected.nbytes // 4),
        {"map": tensor_map(array, box), "x": array, "out": out},
        shared_bytes=expected.nbytes + 256,
    )
    assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("bad_lane", [None, 3])
def test_lanes_that_load_at_once(bad_lane):
    """Four lanes load a box each; one that can't be loaded is an error, whichever it is."""
    array = random((16, 16), "uint32")
    out = np.zeros(1024, np.uint8)
    body = (
        START.format(barrier=1024)
        + f"""setp.gt.u32 %p2, %t2, 3; mov.b64 %rd1, map;
        cvta.param.u64 %rd1, %rd1; @%p1 bra ALL;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 1024; ALL: @%p2 bra WAIT;
        shl.b32 %r3, %t2, 8; add.u32 %r4, %r1, %r3; shl.b32 %r5, %t2, 2;
        setp.eq.u32 %p2, %t2, {31 if bad_lane is None else bad_lane};
        selp.b32 %r5, 4096, %r5, %p2;
        cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%r4], [%rd1, {{0, %r5}}], [%r2];\nWAIT:"""
        + WAIT
    )
    x = {"map": tensor_map(array, (16, 4)), "x": Tensor.of(array, "x", strict=True), "out": out}
    if bad_lane is None:
        run(body + copy_out(256), x, shared_bytes=2048)
        assert out.tobytes() == array.tobytes()
    else:
        error = failure(OutOfBounds, body + copy_out(256), x, shared_bytes=2048)
        assert error.location.lanes == (bad_lane,)


@pytest.mark.parametrize("span", SWIZZLES)
@pytest.mark.parametrize("policy", ["fair", "late", "random"])
def test_bulk_tensor_load_swizzles(span, policy):
    row = span or 48
    array = random((24, 2 * row), "uint8")
    box = (row, 20)
    expected = box_of(array, (row - 16, 2), box)
    out = np.zeros(expected.nbytes, np.uint8)
    run(
        load_box((row - 16, 2), expected.nbytes) + copy_out(expected.nbytes // 4),
        {"map": tensor_map(array, box, span), "x": array, "out": out},
        shared_bytes=expected.nbytes + 256,
        policy=Policy(policy, 1),
    )
    # The last line may be half full: what the swizzle leaves unwritten is not compared.
    placed = swizzled(expected.tobytes() + bytes(-expected.nbytes % 128), span)
    assert np.array_equal(out, placed[: expected.nbytes])


def test_the_swizzle_follows_the_absolute_shared_address():
    array = random((8, 128), "uint8")
    box = (128, 4)
    out = np.zeros(512, np.uint8)
    run(
        "mov.u32 %r3, smem; add.u32 %r3, %r3, 512;"
        + load_box((0, 1), 512, into="%r3").replace("add.u32 %r2, %r1, 512", "add.u32 %r2, %r1, 0")
        + copy_out(128, "smem+512").replace("mov.u32 %r81, smem+512", "add.u32 %r81, %r1, 512"),
        {"map": tensor_map(array, box, 128), "x": array, "out": out},
        shared_bytes=1024,
    )
    placed = swizzled(bytes(512) + box_of(array, (0, 1), box).tobytes(), 128)
    assert np.array_equal(out, placed[512:])


def test_a_tensor_map_in_global_memory():
    array = random((8, 16), "uint32")
    box = (16, 8)
    held = aligned(128, "uint8")
    held[:] = np.frombuffer(tensor_map(array, box), np.uint8)
    out = np.zeros(512, np.uint8)
    body = load_box((0, 0), 512) + copy_out(128)
    body = body.replace(
        "mov.b64 %rd1, map; cvta.param.u64 %rd1, %rd1;", "ld.param.u64 %rd1, [map];"
    )
    run(body, {"map": held, "x": array, "out": out}, shared_bytes=1024)
    assert out.tobytes() == array.tobytes()


def test_a_view_with_gaps_is_copied_by_its_strides():
    whole = random((8, 64), "uint32")
    array = whole[1:7, 8:24]
    out = np.zeros(4 * 16 * 4, np.uint8)
    run(
        load_box((0, 2), out.size) + copy_out(out.size // 4),
        {"map": tensor_map(array, (16, 4)), "x": array, "out": out},
        shared_bytes=out.size + 256,
    )
    assert out.tobytes() == array[2:6].tobytes()


# 2. What a load must be given


@pytest.mark.parametrize("policy", ["fair", "late", "random"])
@pytest.mark.parametrize(("tx", "kind", "word"), [
    (48, ProtocolError, "tx-count -16 bytes"), (80, Deadlock, "tx-count 16 bytes"),
])  # fmt: skip
def test_the_bytes_expected_must_be_those_of_the_box(tx, kind, word, policy):
    """Too few: the phase never ends, nor is the rest taken up; too many: the wait has no end."""
    array = random((4, 16), "uint8")
    arguments = {"map": tensor_map(array, (16, 4)), "x": array}
    body = load_box((0, 0), 64, tx=tx)
    if kind is ProtocolError:
        body = body.replace(WAIT, "")
    assert word in failure(kind, body, arguments, shared_bytes=256, policy=Policy(policy)).message


def test_a_load_without_an_mbarrier():
    array = random((4, 16), "uint8")
    body = load_box((0, 0), 64).replace("[%rd1, {0, 0}], [%r2]", "[%rd1, {0, 0}], [%r1]")
    arguments = {"map": tensor_map(array, (16, 4)), "x": array}
    for policy in (Policy(), LATE):
        error = failure(Trap, body, arguments, shared_bytes=256, policy=policy)
        assert "no mbarrier was initialised at shared[0]" in error.message
        assert error.location.ptx_text.startswith("cp.async.bulk.tensor.2d")
        assert error.lanes == (0,)


@pytest.mark.parametrize(
    ("into", "kind", "word"),
    [("%r1+64", Trap, "multiple of 128"), ("%r1+384", OutOfBounds, "shared memory ends at")],
)
def test_where_a_box_may_go(into, kind, word):
    array = random((8, 16), "uint8")
    body = load_box((0, 0), 128, into=into)
    arguments = {"map": tensor_map(array, (16, 8)), "x": array}
    run(load_box((0, 0), 128, into="%r1+256"), arguments, shared_bytes=384)
    assert word in failure(kind, body, arguments, shared_bytes=448).message


def test_a_box_must_lie_in_the_allocation_though_the_map_says_more():
    array, other = random((8, 16), "uint8"), random((8, 16), "uint8")
    larger = np.lib.stride_tricks.as_strided(array, (12, 16))
    arguments = {"map": tensor_map(larger, (16, 4)), "x": array}
    run(load_box((0, 4), 64), arguments, shared_bytes=384)
    error = failure(OutOfBounds, load_box((0, 5), 64), arguments, shared_bytes=384)
    assert "bulk tensor load of x: tensor map box at (0, 5)" in error.message
    arguments["x"] = other
    error = failure(OutOfBounds, load_box((0, 4), 64), arguments, shared_bytes=384)
    assert "outside every allocation" in error.message


@pytest.mark.parametrize(("corner", "fine"), [((0, 5), True), ((0, 8), False), ((0, -1), False)])
def test_of_a_strict_tensor_a_box_must_begin_inside(corner, fine):
    array = random((8, 16), "uint8")
    strict = Tensor.of(array, "pages", strict=True)
    arguments = {"map": tensor_map(array, (16, 4)), "x": array}
    run(load_box(corner, 64), arguments, shared_bytes=256)
    arguments["x"] = strict
    if fine:
        run(load_box(corner, 64), arguments, shared_bytes=256)
    else:
        error = failure(OutOfBounds, load_box(corner, 64), arguments, shared_bytes=256)
        assert f"bulk tensor load of pages: coordinates {corner} lie outside it" in error.message
        assert "of [0, 8)" in error.message


def test_a_load_of_what_nothing_has_written():
    array = random((8, 16), "uint8")
    unset = Tensor.of(array, "x", initialised=False)
    arguments = {"map": tensor_map(array, (16, 4)), "x": unset}
    body = load_box((0, 3), 64)
    write = "setp.lt.u32 %p7, %lane, 16;" + address("x", item_bytes=1)
    rows = [f"@%p7 st.global.u8 [%at0+{16 * row}], %h1;" for row in range(8)]
    for written, missing in (([], 3), ([3, 5, 6], 4), ([3, 4, 5, 7], 6)):
        body_after = write + "".join(rows[row] for row in written) + body
        error = failure(Uninitialised, body_after, arguments, shared_bytes=256)
        assert f"x (uint8[8, 16]): index [{missing}, 0]" in error.message
        run(body_after, arguments, shared_bytes=256, checks=Checks(initialisation=False))
    run(write + "".join(rows[3:7]) + body, arguments, shared_bytes=256)


# 3. Several CTAs


def in_cluster(ctas: int) -> dict[str, int]:
    return {"grid": ctas, "cluster": ctas}


@pytest.mark.parametrize("mask", [0b1111, 0b0101, 0b1000])
@pytest.mark.parametrize("policy", ["fair", "late", "random"])
def test_multicast(mask, policy):
    """CTA 0 loads a box for every CTA of the mask; each waits at its own mbarrier."""
    array, out = random((4, 32), "uint8"), np.zeros((4, 128), np.uint8)
    body = (
        START.format(barrier=128)
        + f"""mov.u32 %r3, %cluster_ctarank; mov.u32 %r4, {mask}; shr.u32 %r5, %r4, %r3;
        and.b32 %r5, %r5, 1; setp.eq.u32 %p3, %r5, 0;
        @%p3 bra READY; @%p1 bra READY; mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 128;
        READY: barrier.cluster.arrive; barrier.cluster.wait;
        setp.ne.or.u32 %p4, %r3, 0, %p1; @%p4 bra ISSUED;
        mov.b64 %rd1, map; mov.u16 %h1, {mask};
        cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
        [%r1], [%rd1, {{0, 0}}], [%r2], %h1;
        ISSUED: @%p3 bra END;"""
        + WAIT
        + """mov.u32 %r6, smem; shl.b32 %r7, %lane, 2; add.u32 %r6, %r6, %r7;
        ld.shared.u32 %r8, [%r6];"""
        + store("%r8")
        + "END: barrier.cluster.arrive; barrier.cluster.wait;"
    )
    run(
        body,
        {"map": tensor_map(array, (32, 4)), "x": array, "out": out},
        shared_bytes=256,
        policy=Policy(policy, 2),
        **in_cluster(4),
    )
    for rank in range(4):
        expected = array.tobytes() if mask >> rank & 1 else bytes(128)
        assert out[rank].tobytes() == expected


def test_a_pair_of_ctas_shares_the_barrier_of_the_even_one():
    """With cta_group::2 each loads into its own memory; the even CTA expects the bytes of both."""
    array, out = random((8, 16), "uint8"), np.zeros((2, 64), np.uint8)
    body = (
        START.format(barrier=128)
        + """mov.u32 %r3, %cluster_ctarank; shl.b32 %r4, %r3, 2;
        and.b32 %r5, %r2, 0xfeffffff;
        barrier.cluster.arrive; barrier.cluster.wait;
        @%p1 bra ISSUED; mov.b64 %rd1, map;
        cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.cta_group::2
        [%r1], [%rd1, {0, %r4}], [%r5];
        setp.ne.u32 %p4, %r3, 0; @%p4 bra ISSUED;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 128;
        ISSUED: setp.ne.u32 %p4, %r3, 0; @%p4 bra SECOND;"""
        + WAIT
        + """SECOND: barrier.cluster.arrive; barrier.cluster.wait;
        setp.ge.u32 %p5, %lane, 16; @%p5 ret;
        mov.u32 %r6, smem; shl.b32 %r7, %lane, 2; add.u32 %r6, %r6, %r7; ld.shared.u32 %r8, [%r6];
        mad.lo.u32 %r9, %r3, 16, %lane;"""
        + store("%r8", index="%r9")
    )
    arguments = {"map": tensor_map(array, (16, 4)), "x": array, "out": out}
    for policy in POLICIES:
        out[:] = 0
        run(body, arguments, shared_bytes=256, policy=Policy(policy, 4), **in_cluster(2))
        assert out.tobytes() == array.tobytes()


def test_shared_cta_is_the_memory_of_the_own_cta():
    """CTA 0 loads into the memory of CTA 1, which only ``shared::cluster`` allows."""
    array = random((4, 16), "uint8")
    body = (
        START.format(barrier=128)
        + """mov.u32 %r3, %cluster_ctarank; mapa.shared::cluster.u32 %r4, %r1, 1;
        barrier.cluster.arrive; barrier.cluster.wait;
        setp.ne.or.u32 %p3, %r3, 0, %p1; @%p3 bra END;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 64; mov.b64 %rd1, map;
        cp.async.bulk.tensor.2d.{}.global.mbarrier::complete_tx::bytes
        [%r4], [%rd1, {{0, 0}}], [%r2];
        END: barrier.cluster.arrive; barrier.cluster.wait;"""
    )
    arguments = {"map": tensor_map(array, (16, 4)), "x": array}
    options = {"shared_bytes": 256, **in_cluster(2)}
    run(body.format("shared::cluster"), arguments, **options)
    error = failure(Trap, body.format("shared::cta"), arguments, **options)
    assert "CTA rank 1" in error.message


# 4. Bulk tensor stores


def store_box(corner: tuple[int, ...], words: int, *, wait: str, hint: bool = False) -> str:
    """The warp fills ``words`` words of shared memory from ``x``; lane 0 stores them as a box."""
    coordinates, suffix = ", ".join(map(str, corner)), ".L2::cache_hint" if hint else ""
    return f"""
        mov.u32 %r1, smem; mov.u32 %r2, %lane; ld.param.u64 %rd2, [x];
        FILL: setp.ge.u32 %p1, %r2, {words}; @%p1 bra FILLED;
        shl.b32 %r3, %r2, 2; cvt.u64.u32 %rd3, %r3; add.u64 %rd4, %rd2, %rd3;
        ld.global.u32 %r4, [%rd4]; add.u32 %r5, %r1, %r3; st.shared.u32 [%r5], %r4;
        add.u32 %r2, %r2, 32; bra FILL;
        FILLED: fence.proxy.async.shared::cta; bar.warp.sync -1;
        setp.ne.u32 %p2, %lane, 0; @%p2 bra DONE;
        mov.b64 %rd1, map;
        cp.async.bulk.tensor.{len(corner)}d.global.shared::cta.tile.bulk_group{suffix}
        [%rd1, {{{coordinates}}}], [%r1]{", %rd2" if hint else ""};
        cp.async.bulk.commit_group; {wait}
        DONE: bar.sync 0;
    """


@pytest.mark.parametrize(
    ("shape", "dtype", "box", "corner", "span"),
    [*((*case, 0) for case in CASES), (*CASES[0], 32), (*CASES[2], 32), (*CASES[6], 32)],
)
def test_bulk_tensor_store(shape, dtype, box, corner, span):
    """What leaves the tensor is dropped, what the box does not cover stays; a hint says nothing."""
    target = random(shape, dtype)
    data = random((int(np.prod(box)),), dtype)[::-1].copy().reshape(box[::-1])
    expected = target.copy()
    for index in itertools.product(*map(range, box[::-1])):
        place = tuple(c + i for c, i in zip(corner[::-1], index, strict=True))
        if all(0 <= p < n for p, n in zip(place, shape, strict=True)):
            expected[place] = data[index]
    filled = data.nbytes + -data.nbytes % 128 if span else data.nbytes
    placed = swizzled(data.tobytes() + bytes(filled - data.nbytes), span)
    run(
        store_box(corner, filled // 4, wait="cp.async.bulk.wait_group 0;", hint=bool(span)),
        {"map": tensor_map(target, box, span), "x": placed, "y": target},
        shared_bytes=filled,
    )
    assert target.tobytes() == expected.tobytes()


READ_BACK = address("y", item_bytes=4) + "ld.global.u32 %r9, [%at0+{}];"


def test_a_store_writes_what_its_box_covers_and_no_more():
    """The box covers rows 2 and 3 of y; a row is 32 words."""
    y, x = aligned((6, 32), "uint32"), random((64,), "uint32")
    arguments = {"map": tensor_map(y, (32, 2)), "x": x, "y": Tensor.of(y, "y", initialised=False)}
    body = store_box((0, 2), 64, wait="cp.async.bulk.wait_group 0;")
    for row in (2, 3):
        run(body + READ_BACK.format(128 * row), arguments, shared_bytes=256)
    for row in (1, 4):
        error = failure(
            Uninitialised, body + READ_BACK.format(128 * row), arguments, shared_bytes=256
        )
        assert f"index [{row}, 0]" in error.message


def test_a_store_is_complete_when_its_group_is_waited_for():
    y, x = aligned((2, 32), "uint32"), random((64,), "uint32")
    arguments = {"map": tensor_map(y, (32, 2)), "x": x, "y": Tensor.of(y, "y", initialised=False)}
    options = {"shared_bytes": 256, "policy": LATE}
    for wait in ("cp.async.bulk.wait_group 0;", "cp.async.bulk.wait_group.read 0;"):
        run(store_box((0, 0), 64, wait=wait) + READ_BACK.format(0), arguments, **options)
    unwaited = store_box((0, 0), 64, wait="cp.async.bulk.wait_group 1;")
    failure(Uninitialised, unwaited + READ_BACK.format(0), arguments, **options)
    run(unwaited, arguments, **options)
    assert np.array_equal(y.reshape(-1), x)


def test_a_store_of_unwritten_shared_memory():
    y, x = aligned((2, 32), "uint32"), random((64,), "uint32")
    arguments = {"map": tensor_map(y, (32, 2)), "x": x, "y": y}
    error = failure(Uninitialised, store_box((0, 0), 60, wait=""), arguments, shared_bytes=256)
    assert error.message.startswith("shared[240]")
    assert error.location.ptx_text.startswith("cp.async.bulk.tensor.2d.global")


def test_a_store_from_the_memory_of_another_cta():
    y, x = aligned((2, 32), "uint32"), random((64,), "uint32")
    body = store_box((0, 0), 64, wait="").replace(
        "mov.b64 %rd1, map;", "mov.b64 %rd1, map; mapa.shared::cluster.u32 %r1, %r1, 1;"
    )
    arguments = {"map": tensor_map(y, (32, 2)), "x": x, "y": y}
    assert "CTA rank 1" in failure(Trap, body, arguments, shared_bytes=256, **in_cluster(2)).message


def test_the_counts_of_a_run_have_the_bytes_of_bulk_copies():
    array = random((8, 16), "uint8")
    found = run(
        load_box((0, 6), 64) + load("%r5", "x"),
        {"map": tensor_map(array, (16, 4)), "x": array},
        shared_bytes=256,
    )
    assert found.counts["tma_loads"] == 1
    assert found.counts["tma_load_bytes"] == 64
