"""ld, st and addresses: every width, vector and space, and what must be refused."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.checks import Checks
from simulator.errors import OutOfBounds, Trap, Uninitialised, Unsupported
from simulator.launch import Tensor
from simulator.machine.global_memory import GlobalMemory
from tests.simulator.ptx_text import address, aligned, failure, load, random, run, store

WIDTHS = {"u8": "u1", "s8": "i1", "u16": "u2", "s16": "i2", "u32": "u4", "s32": "i4", "u64": "u8"}
REGISTER = {
    "u8": "%h",
    "s8": "%h",
    "u16": "%h",
    "s16": "%h",
    "u32": "%r",
    "s32": "%r",
    "u64": "%rd",
}
VECTORS = [("u8", 1), ("s8", 2), ("u16", 4), ("s16", 1), ("u32", 2), ("s32", 4), ("u32", 8)]
VECTORS += [("u64", 1), ("u64", 2), ("u64", 4), ("u8", 4)]


def registers(kind: str, count: int) -> str:
    names = [f"{REGISTER[kind]}{i + 10}" for i in range(count)]
    return names[0] if count == 1 else "{" + ", ".join(names) + "}"


def vector(count: int) -> str:
    return "" if count == 1 else f".v{count}"


# 1. Widths and vectors


@pytest.mark.parametrize(("kind", "count"), VECTORS)
def test_global_memory(kind, count):
    source = random((32, count), WIDTHS[kind])
    target = aligned((32, count), WIDTHS[kind])
    width = count * source.itemsize
    values, form = registers(kind, count), f"{vector(count)}.{kind}"
    run(
        address("x", "%rd1", item_bytes=width)
        + address("y", "%rd2", item_bytes=width)
        + f"ld.global{form} {values}, [%rd1]; st.global{form} [%rd2], {values};",
        {"x": source, "y": target},
    )
    assert np.array_equal(source, target)


@pytest.mark.parametrize(("kind", "count"), VECTORS)
def test_shared_memory(kind, count):
    """Lanes write in one order and read in the other."""
    source = random((32, count), WIDTHS[kind])
    target = aligned((32, count), WIDTHS[kind])
    width = count * source.itemsize
    values, form = registers(kind, count), f"{vector(count)}.{kind}"
    run(
        f"""mov.u32 %r1, smem; mad.lo.u32 %r2, %lane, {width}, %r1;
        sub.u32 %r3, 31, %lane; mad.lo.u32 %r3, %r3, {width}, %r1;"""
        + address("x", "%rd1", item_bytes=width)
        + address("y", "%rd2", item_bytes=width)
        + f"""ld.global{form} {values}, [%rd1]; st.shared{form} [%r2], {values};
        ld.shared::cta{form} {values}, [%r3]; st.global{form} [%rd2], {values};""",
        {"x": source, "y": target},
        shared_bytes=32 * width,
    )
    assert np.array_equal(source[::-1], target)


def test_narrow_loads_extend_into_wide_registers():
    source = np.array([-1, -128, 127, 5] * 8, np.int8)
    signed, unsigned = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    run(
        address("x", "%rd1", item_bytes=1)
        + "ld.global.s8 %r1, [%rd1]; ld.global.u8 %r2, [%rd1];"
        + store("%r1", "s")
        + store("%r2", "u"),
        {"x": source, "s": signed, "u": unsigned},
    )
    assert np.array_equal(signed.view(np.int32), source.astype(np.int32))
    assert np.array_equal(unsigned, source.view(np.uint8))


def test_narrow_stores_take_the_low_bits():
    target = np.zeros(32, np.uint8)
    run(
        "add.u32 %r1, %lane, 0x12345600;"
        + address("y", item_bytes=1)
        + "st.global.b8 [%at0], %r1;",
        {"y": target},
    )
    assert target.tolist() == list(range(32))


def test_a_vector_is_in_order_in_memory():
    target = aligned(4, "uint32")
    run(
        """ld.param.u64 %rd1, [y]; mov.u32 %r1, 1; mov.u32 %r2, 2;
        st.global.v4.b32 [%rd1], {%r1, %r2, 3, 4};""",
        {"y": target},
        threads=1,
    )
    assert target.tolist() == [1, 2, 3, 4]


def test_offsets_in_addresses():
    target = aligned(6, "uint32")
    target[:] = 0
    run(
        """ld.param.u64 %rd1, [y]; add.u64 %rd1, %rd1, 8; mov.u32 %r1, 7; mov.u32 %r2, smem;
        st.global.u32 [%rd1+-8], %r1; st.global.u32 [%rd1+12], %r1;
        st.shared.u32 [smem+4], %r1; ld.shared.u32 %r3, [%r2+4]; st.global.u32 [%rd1], %r3;""",
        {"y": target},
        threads=1,
        shared_bytes=8,
    )
    assert target.tolist() == [7, 0, 7, 0, 0, 7]


def test_of_lanes_that_write_one_place_one_wins():
    target = np.zeros(1, np.uint32)
    run("ld.param.u64 %rd1, [y]; st.global.u32 [%rd1], %lane;", {"y": target})
    assert 0 <= target[0] < 32


def test_parameters():
    out = np.zeros((32, 4), np.uint32)
    block = bytes(range(64))
    run(
        """ld.param.v2.b32 {%r1, %r2}, [b+8]; ld.param.u8 %r3, [b+63]; ld.param.b32 %r4, [n];
        ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %lane, 16; add.u64 %rd1, %rd1, %rd2;
        st.global.v4.b32 [%rd1], {%r1, %r2, %r3, %r4};""",
        {"b": block, "n": 77, "out": out},
    )
    words = np.frombuffer(block, np.uint32)
    assert (out == [words[2], words[3], 63, 77]).all()


# 2. Generic addresses and other CTAs


def test_generic_addresses_reach_every_space():
    out = np.zeros((32, 2), np.uint32)
    run(
        """mov.u64 %rd1, smem; cvta.shared.u64 %rd1, %rd1;
        mul.wide.u32 %rd2, %lane, 4; add.u64 %rd1, %rd1, %rd2;
        st.u32 [%rd1], %lane;
        cvta.to.shared.u64 %rd3, %rd1; cvt.u32.u64 %r1, %rd3; ld.shared.u32 %r2, [%r1];
        mov.u64 %rd4, n; cvta.param.u64 %rd4, %rd4; ld.u32 %r3, [%rd4];
        ld.param.u64 %rd5, [out]; cvta.to.global.u64 %rd6, %rd5;
        mad.lo.u64 %rd6, %rd2, 2, %rd6; cvta.global.u64 %rd6, %rd6;
        st.v2.u32 [%rd6], {%r2, %r3};""",
        {"n": 99, "out": out},
        shared_bytes=128,
    )
    assert out.tolist() == [[lane, 99] for lane in range(32)]


def test_a_generic_access_to_two_spaces_at_once_is_not_supported():
    out = np.zeros(32, np.uint32)
    error = failure(
        Unsupported,
        """mov.u64 %rd1, smem; cvta.shared.u64 %rd1, %rd1; ld.param.u64 %rd2, [out];
        setp.lt.u32 %p1, %lane, 30; selp.b64 %rd1, %rd1, %rd2, %p1;
        st.u32 [%rd1], %lane;""",
        {"out": out},
        shared_bytes=4,
    )
    assert error.lanes == (30, 31)


def test_a_pointer_beyond_all_windows_is_out_of_bounds():
    error = failure(OutOfBounds, "mov.u64 %rd1, -64; ld.u32 %r1, [%rd1];")
    assert "no tensors" in error.message
    assert "0xffffffffffffffc0" in error.message


def test_shared_memory_of_the_other_ctas_of_a_cluster():
    """Each CTA writes to the next one and reads from the one after it."""
    out = np.zeros(4, np.uint32)
    run(
        """mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, smem;
        add.u32 %r3, %r1, 1; and.b32 %r3, %r3, 3; mapa.shared::cluster.u32 %r4, %r2, %r3;
        getctarank.shared::cluster.u32 %r5, %r4;
        mad.lo.u32 %r6, %r1, 10, %r5;
        st.shared::cluster.u32 [%r4], %r6;
        barrier.cluster.arrive; barrier.cluster.wait;
        add.u32 %r3, %r1, 2; and.b32 %r3, %r3, 3; mapa.shared::cluster.u32 %r4, %r2, %r3;
        ld.shared::cluster.u32 %r7, [%r4];
        barrier.cluster.arrive; barrier.cluster.wait;"""
        + store("%r7", index="%r1"),
        {"out": out},
        threads=1,
        grid=4,
        cluster=4,
        shared_bytes=4,
    )
    # CTA c reads what c + 1 wrote to c + 2: ten times its own rank plus that of its target.
    assert out.tolist() == [(c + 1) % 4 * 10 + (c + 2) % 4 for c in range(4)]


def test_lanes_of_a_warp_may_address_different_ctas():
    out = np.zeros(64, np.uint32)
    run(
        """mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, smem;
        and.b32 %r3, %lane, 1; mapa.shared::cluster.u32 %r4, %r2, %r3;
        shl.b32 %r5, %lane, 2; add.u32 %r4, %r4, %r5;
        mad.lo.u32 %r6, %r1, 100, %lane;
        setp.eq.u32 %p1, %r1, 0; @%p1 st.shared::cluster.u32 [%r4], %r6;
        barrier.cluster.arrive; barrier.cluster.wait;
        xor.b32 %r3, %r3, %r1; setp.eq.u32 %p2, %r3, 0;
        mov.u32 %r7, 12345; @%p2 ld.shared.u32 %r7, [%r4];
        ld.shared::cluster.u32 %r8, [%r4];
        barrier.cluster.arrive; barrier.cluster.wait;
        setp.ne.u32 %p3, %r7, 12345; @%p3 mov.u32 %r8, %r7;"""
        + store("%r8"),
        {"out": out},
        grid=2,
        cluster=2,
        shared_bytes=128,
    )
    assert out.tolist() == list(range(32)) * 2


@pytest.mark.parametrize("access", ["ld.shared.u32 %r1, [%r1];", "st.shared::cta.u32 [%r1], %r1;"])
def test_another_ctas_memory_needs_the_cluster_space(access):
    error = failure(
        Trap,
        f"mov.u32 %r1, smem; mapa.shared::cluster.u32 %r1, %r1, 1;\n{access}",
        grid=2,
        cluster=2,
        shared_bytes=4,
    )
    assert "rank 1" in error.message
    assert error.cta == (0, 0, 0)


def test_a_rank_beyond_the_cluster():
    error = failure(
        Trap,
        """mov.u32 %r1, smem; mapa.shared::cluster.u32 %r1, %r1, 2;
        ld.shared::cluster.u32 %r1, [%r1];""",
        grid=2,
        cluster=2,
        shared_bytes=4,
    )
    assert "rank 2 of 2" in error.message


# 3. Misaligned and out of bounds


@pytest.mark.parametrize(
    ("form", "width"), [("u16", 2), ("u32", 4), ("u64", 8), ("v2.u32", 8), ("v4.u32", 16)]
)
def test_an_access_must_be_aligned_to_its_whole_width(form, width):
    array = aligned(1024, "uint8")
    target = "{%r1, %r2, %r3, %r4}" if "v4" in form else "{%r1, %r2}" if "v2" in form else "%rd1"
    body = f"ld.param.u64 %rd9, [x]; add.u64 %rd9, %rd9, {width // 2};"
    error = failure(Trap, body + f"ld.global.{form} {target}, [%rd9];", {"x": array})
    assert f"multiple of {width}" in error.message
    assert f"x (uint8[1024]): index [{width // 2}]" in error.message
    shared = f"mov.u32 %r9, smem; add.u32 %r9, %r9, {width // 2};"
    error = failure(Trap, shared + f"ld.shared.{form} {target}, [%r9];", shared_bytes=64)
    assert error.message.startswith(f"shared[{width // 2}]: {width} bytes")
    assert error.lanes == tuple(range(32))


def test_out_of_bounds_names_tensor_index_and_lanes():
    array = np.zeros((3, 8), np.float32)
    body = "setp.lt.u32 %p1, %lane, 20; @%p1 bra L;" + load("%r1", "table") + "L: mov.u32 %r2, 0;"
    error = failure(OutOfBounds, body, {"table": array})
    assert "table (float32[3, 8]): index [3, 0], 4 bytes past the end" in error.message
    assert error.lanes == tuple(range(24, 32))


def test_out_of_bounds_before_the_first_element():
    array = np.zeros(8, np.uint64)
    body = "ld.param.u64 %rd1, [x];\nst.global.u64 [%rd1+-8], %rd1;"
    error = failure(OutOfBounds, body, {"x": array}, threads=1)
    assert "x (uint64[8]): index [-1], 8 bytes before its allocation" in error.message


def test_an_access_that_begins_inside_and_ends_outside():
    array = aligned(40, "uint8")
    tensor = Tensor(
        "x", array.ctypes.data, (36,), (1,), "uint8", array.ctypes.data, 36, owner=array
    )
    body = "ld.param.u64 %rd1, [x]; ld.global.u64 %rd2, [%rd1+32];"
    error = failure(OutOfBounds, body, {"x": tensor}, threads=1)
    assert "index [32], 4 bytes past the end" in error.message


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (np.s_[:, :], "index [2, 1]"),
        (np.s_[:, ::-1], "index [2, 4]"),
        (np.s_[::-1, :], "index [0, 1]"),
        (np.s_[::2, ::-1], "index [1, 4]"),
        (np.s_[2:3, 1:], "index [0, 0]"),
        (np.s_[:, None, :], "index [2, 0, 1]"),
        (np.s_[1:, 2:4], "index [0, 5], outside the tensor"),
        (np.s_[None, :, :1], "index [0, 2, 1], outside the tensor"),
        (np.s_[:2, :], "index [2, 1], outside the tensor"),
    ],
)
def test_messages_count_in_the_index_of_a_view(view, expected):
    array = np.zeros((3, 6), np.uint32)
    memory = GlobalMemory([Tensor.of(array[view], "x")], check_initialised=True)
    assert memory.describe(array[2:, 1:].ctypes.data).endswith(expected)


def test_of_two_tensors_in_one_allocation_the_one_that_holds_the_address_is_named():
    array = np.zeros((3, 6), np.uint32)
    tensors = [Tensor.of(array[:, :2], "left"), Tensor.of(array[:, 2:], "right")]
    memory = GlobalMemory(tensors, check_initialised=True)
    for row, column in np.ndindex(3, 6):
        found = memory.describe(array[row:, column:].ctypes.data)
        name, offset = ("left", 0) if column < 2 else ("right", 2)
        assert found.startswith(name)
        assert found.endswith(f"index [{row}, {column - offset}]")


def test_shared_memory_ends_where_the_launch_says():
    body = "mov.u32 %r1, smem; shl.b32 %r2, %lane, 2; add.u32 %r1, %r1, %r2;"
    run(body + "st.shared.u32 [%r1], %lane;", shared_bytes=128)
    error = failure(OutOfBounds, body + "st.shared.u32 [%r1], %lane;", shared_bytes=124)
    assert "shared[124]" in error.message
    assert error.lanes == (31,)


# 4. Uninitialised

WRITE_HALF = """mov.u32 %r1, smem; shl.b32 %r2, %lane, 2; add.u32 %r1, %r1, %r2;
    setp.ge.u32 %p1, %lane, 16; @%p1 st.shared.u32 [%r1], %lane;"""


def test_unwritten_shared_memory():
    run(WRITE_HALF + "@%p1 ld.shared.u32 %r3, [%r1];", shared_bytes=128)
    error = failure(Uninitialised, WRITE_HALF + "ld.shared.u32 %r3, [%r1];", shared_bytes=128)
    assert error.message.startswith("shared[0]: read before")
    assert error.lanes == tuple(range(16))
    off = Checks(initialisation=False)
    run(WRITE_HALF + "ld.shared.u32 %r3, [%r1];", shared_bytes=128, checks=off)


def test_one_unwritten_byte_of_a_word_is_enough():
    body = "mov.u32 %r1, smem; mov.u32 %r2, 0; st.shared.v2.u8 [%r1], {%r2, %r2};"
    run(body + "ld.shared.u16 %r3, [%r1];", shared_bytes=8)
    error = failure(Uninitialised, body + "ld.shared.u32 %r3, [%r1];", shared_bytes=8)
    assert error.lanes == tuple(range(32))


def test_each_launch_and_each_cta_starts_with_unwritten_shared_memory():
    body = """mov.u32 %r1, smem; mov.u32 %r2, %ctaid.x; setp.eq.u32 %p1, %r2, 0;
    @%p1 st.shared.u32 [%r1], %r2; ld.shared.u32 %r3, [%r1];"""
    run(body, shared_bytes=4)
    error = failure(Uninitialised, body, shared_bytes=4, grid=2)
    assert error.cta == (1, 0, 0)


def test_unwritten_output():
    out = Tensor.of(np.zeros((4, 8), np.uint32), "out", initialised=False)
    body = address("out") + "setp.ne.u32 %p1, %lane, 13; @%p1 st.global.u32 [%at0], %lane;"
    run(body + "@%p1 ld.global.u32 %r1, [%at0];", {"out": out})
    error = failure(Uninitialised, body + "ld.global.u32 %r1, [%at0];", {"out": out})
    assert "out (uint32[4, 8]): index [1, 5]" in error.message
    assert error.lanes == (13,)
    run(body + "ld.global.u32 %r1, [%at0];", {"out": out}, checks=Checks(initialisation=False))


def test_a_view_of_no_elements_may_lie_inside_an_allocation():
    array = np.zeros(64, np.uint32)
    for view in (array[8:8], array[:64].reshape(8, 8)[2:2, :], array[64:]):
        run("ret;", {"out": Tensor.of(view, "out", initialised=False), "x": array})


def test_a_view_that_means_nothing_lies_in_an_allocation_that_does():
    array = np.arange(32, dtype=np.uint32)
    unset = Tensor.of(array[8:16], "unset", initialised=False)
    body = address("all") + "{} ld.global.u32 %r1, [%at0];"
    outside = "setp.ge.u32 %p1, %lane, 16; setp.lt.or.u32 %p1, %lane, 8, %p1; @%p1"
    arguments = {"unset": unset, "all": Tensor.of(array, "all")}
    run(body.format(outside), arguments)
    error = failure(Uninitialised, body.format(""), arguments)
    assert error.lanes == tuple(range(8, 16))


def test_lanes_in_different_allocations():
    a, b = np.arange(32, dtype=np.uint32), np.arange(100, 132, dtype=np.uint32)
    out = np.zeros(32, np.uint32)
    run(
        address("a", "%rd1")
        + address("b", "%rd2")
        + """setp.lt.u32 %p1, %lane, 11; selp.b64 %rd1, %rd1, %rd2, %p1;
        ld.global.u32 %r1, [%rd1]; add.u32 %r2, %r1, 1; st.global.u32 [%rd1], %r2;"""
        + store("%r1"),
        {"a": a, "b": b, "out": out},
    )
    assert out.tolist() == [*range(11), *range(111, 132)]
    assert a.tolist() == [*range(1, 12), *range(11, 32)]
    assert b.tolist() == [*range(100, 111), *range(112, 133)]
