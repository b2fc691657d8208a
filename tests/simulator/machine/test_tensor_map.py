"""Tensor maps against a driver's samples; box copies against loops over single bytes."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulator.errors import OutOfBounds, Trap, Unsupported
from simulator.machine import tensor_map
from simulator.machine.tensor_map import TensorMap

SAMPLES = {
    line.split()[0]: b"".join(struct.pack("<I", int(word, 16)) for word in line.split()[1:])
    for line in (Path(__file__).parents[2] / "data" / "tensor_map_words.txt")
    .read_text()
    .split("\n")
    if line and not line.startswith("#")
}
STRIDES = (576, 36864, 294912, 884736)


def expected(rank=3, box=(64, 32, 1, 1, 1), element=("u8", 1), strides=STRIDES, swizzle=0):
    return TensorMap(
        address=0x7F0012340000,
        element=element[0],
        element_bytes=element[1],
        dims=(576, 64, 8, 3, 2)[:rank],
        strides=(element[1], *strides[: rank - 1]),
        box=box[:rank],
        swizzle=swizzle,
    )


WIDE = {"box": (16, 8, 1), "strides": (5760, 368640)}
READABLE = {
    "u8r3": expected(),
    "u8r3sw1_box32": expected(box=(32, 32, 1), swizzle=32),
    "u8r3sw2": expected(swizzle=64),
    "u8r3sw3_box128": expected(box=(128, 32, 1), swizzle=128),
    "u8r3l2_1": expected(),
    "u8r3l2_2": expected(),
    "u16r3_str5760": expected(element=("u16", 2), **WIDE),
    "bf16r3_str5760": expected(element=("bf16", 2), **WIDE),
    "f16r3_str5760": expected(element=("f16", 2), **WIDE),
    "f32r3_str5760": expected(element=("f32", 4), **WIDE),
    "u8rank5": expected(rank=5),
    "u8_bigstride_2^37_2^38": expected(rank=4, strides=(576, 2**37, 2**38)),
}
REFUSED = {"bf16r3_oobnan": "fill with NaN", "u8_estride2_dim1": "element strides"}


def test_every_sample_is_used():
    assert set(SAMPLES) == set(READABLE) | set(REFUSED)


@pytest.mark.parametrize("name", READABLE)
def test_driver_samples_decode(name):
    assert tensor_map.decode(SAMPLES[name]) == READABLE[name]


@pytest.mark.parametrize("name", REFUSED)
def test_unverified_samples_are_refused(name):
    with pytest.raises(Unsupported, match=REFUSED[name]):
        tensor_map.decode(SAMPLES[name])


def test_bytes_past_the_meaningful_ones_are_ignored():
    raw = SAMPLES["u8r3"]
    assert tensor_map.decode(raw[:64] + b"\xa5" * 64) == tensor_map.decode(raw)


@pytest.mark.parametrize(
    ("bits", "message"),
    [(1 << 0, "flag bits 0x1"), (1 << 11, "flag bits 0x800"), (1 << 16, "tf32"),
     (8 << 7, "f32.ftz"), (12 << 7, "element type 12"), (1 << 6, "rank 7")],
)  # fmt: skip
def test_unknown_flags_are_refused_by_name(bits, message):
    raw = bytearray(SAMPLES["u8r3"])
    struct.pack_into("<I", raw, 8, struct.unpack_from("<I", raw, 8)[0] | bits)
    with pytest.raises(Unsupported, match=message):
        tensor_map.decode(bytes(raw))


def test_marks_of_the_dsl_encoder_are_accepted():
    raw = bytearray(SAMPLES["u8r3"])
    struct.pack_into("<I", raw, 8, struct.unpack_from("<I", raw, 8)[0] | 1 << 1 | 1 << 21)
    assert tensor_map.decode(bytes(raw)) == READABLE["u8r3"]


def test_two_numbers_of_4_bits_share_a_byte():
    """Extents and coordinates count numbers; bytes are what is moved."""
    raw = bytearray(SAMPLES["u8r3"])
    struct.pack_into("<I", raw, 8, struct.unpack_from("<I", raw, 8)[0] | 11 << 7)
    found = tensor_map.decode(bytes(raw))
    whole = READABLE["u8r3"]
    assert (found.dims, found.box) == ((288, *whole.dims[1:]), (32, *whole.box[1:]))
    assert (found.box_bytes, found.strides) == (whole.box_bytes // 2, whole.strides)
    assert found.elements((6, 5, 4)) == (3, 5, 4)
    with pytest.raises(Trap, match="coordinate 7"):
        found.elements((7, 5, 4))
    raw[55] = 62
    with pytest.raises(Unsupported, match="63 numbers"):
        tensor_map.decode(bytes(raw))


def test_rows_longer_than_the_swizzle_span_trap():
    raw = bytearray(SAMPLES["u8r3sw2"])
    raw[55] = 127
    with pytest.raises(Trap, match="128 bytes exceed the swizzle span of 64"):
        tensor_map.decode(bytes(raw))


def small_map(box, element_bytes=1, dims=(48, 10, 3), pad=16, span=0):
    strides = [element_bytes]
    for extent in dims[:-1]:
        strides.append(-(-strides[-1] * extent // 16) * 16 + pad)
    return TensorMap(1000, "?", element_bytes, dims, tuple(strides), box, span)


def box_elements(tmap, coords):
    """Element by element: (position in the box, byte offset in the tensor, inside)."""
    position = 0
    for index in np.ndindex(*tmap.box[::-1]):
        place = [c + i for c, i in zip(coords, index[::-1], strict=True)]
        offset = sum(p * s for p, s in zip(place, tmap.strides, strict=True))
        inside = all(0 <= p < n for p, n in zip(place, tmap.dims, strict=True))
        yield position, offset, inside
        position += tmap.element_bytes


CASES = [
    (small_map((16, 4, 1)), (16, 2, 1)),
    (small_map((16, 4, 2)), (40, 8, 2)),
    (small_map((16, 4, 2)), (-3, -1, -1)),
    (small_map((16, 4, 2)), (48, 0, 0)),
    (small_map((16, 4, 2)), (0, -4, 0)),
    (small_map((8, 4, 2), element_bytes=2), (44, 7, 1)),
    (small_map((4, 10, 3), element_bytes=4), (46, -1, 1)),
    (small_map((16,), dims=(50,)), (40,)),
    (small_map((16, 2, 1, 2, 2), dims=(20, 3, 2, 2, 2)), (8, 2, 1, 1, 1)),
]


@pytest.mark.parametrize(("tmap", "coords"), CASES)
def test_load_gathers_the_box_with_zeros_outside(tmap, coords):
    rng = np.random.default_rng(1)
    memory = rng.integers(1, 256, 40 + tmap.strides[-1] * tmap.dims[-1], dtype=np.uint8)
    base = tmap.address - 40
    want = np.zeros(tmap.box_bytes, np.uint8)
    for position, offset, inside in box_elements(tmap, coords):
        if inside:
            for byte in range(tmap.element_bytes):
                want[position + byte] = memory[40 + offset + byte]
    assert np.array_equal(tensor_map.load_box(tmap, coords, memory, base), want)


@pytest.mark.parametrize(("tmap", "coords"), CASES)
def test_store_writes_the_inside_and_nothing_else(tmap, coords):
    rng = np.random.default_rng(2)
    memory = rng.integers(0, 256, 40 + tmap.strides[-1] * tmap.dims[-1], dtype=np.uint8)
    data = rng.integers(0, 256, tmap.box_bytes, dtype=np.uint8)
    want = memory.copy()
    for position, offset, inside in box_elements(tmap, coords):
        if inside:
            for byte in range(tmap.element_bytes):
                want[40 + offset + byte] = data[position + byte]
    tensor_map.store_box(tmap, coords, data, memory=memory, memory_address=tmap.address - 40)
    assert np.array_equal(memory, want)


@pytest.mark.parametrize(("tmap", "coords"), CASES)
def test_offsets_and_mask_describe_the_same_box(tmap, coords):
    offsets, mask = tensor_map.box_offsets(tmap, coords)
    assert offsets.shape == mask.shape == (tmap.box_bytes // tmap.row_bytes, tmap.row_bytes)
    flat, valid = offsets.reshape(-1), mask.reshape(-1)
    for position, offset, inside in box_elements(tmap, coords):
        for byte in range(tmap.element_bytes):
            assert (flat[position + byte], valid[position + byte]) == (offset + byte, inside)
    assert mask.all() == (not tensor_map.box_bounds(tmap, coords))


def test_bounds_name_each_dimension_that_is_left():
    bounds = tensor_map.box_bounds(small_map((16, 4, 2)), (40, -1, 3))
    assert [(b.dimension, b.coordinate, b.box, b.limit) for b in bounds] == [
        (0, 40, 16, 48), (1, -1, 4, 10), (2, 3, 2, 3),
    ]  # fmt: skip
    assert [b.starts_outside for b in bounds] == [False, True, True]
    assert str(bounds[0]) == "dimension 0: box [40, 56) of [0, 48)"


def test_a_tensor_larger_than_its_buffer_is_out_of_bounds():
    tmap = small_map((16, 4, 1))
    needed = 2 * tmap.strides[2] + 9 * tmap.strides[1] + 48
    memory = np.zeros(needed, np.uint8)
    last = (32, 6, 2)
    tensor_map.load_box(tmap, last, memory, tmap.address)
    with pytest.raises(OutOfBounds, match="bytes"):
        tensor_map.load_box(tmap, last, memory[:-1], tmap.address)
    with pytest.raises(OutOfBounds, match="bytes"):
        tensor_map.load_box(tmap, (0, 0, 0), memory, tmap.address + 1)


def swizzled_by_hand(address: int, span: int) -> int:
    """PTX ISA: within a repeating pattern of 8 lines of 128 bytes, 16-byte chunks change places.

    With 128-byte swizzle, chunk c of line i goes to c xor i; with 64 bytes, the lines pair up and
    the two low bits of the chunk change; with 32 bytes, four lines share one value and the lowest
    bit changes. The pattern is that of whole 128-byte lines, as boxes of shorter rows lie dense.
    """
    line, chunk, byte = address // 128 % 8, address // 16 % 8, address % 16
    flip = {0: 0, 32: line % 2, 64: line % 4, 128: line}[span]
    return address // 128 * 128 + (chunk ^ flip) * 16 + byte


@pytest.mark.parametrize("span", [0, 32, 64, 128])
@pytest.mark.parametrize("offset", [0, 128, 1024, 2048 + 3 * 128])
def test_shared_placement_byte_by_byte(span, offset):
    rng = np.random.default_rng(3)
    box = rng.integers(0, 256, 1536, dtype=np.uint8)
    shared = rng.integers(0, 256, 8192, dtype=np.uint8)
    want = shared.copy()
    for position, value in enumerate(box):
        want[swizzled_by_hand(offset + position, span)] = value
    tensor_map.write_shared(shared, offset, box, span)
    assert np.array_equal(shared, want)
    assert np.array_equal(tensor_map.read_shared(shared, offset, box.size, span), box)
    if span:
        wrong = {32: 64, 64: 128, 128: 64}[span]
        assert not np.array_equal(tensor_map.read_shared(shared, offset, box.size, wrong), box)


def test_atoms_of_32_bytes_change_places_in_pairs_of_chunks():
    """Pair p of the four pairs of chunks in line i goes to p xor i."""
    chunks = tensor_map.shared_chunks(2048, 128, 512, atom=32)
    for position, chunk in enumerate(chunks.tolist()):
        address = 512 + 16 * position
        line, pair, byte = address // 128, address // 32 % 4, address % 32
        assert chunk * 16 == line * 128 + (pair ^ line % 4) * 32 + byte


def flagged(name, flags):
    raw = bytearray(SAMPLES[name])
    struct.pack_into("<I", raw, 8, struct.unpack_from("<I", raw, 8)[0] | flags)
    return tensor_map.decode(bytes(raw))


def test_wide_atoms_and_tf32_are_flags():
    assert flagged("u8r3sw3_box128", 1 << 19).atom == 32
    assert tensor_map.decode(SAMPLES["u8r3sw3_box128"]).atom == 16
    assert flagged("f32r3_str5760", 1 << 16).element == "tf32"
    with pytest.raises(Unsupported, match="atoms of 32 bytes and swizzle code 2"):
        flagged("u8r3sw2", 1 << 19)


def test_tf32_loads_take_what_is_tf32_alone():
    tmap = replace(flagged("f32r3_str5760", 1 << 16), address=0, dims=(16, 8, 1))
    memory = np.zeros(5760 * 8, np.uint8)
    words = memory.view(np.uint32)
    words[:] = np.random.default_rng(2).integers(0, 2**19, words.size, np.uint32) << 13
    words[16] |= 1  # beside the box
    rows = memory.reshape(8, 5760)[:, :64]
    assert np.array_equal(tensor_map.load_box(tmap, (0, 0, 0), memory, 0), rows.reshape(-1))
    words[15] |= 1
    with pytest.raises(Unsupported, match="bits below those of tf32"):
        tensor_map.load_box(tmap, (0, 0, 0), memory, 0)


def test_swizzle_moves_within_its_span_only():
    addresses = np.arange(4096)
    for span in (32, 64, 128):
        placed = tensor_map.swizzle(addresses, span)
        assert np.array_equal(placed // span, addresses // span)
        assert np.array_equal(np.sort(placed), addresses)


def test_shared_errors():
    shared = np.zeros(4096, np.uint8)
    with pytest.raises(Trap, match="0x40 is not a multiple of 128"):
        tensor_map.write_shared(shared, 64, np.zeros(128, np.uint8), 0)
    with pytest.raises(Trap, match="multiple of 16"):
        tensor_map.write_shared(shared, 0, np.zeros(24, np.uint8), 0)
    with pytest.raises(OutOfBounds, match="4096"):
        tensor_map.read_shared(shared, 4096 - 128, 256, 0)
