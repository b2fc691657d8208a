"""The tensor core against float64 matrix products of operands laid out element by element."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import OutOfBounds, Trap, Uninitialised, Unsupported
from simulator.machine import tensor_core, tensor_map
from simulator.machine.mma import Cta, Mma, mma, read_operand
from simulator.machine.shared_memory import SharedMemory
from simulator.machine.tensor_core import InstructionDescriptor, SharedDescriptor
from simulator.machine.tensor_memory import TensorMemory
from simulator.numerics.accumulate import b200, ideal
from simulator.numerics.formats import BF16, E4M3, E5M2, F16, TF32, decode

SHARED_BYTES = 1 << 17
LAYOUT_CODES = {0: 0, 128: 2, 64: 4, 32: 6}
FORMAT_CODES = {E4M3: 0, E5M2: 1, F16: 0, BF16: 1, TF32: 2}
KINDS = {8: "f8f6f4", 16: "f16", 32: "tf32"}


def descriptor_bits(start, leading=0, stride=0, span=128, atom=16):
    code = 1 if atom == 32 else LAYOUT_CODES[span]
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | code << 61


def instruction_bits(m, n, fmt, fmt_b=None, *, major_a=0, major_b=0, negate_a=0, negate_b=0):
    formats = FORMAT_CODES[fmt] << 7 | FORMAT_CODES[fmt_b or fmt] << 10
    flags = negate_a << 13 | negate_b << 14 | major_a << 15 | major_b << 16
    return 1 << 4 | formats | flags | n >> 3 << 17 | m >> 4 << 24


def swizzled(address, span, atom=16):
    """One byte address after the swizzle: the chunk number in its line, xor the line number."""
    if span == 0:
        return address
    if atom == 32:
        line, pair, byte = address // 128, address // 32 % 4, address % 32
        return line * 128 + (pair ^ line % 4) * 32 + byte
    line, chunk, byte = address // 128, address // 16 % 8, address % 16
    return line * 128 + (chunk ^ (line % (span // 16))) * 16 + byte


def write_element(shared, address, code, size, span, atom):
    for byte in range(size):
        shared[swizzled(address + byte, span, atom)] = int(code) >> (8 * byte) & 0xFF


class Operand:
    """A random [rows, k] matrix of ``fmt`` in the shared memory of one CTA, tile after tile.

    K-major: tiles of eight rows by one span of k; tiles lie row group after row group, then k.
    MN-major: tiles of one span of rows by eight k; tiles lie k group after k group, then rows.
    Without swizzle a span has 16 bytes, and the strides of MN-major tiles change their names.
    Swizzle atoms of 32 bytes come in tiles of four k.
    """

    def __init__(self, rng, shared, start, rows, steps, *, fmt, span=128, mn_major=False, atom=16):
        size = fmt.storage_bits // 8
        depth = steps * 32 // size
        self.codes = random_codes(rng, fmt, (rows, depth))
        self.values = decode(self.codes, fmt).astype(np.float64)
        self.start, self.span, self.mn_major, self.steps = start, span, mn_major, steps
        self.atom, group, span = atom, 4 if atom == 32 else 8, span or 16
        tile, per_span = group * span, span // size
        self.k_step, self.row_step = tile, tile * (depth // group)
        if mn_major:
            self.stride, self.leading = self.k_step, self.row_step
            if not self.span:
                self.stride, self.leading = self.leading, self.stride
        else:
            self.stride, self.leading = tile, 0 if self.span else tile * (rows // 8)
        self.group = group
        for (row, k), code in np.ndenumerate(self.codes):
            if mn_major:
                place = row // per_span * self.row_step + k // group * self.k_step
                place += k % group * span + row % per_span * size
            else:
                place = k // per_span * tile * (rows // 8) + row // 8 * self.stride
                place += row % 8 * span + k % per_span * size
            write_element(shared, start + place, code, size, self.span, atom)
        self.rows, self.size = rows, size

    def descriptor(self, step):
        if self.mn_major:
            start = self.start + step * (32 // self.size // self.group) * self.k_step
        else:
            span = self.span or 16
            spans, within = divmod(step * 32, span)
            start = self.start + spans * 8 * span * (self.rows // 8) + within
        bits = descriptor_bits(start, self.leading, self.stride, self.span, self.atom)
        return SharedDescriptor.decode(bits)


def random_codes(rng, fmt, shape):
    if fmt is TF32:  # what lies below a tf32 in its word must not count
        noise = rng.integers(0, 1 << 13, shape, np.uint32)
        values = rng.standard_normal(shape).astype(np.float32)
        return values.view(np.uint32) & np.uint32(0xFFFFE000) | noise
    codes = rng.integers(0, 1 << fmt.storage_bits, shape)
    if fmt.storage_bits == 16:
        values = rng.standard_normal(shape).astype(np.float32)
        if fmt is F16:
            return values.astype(np.float16).view(np.uint16)
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    nan = (codes & 0x7F) >= (0x7F if fmt is E4M3 else 0x7C)
    return np.where(nan, 0x38, codes)


def place(cta_group, weight_stationary, m, n, row, column):
    """(cta, lane, column) of one element of D, as the table of accumulator layouts has it."""
    if cta_group == 2 and m == 256:
        return row // 128, row % 128, column
    if cta_group == 2:
        return row // 64, row % 64 + 64 * (column >= n // 2), column % (n // 2)
    if weight_stationary:
        return 0, row + 64 * (column >= n // 2), column % (n // 2)
    if m == 64:
        return 0, 32 * (row // 16) + row % 16, column
    return 0, row, column


FORMS = [
    # cta_group, ws, m, n, format, span, major_a, major_b
    (2, False, 256, 64, E4M3, 128, False, False),
    (2, False, 256, 32, F16, 64, False, False),
    (2, False, 128, 128, E4M3, 128, False, False),
    (2, False, 128, 128, E4M3, 64, False, True),
    (2, False, 128, 128, BF16, 128, False, True),
    (1, True, 64, 128, E4M3, 128, False, False),
    (1, True, 64, 64, E4M3, 64, True, True),
    (1, True, 64, 128, F16, 128, False, True),
    (1, False, 64, 24, E4M3, 128, False, False),
    (1, False, 64, 128, BF16, 128, True, True),
    (1, False, 128, 16, E5M2, 128, False, False),
    (1, False, 128, 64, BF16, 64, False, True),
    (1, False, 128, 32, F16, 32, False, True),
    (2, False, 256, 64, E4M3, 32, True, False),
    (1, False, 64, 32, BF16, 0, False, False),
    (1, False, 128, 32, E4M3, 0, True, True),
    (1, False, 128, 32, TF32, 128, False, False),
    (2, False, 256, 32, TF32, 64, False, False),
    (1, False, 64, 64, TF32, (128, 32), True, True),
]
STEPS = 5


def shared_memory(contents=None):
    """Shared memory whose bytes a test may set as it likes."""
    memory = SharedMemory(SHARED_BYTES, check_initialised=False)
    memory.bytes[:] = 0 if contents is None else contents
    return memory


def run_form(form, seed=0, *, steps=STEPS, accumulate_first=False, span_read=None, **flags):
    cta_group, ws, m, n, fmt, span, major_a, major_b = form
    span, atom = span if isinstance(span, tuple) else (span, 16)
    rng = np.random.default_rng(seed)
    ctas, sides = [], ([], [])
    for _ in range(cta_group):
        shared = rng.integers(0, 256, SHARED_BYTES, dtype=np.uint8)
        memory = TensorMemory()
        memory.allocate(512)
        ctas.append(Cta(shared_memory(shared), memory))
        shared = ctas[-1].shared.bytes
        for side, (rows, start, major) in enumerate(((m, 1024, major_a), (n, 0x10000, major_b))):
            sides[side].append(
                Operand(rng, shared, start, rows // cta_group, steps, fmt=fmt, span=span,
                        mn_major=major, atom=atom)
            )  # fmt: skip
    bits = instruction_bits(m, n, fmt, major_a=major_a, major_b=major_b, **flags)
    instruction = InstructionDescriptor.decode(bits, KINDS[fmt.storage_bits])
    for step in range(steps):
        a, b = (side[0].descriptor(step) for side in sides)
        if span_read:
            a = SharedDescriptor(a.start, a.leading, a.stride, span_read)
        mma(Mma(cta_group, ws, instruction, a, b, 96, accumulate_first or step > 0), ctas, ideal)
    a, b = (np.concatenate([part.values for part in side]) for side in sides)
    return ctas, a @ b.T


def read_d(form, ctas):
    cta_group, ws, m, n = form[:4]
    d = np.empty((m, n), np.float32)
    for row, column in np.ndindex(m, n):
        cta, lane, at = place(cta_group, ws, m, n, row, column)
        d[row, column] = ctas[cta].tensor_memory.words.view(np.float32)[lane, 96 + at]
    return d


def tolerance(expected):
    return 4e-6 * np.abs(expected).max()


@pytest.mark.parametrize(
    "form", FORMS, ids=lambda f: "-".join(str(getattr(x, "name", x)) for x in f)
)
def test_d_is_the_matrix_product_in_the_documented_layout(form):
    ctas, expected = run_form(form)
    assert np.abs(read_d(form, ctas) - expected).max() <= tolerance(expected)
    written = sum(int(cta.tensor_memory.valid.sum()) for cta in ctas)
    assert written == form[2] * form[3]


@pytest.mark.parametrize(("negate_a", "negate_b", "sign"), [(1, 0, -1), (0, 1, -1), (1, 1, 1)])
def test_negation(negate_a, negate_b, sign):
    form = (1, True, 64, 64, E4M3, 128, False, False)
    ctas, expected = run_form(form, negate_a=negate_a, negate_b=negate_b)
    assert np.abs(read_d(form, ctas) - sign * expected).max() <= tolerance(expected)


def test_a_wrong_swizzle_reads_other_values():
    form = (1, True, 64, 64, E4M3, 128, False, False)
    ctas, expected = run_form(form, span_read=64)
    error = np.abs(read_d(form, ctas) - expected)
    # The bytes between the rows are random, NaN codes among them.
    assert np.count_nonzero(~(error <= tolerance(expected))) > error.size / 2


def test_without_accumulation_d_is_overwritten():
    form = (1, True, 64, 64, E4M3, 128, False, False)
    whole, expected = run_form(form, steps=2)
    first, _ = run_form(form, steps=2)
    memory = first[0].tensor_memory
    assert np.array_equal(read_d(form, whole), read_d(form, first))
    assert memory.valid[:, 96:128].all()
    assert not memory.valid[:, :96].any()
    assert np.abs(read_d(form, whole) - expected).max() <= tolerance(expected)


def test_adding_to_what_nobody_wrote_is_reported():
    with pytest.raises(Uninitialised, match="lane 0, column 96"):
        run_form((1, True, 64, 64, E4M3, 128, False, False), accumulate_first=True)


def test_mixed_eight_bit_formats():
    rng = np.random.default_rng(5)
    cta = Cta(shared_memory(), TensorMemory())
    cta.tensor_memory.allocate(64)
    a = Operand(rng, cta.shared.bytes, 0, 64, 1, fmt=E4M3)
    b = Operand(rng, cta.shared.bytes, 0x8000, 64, 1, fmt=E5M2)
    instruction = InstructionDescriptor.decode(instruction_bits(64, 64, E4M3, E5M2), "f8f6f4")
    mma(Mma(1, True, instruction, a.descriptor(0), b.descriptor(0), 0, False), [cta], ideal)
    d = np.hstack([cta.tensor_memory.words.view(np.float32)[h : h + 64, :32] for h in (0, 64)])
    assert np.array_equal(d, (a.values @ b.values.T).astype(np.float32))


@pytest.mark.parametrize("signed", [(0, 0), (1, 1), (1, 0)])
@pytest.mark.parametrize("saturates", [False, True])
def test_whole_numbers_are_added_exactly(signed, saturates):
    """The accumulator begins near the ends of its range, where it wraps around or stays."""
    rng = np.random.default_rng(8)
    cta = Cta(shared_memory(), TensorMemory())
    cta.tensor_memory.allocate(64)
    a = Operand(rng, cta.shared.bytes, 0, 128, 1, fmt=E4M3)
    b = Operand(rng, cta.shared.bytes, 0x8000, 64, 1, fmt=E4M3)
    types = signed[0] << 7 | signed[1] << 10 | saturates << 3 | 2 << 4
    bits = types | 64 >> 3 << 17 | 128 >> 4 << 24
    start = rng.choice([-(2**31), 2**31 - 1, 7], (128, 64))
    cta.tensor_memory.write_block(slice(0, 128), 0, start.astype(np.int32).view(np.float32))
    instruction = InstructionDescriptor.decode(bits, "i8")
    mma(Mma(1, False, instruction, a.descriptor(0), b.descriptor(0), 0, True), [cta], ideal)
    whole = [side.codes.astype(np.int8 if s else np.uint8).astype(np.int64)
             for side, s in zip((a, b), signed, strict=True)]  # fmt: skip
    exact = whole[0] @ whole[1].T + start
    expected = exact.clip(-(2**31), 2**31 - 1) if saturates else exact.astype(np.int32)
    assert np.array_equal(cta.tensor_memory.words[:, :64].view(np.int32), expected)
    assert (exact != expected).any()


def test_a_half_precision_accumulator_lies_in_low_halves():
    rng = np.random.default_rng(9)
    cta = Cta(shared_memory(), TensorMemory())
    cta.tensor_memory.allocate(64)
    a = Operand(rng, cta.shared.bytes, 0, 128, 1, fmt=F16)
    b = Operand(rng, cta.shared.bytes, 0x8000, 64, 1, fmt=F16)
    start = rng.standard_normal((128, 64)).astype(np.float16)
    words = start.view(np.uint16).astype(np.uint32) | 0xABCD0000
    cta.tensor_memory.write_block(slice(0, 128), 0, words.view(np.float32))
    instruction = InstructionDescriptor.decode(instruction_bits(128, 64, F16) ^ 1 << 4, "f16")
    mma(Mma(1, False, instruction, a.descriptor(0), b.descriptor(0), 0, True), [cta], ideal)
    found = (cta.tensor_memory.words[:, :64] & 0xFFFF).astype(np.uint16).view(np.float16)
    expected = a.values @ b.values.T + start
    assert (np.abs(found - expected) <= 2.0**-11 * np.abs(expected) + 2.0**-20).all()


@pytest.mark.parametrize("lane", [16, 32])
def test_64_rows_may_lie_in_the_other_half_of_the_lanes(lane):
    rng = np.random.default_rng(10)
    cta = Cta(shared_memory(), TensorMemory())
    cta.tensor_memory.allocate(64)
    a = Operand(rng, cta.shared.bytes, 0, 64, 1, fmt=E4M3)
    b = Operand(rng, cta.shared.bytes, 0x8000, 32, 1, fmt=E4M3)
    instruction = InstructionDescriptor.decode(instruction_bits(64, 32, E4M3), "f8f6f4")
    one = Mma(1, False, instruction, a.descriptor(0), b.descriptor(0), lane << 16, False)
    if lane == 32:
        with pytest.raises(Unsupported, match="M 64 at lane 32"):
            mma(one, [cta], ideal)
        return
    mma(one, [cta], ideal)
    rows = [32 * (row // 16) + 16 + row % 16 for row in range(64)]
    d = cta.tensor_memory.words.view(np.float32)[rows, :32]
    assert np.array_equal(d, (a.values @ b.values.T).astype(np.float32))
    assert not np.delete(cta.tensor_memory.valid, rows, axis=0).any()


def test_k_major_operands_have_no_wide_swizzle_atoms():
    at = SharedDescriptor.decode(descriptor_bits(1024, stride=1024, atom=32))
    with pytest.raises(Unsupported, match="K-major operand with swizzle atoms of 32 bytes"):
        tensor_core.operand_chunks(at, 64, element_bytes=4, mn_major=False)


def test_operands_loaded_by_tensor_copies_are_read_back():
    rng = np.random.default_rng(6)
    shared = shared_memory()
    tile = random_codes(rng, E4M3, (64, 128)).astype(np.uint8)
    tensor_map.write_shared(shared.bytes, 4096, tile.reshape(-1), 128)
    for step in range(4):
        at = SharedDescriptor.decode(descriptor_bits(4096 + 32 * step, stride=1024))
        read = read_operand(shared, at, 64, fmt=E4M3, mn_major=False)
        assert np.array_equal(read, decode(tile[:, 32 * step : 32 * step + 32], E4M3))
    at = SharedDescriptor.decode(descriptor_bits(4096 + 4096, leading=0, stride=1024))
    read = read_operand(shared, at, 128, fmt=E4M3, mn_major=True)
    assert np.array_equal(read, decode(tile[32:64].T, E4M3))


def test_chunks_are_those_that_the_operand_covers():
    at = SharedDescriptor.decode(descriptor_bits(2048 + 64, stride=1024))
    chunks = tensor_core.operand_chunks(at, 16, element_bytes=1, mn_major=False)
    bytes_of = {swizzled(2048 + 64 + 128 * r + b, 128) // 16 for r in range(16) for b in range(32)}
    assert set(chunks.ravel().tolist()) == bytes_of


def test_an_operand_beyond_shared_memory_is_out_of_bounds():
    at = SharedDescriptor.decode(descriptor_bits(SHARED_BYTES - 1024, stride=1024))
    shared = shared_memory()
    read_operand(shared, at, 8, fmt=E4M3, mn_major=False)
    with pytest.raises(OutOfBounds, match=rf"ends at shared\[{SHARED_BYTES}\]"):
        read_operand(shared, at, 16, fmt=E4M3, mn_major=False)


def test_an_operand_that_nobody_wrote_is_reported():
    at = SharedDescriptor.decode(descriptor_bits(2048, stride=1024))
    shared = SharedMemory(SHARED_BYTES, check_initialised=True)
    shared.scatter(np.arange(2048, 3072), np.ones(1024, np.uint8))
    read_operand(shared, at, 8, fmt=E4M3, mn_major=False)
    with pytest.raises(Uninitialised, match=r"shared\[3072\]: read before"):
        read_operand(shared, at, 16, fmt=E4M3, mn_major=False)


def test_an_accumulator_beyond_the_allocation_is_out_of_bounds():
    cta = Cta(shared_memory(), TensorMemory())
    cta.tensor_memory.allocate(32)
    instruction = InstructionDescriptor.decode(instruction_bits(128, 64, E4M3), "f8f6f4")
    at = SharedDescriptor.decode(descriptor_bits(0, stride=1024))
    with pytest.raises(OutOfBounds, match=r"\[0, 64\)"):
        mma(Mma(1, False, instruction, at, at, 0, False), [cta], ideal)
    with pytest.raises(Unsupported, match="lane 16"):
        mma(Mma(1, False, instruction, at, at, 16 << 16, False), [cta], ideal)


def test_the_accumulation_strategy_is_a_parameter():
    form = (1, False, 128, 64, E4M3, 128, False, False)
    calls = []

    def spy(a, b, c, **facts):
        calls.append((a.shape, b.shape, c, facts))
        return b200(a, b, c, **facts)

    rng = np.random.default_rng(7)
    cta = Cta(shared_memory(), TensorMemory())
    cta.tensor_memory.allocate(64)
    a, b = (Operand(rng, cta.shared.bytes, s, r, 1, fmt=E4M3) for s, r in ((0, 128), (0x10000, 64)))
    instruction = InstructionDescriptor.decode(instruction_bits(*form[2:5]), "f8f6f4")
    mma(Mma(1, False, instruction, a.descriptor(0), b.descriptor(0), 0, False), [cta], spy)
    assert calls == [((128, 32), (64, 32), None, {"step": 32, "formats": (E4M3, E4M3)})]


GOOD_DESCRIPTOR = descriptor_bits(1024, stride=1024)


@pytest.mark.parametrize(
    ("bits", "message"),
    [
        (GOOD_DESCRIPTOR ^ 1 << 46, "version 0"),
        (GOOD_DESCRIPTOR | 1 << 49, "base offset 1"),
        (GOOD_DESCRIPTOR | 1 << 52, "absolute"),
        (GOOD_DESCRIPTOR | 1 << 55, "reserved"),
        (GOOD_DESCRIPTOR | 7 << 61, "swizzle mode 7 .invalid."),
    ],
)
def test_unverified_shared_descriptors_are_refused_by_name(bits, message):
    with pytest.raises(Unsupported, match=message):
        SharedDescriptor.decode(bits)


def test_shared_descriptor_fields():
    bits = descriptor_bits(0x3AC60, leading=0x4010, stride=0x2C80, span=64)
    assert SharedDescriptor.decode(bits) == SharedDescriptor(0x3AC60, 0x4010, 0x2C80, 64)


GOOD_INSTRUCTION = instruction_bits(128, 64, E4M3)


@pytest.mark.parametrize(
    ("bits", "kind", "message"),
    [
        (GOOD_INSTRUCTION | 1 << 2, "f8f6f4", "sparsity"),
        (GOOD_INSTRUCTION | 1 << 3, "f8f6f4", "saturation"),
        (GOOD_INSTRUCTION | 1 << 30, "f8f6f4", "maximum shift"),
        (GOOD_INSTRUCTION | 1 << 23, "f8f6f4", "reserved"),
        (GOOD_INSTRUCTION ^ 1 << 4, "tf32", "accumulator type 0"),
        (GOOD_INSTRUCTION, "i8", "accumulator type 1"),
        (GOOD_INSTRUCTION | 5 << 7, "f8f6f4", "A type 5 .e2m1."),
        (GOOD_INSTRUCTION | 3 << 10, "f8f6f4", "B type 3 .e2m3."),
        (GOOD_INSTRUCTION | 2 << 7, "f16", "A type 2 .unknown."),
        (GOOD_INSTRUCTION, "tf32", "A type 0"),
        (GOOD_INSTRUCTION, "mxf4", ".kind::mxf4"),
    ],
)
def test_unverified_instruction_descriptors_are_refused_by_name(bits, kind, message):
    with pytest.raises(Unsupported, match=message):
        InstructionDescriptor.decode(bits, kind)


def test_instruction_descriptor_fields():
    bits = instruction_bits(256, 208, F16, BF16, major_a=1, negate_b=1)
    assert InstructionDescriptor.decode(bits, "f16") == InstructionDescriptor(
        m=256, n=208, a=F16, b=BF16, negate_a=False, negate_b=True, mn_major_a=True,
        mn_major_b=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ((1, False, 256, 64), Trap), ((1, False, 64, 264), Trap), ((1, False, 128, 0), Trap),
        ((2, False, 64, 64), Trap), ((2, False, 256, 24), Trap), ((1, True, 64, 96), Trap),
        ((2, True, 128, 128), Trap), ((1, True, 32, 64), Unsupported),
        ((1, True, 128, 64), Unsupported),
    ],
)  # fmt: skip
def test_shapes_outside_the_table(form, error):
    with pytest.raises(error, match=r"tcgen05\.mma"):
        tensor_core.accumulator_blocks(*form)
