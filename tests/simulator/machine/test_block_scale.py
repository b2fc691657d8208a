"""Block-scaled MMAs and A in tensor memory, against float64 products of what was laid out."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import OutOfBounds, Trap, Uninitialised, Unsupported
from simulator.machine.block_scale import DEPTH, ScaledDescriptor, Scales, read_scales
from simulator.machine.mma import Cta, Mma, ScaledMma, mma, scaled_mma
from simulator.machine.shared_memory import SharedMemory
from simulator.machine.tensor_core import InstructionDescriptor, SharedDescriptor
from simulator.machine.tensor_memory import TensorMemory
from simulator.numerics.accumulate import ideal, scaled_sum

SHARED_BYTES = 1 << 17
A_AT, B_AT = 0, 0x10000
D_AT, SFA_AT, SFB_AT = 0, 256, 264
E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
"""The magnitudes of the OCP format by code; the fourth bit is the sign."""


def value_of(code: int, exponent_bits: int, mantissa_bits: int, bias: int) -> float:
    """A floating-point code by its definition."""
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) & 1 else 1.0
    exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
    fraction = code & ((1 << mantissa_bits) - 1)
    if exponent == 0:
        return sign * fraction * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + fraction / 2**mantissa_bits) * 2.0 ** (exponent - bias)


E4M3_VALUES = np.array([value_of(c, 4, 3, 7) for c in range(256)])


def operand(rng: np.random.Generator, kind: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Random bytes [rows, 32] of K, and the numbers they stand for."""
    data = rng.integers(0, 256, (rows, 32), np.uint8)
    if kind == "mxf8f6f4":
        data[data & 0x7F == 0x7F] = 0x38
        return data, E4M3_VALUES[data]
    codes = np.stack([data & 15, data >> 4], axis=-1).reshape(rows, 64)
    return data, np.where(codes & 8, -1, 1) * E2M1_VALUES[codes & 7]


def place_rows(shared: SharedMemory, start: int, data: np.ndarray) -> SharedDescriptor:
    """Lay rows out K-major without swizzle: 8 rows by 16 bytes lie together."""
    rows = len(data)
    for row, byte in np.ndindex(rows, 32):
        at = start + row % 8 * 16 + row // 8 * 128 + byte // 16 * rows * 16 + byte % 16
        shared.bytes[at] = data[row, byte]
    bits = start >> 4 | rows * 16 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46
    return SharedDescriptor.decode(bits)


def scale_codes(rng, fmt: str, rows: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Random scale codes [rows, count] and their values."""
    if fmt == "ue8m0":
        codes = rng.integers(120, 135, (rows, count), np.uint8)
        return codes, 2.0 ** (codes.astype(int) - 127)
    codes = rng.integers(1, 0x7F, (rows, count), np.uint8)
    return codes, E4M3_VALUES[codes]


def place_scales(memory: TensorMemory, column: int, codes: np.ndarray, first: int, rng) -> None:
    """Put scales into the bytes from ``first`` on of their words; the other bytes are noise."""
    rows, count = codes.shape
    words = rng.integers(0, 256, (-(-rows // 32) * 32, 4), np.uint8)
    words[:rows, first : first + count] = codes
    for row, word in enumerate(words):
        for quarter in range(4):
            lane = 32 * quarter + row % 32
            memory.words[lane, column + row // 32] = word.view(np.uint32)[0]
            memory.valid[lane, column + row // 32] = True


def descriptor_bits(m, n, kind, fmt, first_a=0, first_b=0):
    code = 0 if kind == "mxf8f6f4" else 1
    return (
        first_b << 4 | code << 7 | code << 10 | n >> 3 << 17 | (fmt == "ue8m0") << 23
        | m >> 4 << 24 | first_a << 29
    )  # fmt: skip


FORMS = [
    ("mxf8f6f4", 32, "ue8m0", 1, 64, 0),
    ("mxf8f6f4", 32, "ue8m0", 1, 96, 3),
    ("mxf8f6f4", 32, "ue8m0", 2, 128, 2),
    ("mxf4", 32, "ue8m0", 1, 64, 2),
    ("mxf4nvf4", 32, "ue8m0", 1, 64, 0),
    ("mxf4nvf4", 16, "ue4m3", 1, 40, 0),
    ("mxf4nvf4", 16, "ue4m3", 2, 256, 0),
]


@pytest.mark.parametrize("a_in_tmem", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=lambda f: "-".join(map(str, f)))
def test_the_product_of_scaled_operands(form, a_in_tmem):
    """Twice, the second time onto the first: D is exact up to its rounding."""
    kind, block, fmt, group, n, first = form
    rng = np.random.default_rng(n + first)
    m, count = 128 * group, DEPTH[kind] // block
    ctas, rows, columns, weights = [], [], [], []
    for _ in range(group):
        cta = Cta(SharedMemory(SHARED_BYTES, check_initialised=False), TensorMemory())
        cta.tensor_memory.allocate(512)
        data, values = operand(rng, kind, 128)
        a = place_rows(cta.shared, A_AT, data)
        cta.tensor_memory.write_block(slice(0, 128), 300, data.view(np.float32))
        codes, scales = scale_codes(rng, fmt, 128, count)
        place_scales(cta.tensor_memory, SFA_AT, codes, first, rng)
        rows.append(values * scales.repeat(block, axis=1))
        data, values = operand(rng, kind, n // group)
        b = place_rows(cta.shared, B_AT, data)
        columns.append(values)
        ctas.append(cta)
    codes, weights = scale_codes(rng, fmt, n, count)
    for cta in ctas:
        place_scales(cta.tensor_memory, SFB_AT, codes, first, rng)
    instruction = ScaledDescriptor.decode(descriptor_bits(m, n, kind, fmt, first, first), kind)
    instruction.validate(kind, block, group)
    scales = Scales(SFA_AT, first, count), Scales(SFB_AT, first, count)
    for accumulate in (False, True):
        one = ScaledMma(group, instruction, 300 if a_in_tmem else a, b, D_AT, accumulate, scales)
        scaled_mma(one, ctas, is_ideal=True)
    expected = (
        2 * np.concatenate(rows) @ (np.concatenate(columns) * weights.repeat(block, axis=1)).T
    )
    d = np.concatenate([c.tensor_memory.words.view(np.float32)[:, :n] for c in ctas])
    size = (
        2
        * np.abs(np.concatenate(rows))
        @ np.abs(np.concatenate(columns) * weights.repeat(block, axis=1)).T
    )
    assert (np.abs(d - expected) <= 2.0**-22 * size).all()
    assert np.abs(expected).max() > 1


def test_scales_must_be_alike_in_all_quarters():
    rng = np.random.default_rng(1)
    memory = TensorMemory()
    memory.allocate(32)
    codes, values = scale_codes(rng, "ue8m0", 64, 2)
    place_scales(memory, 4, codes, 2, rng)
    assert np.array_equal(read_scales(memory, Scales(4, 2, 2), 64, "ue8m0"), values)
    memory.words[70, 5] ^= 1
    with pytest.raises(Trap, match="differ between the quarters"):
        read_scales(memory, Scales(4, 2, 2), 64, "ue8m0")
    with pytest.raises(Uninitialised):
        read_scales(memory, Scales(8, 2, 2), 64, "ue8m0")
    with pytest.raises(OutOfBounds):
        read_scales(memory, Scales(31, 2, 2), 64, "ue8m0")


def test_special_scales():
    memory = TensorMemory()
    memory.allocate(32)
    memory.words[:, 0], memory.valid[:, 0] = 0x7EFF00FF, True
    found = read_scales(memory, Scales(0, 0, 4), 32, "ue8m0")[0]
    assert np.isnan(found[0])
    assert np.isnan(found[2])
    assert found[1::2].tolist() == [2.0**-127, 2.0**-1]
    found = read_scales(memory, Scales(0, 0, 4), 32, "ue4m3")[0]
    assert np.isnan(found[0])
    assert found[1::2].tolist() == [0, 448]


def test_the_fused_sum_cuts_what_lies_25_bits_below():
    """Terms 1, 2^-24 and 2^-26 beside each other: the last one is gone, unless the sum is ideal."""
    a = np.zeros((1, 64), np.float32)
    a[0, [0, 16, 32]] = 1
    b = np.zeros((1, 64), np.float32)
    b[0, [0, 16, 32]] = 1
    scales = np.array([[2.0, 2.0**-24, 2.0**-26, 0]])
    ones = np.ones((1, 4))
    fused = scaled_sum((a, scales), (b, ones), np.array([[-2]], np.float32), is_ideal=False)
    exact = scaled_sum((a, scales), (b, ones), np.array([[-2]], np.float32), is_ideal=True)
    assert fused[0, 0] == 2.0**-24
    assert exact[0, 0] == 2.0**-24 + 2.0**-26


@pytest.mark.parametrize(
    ("bits", "kind", "message"),
    [
        (1 << 2, "mxf4", "sparsity"),
        (1 << 31, "mxf4nvf4", "K of 96"),
        (5 << 7, "mxf8f6f4", "A type 5"),
        (0, "mxf4", "A type 0"),
    ],
)
def test_unverified_descriptors_are_refused_by_name(bits, kind, message):
    with pytest.raises(Unsupported, match=message):
        ScaledDescriptor.decode(bits, kind)


@pytest.mark.parametrize(
    ("kind", "block", "group", "changes", "error"),
    [
        ("mxf4", 32, 1, {"fmt": "ue4m3"}, Trap),
        ("mxf4nvf4", 16, 1, {"first_a": 2}, Trap),
        ("mxf8f6f4", 32, 2, {"m": 128}, Unsupported),
    ],
)
def test_fields_must_fit_the_mnemonic(kind, block, group, changes, error):
    fields = {"m": 128 * group, "n": 64, "kind": kind, "fmt": "ue8m0", **changes}
    with pytest.raises(error):
        ScaledDescriptor.decode(descriptor_bits(**fields), kind).validate(kind, block, group)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("fmt", ["f16", "bf16", "e4m3", "tf32"])
def test_a_in_tensor_memory(fmt, group):
    """Row r in lane r, two halves, four bytes or one word a column."""
    rng = np.random.default_rng(4)
    size = {"f16": 2, "bf16": 2, "e4m3": 1, "tf32": 4}[fmt]
    kind = {"f16": "f16", "bf16": "f16", "e4m3": "f8f6f4", "tf32": "tf32"}[fmt]
    code = {"f16": 0, "bf16": 1, "e4m3": 0, "tf32": 2}[fmt]
    ctas, sides = [], ([], [])
    for _ in range(group):
        cta = Cta(SharedMemory(SHARED_BYTES, check_initialised=False), TensorMemory())
        cta.tensor_memory.allocate(512)
        for side, rows in zip(sides, (128, 64 // group), strict=True):
            numbers = rng.standard_normal((rows, 32 // size)).astype(np.float32)
            if fmt == "e4m3":
                data, values = operand(rng, "mxf8f6f4", rows)
            elif fmt == "f16":
                half = numbers.astype(np.float16)
                data, values = half.view(np.uint8), half.astype(float)
            else:
                words = numbers.view(np.uint32) & np.uint32(
                    0xFFFF0000 if fmt == "bf16" else 0xFFFFE000
                )
                values = words.view(np.float32).astype(float)
                data = (words >> 16).astype(np.uint16) if fmt == "bf16" else words
                data = data.view(np.uint8)
            side.append(values)
            if rows == 128:
                cta.tensor_memory.write_block(slice(0, 128), 300, data.view(np.float32))
            else:
                b = place_rows(cta.shared, B_AT, data)
        ctas.append(cta)
    bits = 1 << 4 | code << 7 | code << 10 | 64 >> 3 << 17 | 128 * group >> 4 << 24
    instruction = InstructionDescriptor.decode(bits, kind)
    mma(Mma(group, False, instruction, 300, b, D_AT, False), ctas, ideal)
    expected = np.concatenate(sides[0]) @ np.concatenate(sides[1]).T
    d = np.concatenate([c.tensor_memory.words.view(np.float32)[:, :64] for c in ctas])
    assert np.abs(d - expected).max() <= 1e-6 * np.abs(expected).max()


def test_a_in_tensor_memory_has_one_known_layout():
    cta = Cta(SharedMemory(SHARED_BYTES, check_initialised=False), TensorMemory())
    cta.tensor_memory.allocate(512)
    b = SharedDescriptor.decode(128 >> 4 << 32 | 1 << 46)
    for m, a, stationary, message in (
        (64, 300, False, "64 rows of A"),
        (128, 16 << 16, False, "at lane 16"),
        (64, 300, True, r"\.ws"),
    ):
        bits = 1 << 4 | 64 >> 3 << 17 | m >> 4 << 24
        instruction = InstructionDescriptor.decode(bits, "f16")
        with pytest.raises(Unsupported, match=message):
            mma(Mma(1, stationary, instruction, a, b, D_AT, False), [cta], ideal)
    bits = 1 << 4 | 64 >> 3 << 17 | 128 >> 4 << 24
    instruction = InstructionDescriptor.decode(bits, "f16")
    with pytest.raises(Uninitialised, match="column 300"):
        mma(Mma(1, False, instruction, 300, b, D_AT, False), [cta], ideal)
