"""Tensor memory: layouts against tables of single elements, allocation, and what it reports."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import OutOfBounds, ProtocolError, Trap, Uninitialised, Unsupported
from simulator.machine.tensor_memory import TensorMemory, fragment_layout, register_count


def filled(columns=512):
    """A memory whose every word holds its own address."""
    memory = TensorMemory()
    assert memory.allocate(columns) == 0
    lane, column = np.indices((128, columns), np.uint32)
    memory.words[:, :columns] = lane << 16 | column
    memory.valid[:, :columns] = True
    return memory


# (shape, repeat) -> {(thread, register): (lane, column)}, read off the figures of the PTX ISA.
KNOWN = {
    ("32x32b", 4): {(0, 0): (0, 0), (0, 3): (0, 3), (1, 0): (1, 0), (31, 2): (31, 2)},
    ("16x64b", 2): {
        (0, 0): (0, 0), (1, 0): (8, 0), (2, 0): (0, 1), (3, 0): (8, 1), (4, 0): (1, 0),
        (31, 0): (15, 1), (0, 1): (0, 2), (31, 1): (15, 3),
    },
    ("16x128b", 2): {
        (0, 0): (0, 0), (1, 0): (0, 1), (3, 0): (0, 3), (4, 0): (1, 0), (31, 0): (7, 3),
        (0, 1): (8, 0), (31, 1): (15, 3), (0, 2): (0, 4), (31, 3): (15, 7),
    },
    ("16x256b", 2): {
        (0, 0): (0, 0), (0, 1): (0, 1), (1, 0): (0, 2), (3, 1): (0, 7), (4, 0): (1, 0),
        (31, 1): (7, 7), (0, 2): (8, 0), (31, 3): (15, 7), (0, 4): (0, 8), (31, 7): (15, 15),
    },
}  # fmt: skip
SHAPES = [
    ("32x32b", 1), ("32x32b", 32), ("32x32b", 128), ("16x64b", 1), ("16x64b", 128),
    ("16x128b", 1), ("16x128b", 64), ("16x256b", 1), ("16x256b", 32),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "num"), KNOWN)
def test_layouts_agree_with_the_figures(shape, num):
    lanes, columns = fragment_layout(shape, num)
    for (thread, register), place in KNOWN[shape, num].items():
        assert (lanes[register, thread], columns[register, thread]) == place


# The same layouts as CUTLASS states them for its copy atoms: mixed-radix digits of the thread and
# of the register, least significant first, each with the (lane, column) that one unit of it adds.
DIGITS = {
    "32x32b": ([(32, (1, 0))], [(128, (0, 1))]),
    "16x64b": ([(2, (8, 0)), (2, (0, 1)), (8, (1, 0))], [(128, (0, 2))]),
    "16x128b": ([(4, (0, 1)), (8, (1, 0))], [(2, (8, 0)), (64, (0, 4))]),
    "16x256b": ([(4, (0, 2)), (8, (1, 0))], [(2, (0, 1)), (2, (8, 0)), (32, (0, 8))]),
}


def by_digits(value, digits):
    lane = column = 0
    for radix, (lane_step, column_step) in digits:
        lane += value % radix * lane_step
        column += value % radix * column_step
        value //= radix
    return lane, column


@pytest.mark.parametrize(("shape", "num"), SHAPES)
def test_every_element_agrees_with_the_mixed_radix_description(shape, num):
    lanes, columns = fragment_layout(shape, num)
    threads, registers = DIGITS[shape]
    for register, thread in np.ndindex(lanes.shape):
        (a, b), (c, d) = by_digits(thread, threads), by_digits(register, registers)
        assert (lanes[register, thread], columns[register, thread]) == (a + c, b + d)


@pytest.mark.parametrize(("shape", "num"), SHAPES)
def test_each_layout_covers_a_rectangle_once(shape, num):
    lanes, columns = fragment_layout(shape, num)
    height = int(shape.split("x")[0])
    width = int(shape.split("x")[1][:-1]) * num // 32
    places = set(zip(lanes.ravel().tolist(), columns.ravel().tolist(), strict=True))
    assert len(places) == lanes.size == height * width
    assert places == {(lane, column) for lane in range(height) for column in range(width)}


@pytest.mark.parametrize(("shape", "num"), SHAPES)
@pytest.mark.parametrize("warp", [0, 3, 6])
def test_load_and_store_follow_the_layout(shape, num, warp):
    memory = filled()
    base = 32 * (warp % 4) + (0 if shape == "32x32b" else 16)
    width = int(shape.split("x")[1][:-1]) * num // 32
    column = min(5, 512 - width)
    loaded = memory.load(shape, num, base << 16 | column, warp=warp)
    lanes, columns = fragment_layout(shape, num)
    assert loaded.shape == (register_count(shape, num), 32)
    for register, thread in np.ndindex(loaded.shape):
        lane, col = base + lanes[register, thread], column + columns[register, thread]
        assert loaded[register, thread] == lane << 16 | col

    target = TensorMemory()
    target.allocate(512)
    target.store(shape, num, base << 16 | column, loaded, warp=warp)
    height = int(shape.split("x")[0])
    written = np.zeros((128, 512), bool)
    written[base : base + height, column : column + width] = True
    assert np.array_equal(target.valid, written)
    assert np.array_equal(target.words[written], memory.words[written])


@pytest.mark.parametrize(
    ("shape", "lane", "warp"), [("32x32b", 32, 0), ("32x32b", 16, 0), ("16x128b", 8, 0),
                                ("16x64b", 48, 0), ("32x32b", 0, 5)],
)  # fmt: skip
def test_lanes_of_another_warp_trap(shape, lane, warp):
    with pytest.raises(Trap, match=f"lane {lane} by warp {warp}"):
        filled().load(shape, 1, lane << 16, warp=warp)


def test_unknown_shapes_and_repeats():
    with pytest.raises(Unsupported, match="16x32bx2"):
        filled().load("16x32bx2", 1, 0, warp=0)
    for shape, num in (("32x32b", 3), ("16x128b", 128), ("16x256b", 64), ("32x32b", 256)):
        with pytest.raises(Trap, match=f"no .x{num}"):
            filled().load(shape, num, 0, warp=0)


def test_columns_outside_the_allocation_are_out_of_bounds():
    memory = filled(64)
    memory.load("32x32b", 32, 32, warp=0)
    with pytest.raises(OutOfBounds, match=r"columns \[33, 65\).*allocated: \[0, 64\)"):
        memory.load("32x32b", 32, 33, warp=0)
    with pytest.raises(OutOfBounds, match="columns"):
        memory.store("16x64b", 32, 2, np.zeros((32, 32), np.uint32), warp=0)
    with pytest.raises(OutOfBounds, match="allocated: none"):
        TensorMemory().load("32x32b", 1, 0, warp=0)


@pytest.mark.parametrize(("shape", "num"), [("32x32b", 16), ("16x128b", 8), ("16x64b", 16)])
def test_unwritten_words_are_named(shape, num):
    memory = filled(64)
    memory.valid[45, 17] = False
    with pytest.raises(Uninitialised, match=r"1 of the words .* lane 45, column 17"):
        memory.load(shape, num, 32 << 16 | 8, warp=1)
    memory.valid[45, 17] = True
    memory.load(shape, num, 32 << 16 | 8, warp=1)


def test_unchecked_memory_gives_poison_instead():
    memory = TensorMemory(checked=False)
    memory.allocate(32)
    assert set(memory.load("32x32b", 1, 0, warp=0).ravel().tolist()) == {0xFFFFFFFF}


def test_blocks_read_back_what_they_wrote():
    memory = TensorMemory()
    memory.allocate(64)
    values = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    memory.write_block(slice(64, 128), 32, values)
    assert np.array_equal(memory.read_block(slice(64, 128), 32, 32), values)
    with pytest.raises(Uninitialised, match="lane 63, column 32"):
        memory.read_block(slice(63, 128), 32, 32)
    with pytest.raises(OutOfBounds, match=r"\[33, 65\)"):
        memory.write_block(slice(0, 64), 33, values)


@pytest.mark.parametrize("columns", [0, 16, 33, 96, 1024])
def test_sizes_that_cannot_be_allocated(columns):
    with pytest.raises(ProtocolError, match=f"{columns} columns"):
        TensorMemory().allocate(columns)


def test_allocations_do_not_overlap_and_wait_when_full():
    memory = TensorMemory()
    starts = [memory.allocate(n) for n in (256, 128, 128)]
    assert starts == [0, 256, 384]
    assert memory.allocate(32) is None
    memory.deallocate(256, 128)
    assert memory.allocate(32) == 256
    assert memory.allocate(128) is None
    assert memory.allocate(64) == 288


def test_reused_columns_hold_nothing():
    memory = filled(64)
    memory.deallocate(0, 64)
    memory.allocate(64)
    with pytest.raises(Uninitialised, match="lane 0, column 0"):
        memory.load("32x32b", 1, 0, warp=0)


def test_allocation_discipline():
    memory = TensorMemory()
    memory.allocate(64)
    for address, columns in ((0, 32), (32, 32), (64, 64)):
        with pytest.raises(ProtocolError, match="64 at column 0"):
            memory.deallocate(address, columns)
    with pytest.raises(ProtocolError, match="ends with 64"):
        memory.require_empty()
    memory.relinquish()
    with pytest.raises(ProtocolError, match="relinquished"):
        memory.allocate(32)
    memory.deallocate(0, 64)
    memory.require_empty()
    with pytest.raises(ProtocolError, match="allocated: none"):
        memory.deallocate(0, 64)
