"""mma.sync against float64 products, element by element where the figures have them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simulator.ptx_text import aligned, run

WORDS = 4

FORMS = [
    (16, "f16", 16), (8, "f16", 16), (16, "bf16", 16), (8, "bf16", 16), (8, "tf32", 32),
    (4, "tf32", 32), (32, "e5m2", 8), (16, "e5m2", 8), (32, "s8", 8), (16, "u8", 8),
]  # fmt: skip


def codes(rng: np.random.Generator, kind: str, shape: tuple[int, int]) -> tuple:
    """Random codes of a format and their values."""
    if kind in ("s8", "u8"):
        whole = rng.integers(0, 256, shape, np.uint8)
        return whole, whole.view("i1" if kind == "s8" else "u1").astype(float)
    numbers = rng.standard_normal(shape).astype(np.float32)
    if kind == "f16":
        return numbers.astype(np.float16).view("u2"), numbers.astype(np.float16).astype(float)
    if kind == "e5m2":  # the upper half of an f16
        halves = numbers.astype(np.float16).view("u2") & 0xFF00
        return (halves >> 8).astype(np.uint8), halves.view(np.float16).astype(float)
    words = numbers.view("u4") & np.uint32(0xFFFF0000 if kind == "bf16" else 0xFFFFE000)
    stored = (words >> 16).astype("u2") if kind == "bf16" else words
    return stored, words.view(np.float32).astype(float)


def register(matrix: np.ndarray, row: int, first: int, per_word: int) -> int:
    """The word with ``per_word`` neighbours along k."""
    return int(np.ascontiguousarray(matrix[row, first : first + per_word]).view("u4")[0])


def fragments(a: np.ndarray, b: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """The registers [lane, register] of A and of B, as the figures number them."""
    per_word = 32 // bits
    halves = a.shape[1] // (4 * per_word)
    of_a, of_b = np.zeros((32, 4), "u4"), np.zeros((32, 4), "u4")
    for lane in range(32):
        group, thread = lane // 4, lane % 4
        for half in range(halves):
            first = thread * per_word + half * 4 * per_word
            of_a[lane, 2 * half] = register(a, group, first, per_word)
            of_a[lane, 2 * half + 1] = register(a, group + 8, first, per_word)
            of_b[lane, half] = register(b, group, first, per_word)
    return of_a, of_b


def load(name: str, first: int) -> str:
    names = ", ".join(f"%r{first + i}" for i in range(WORDS))
    return f"""ld.param.u64 %rd1, [{name}]; mul.wide.u32 %rd2, %lane, 16; add.u64 %rd1, %rd1, %rd2;
        ld.global.v4.u32 {{{names}}}, [%rd1];"""


def multiplied(form: str, counts: tuple[int, int, int], a, b, c) -> np.ndarray:
    """The registers of D [lane, 4] of one mma."""
    out, arrays = aligned((32, 4), "u4"), {}
    for name, values in (("a", a), ("b", b), ("c", c)):
        arrays[name] = aligned((32, 4), "u4")
        arrays[name][...] = values
    out[...] = 0
    vectors = [
        "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"
        for first, count in zip((10, 20, 30, 40), (*counts, counts[2]), strict=True)
    ]
    body = load("a", 10) + load("b", 20) + load("c", 30)
    body += "".join(f"mov.b32 %r{40 + i}, 0;" for i in range(4))
    body += f"mma.sync.aligned.{form} {vectors[3]}, {vectors[0]}, {vectors[1]}, {vectors[2]};"
    body += "ld.param.u64 %rd1, [out]; add.u64 %rd1, %rd1, %rd2;"
    body += "st.global.v4.u32 [%rd1], {%r40, %r41, %r42, %r43};"
    run(body, {**arrays, "out": out})
    return out


def spread(matrix: np.ndarray) -> np.ndarray:
    """C [16, 8] as [lane, 4]."""
    held = np.zeros((32, 4), matrix.dtype)
    for lane in range(32):
        row, column = lane // 4, lane % 4 * 2
        held[lane] = [*matrix[row, column : column + 2], *matrix[row + 8, column : column + 2]]
    return held


@pytest.mark.parametrize(("k", "kind", "bits"), FORMS)
def test_products(k, kind, bits):
    rng = np.random.default_rng(k)
    (a, wide_a), (b, wide_b) = codes(rng, kind, (16, k)), codes(rng, kind, (8, k))
    count = k * bits // 128
    if kind in ("s8", "u8"):
        c = rng.integers(-(2**31), 2**31, (16, 8)).astype(np.int32)
        form = f"m16n8k{k}.row.col.s32.{kind}.{kind}.s32"
    else:
        c = rng.standard_normal((16, 8)).astype(np.float32)
        form = f"m16n8k{k}.row.col.f32.{kind}.{kind}.f32"
    found = multiplied(form, (2 * count, count, 4), *fragments(a, b, bits), spread(c).view("u4"))
    exact = wide_a @ wide_b.T + c
    if kind in ("s8", "u8"):
        assert np.array_equal(found.view("i4"), spread(exact.astype(np.int64).astype(np.int32)))
    else:
        assert np.abs(found.view("f4") - spread(exact)).max() <= 2.0**-20


def test_a_half_precision_accumulator():
    rng = np.random.default_rng(3)
    (a, wide_a), (b, wide_b) = codes(rng, "f16", (16, 16)), codes(rng, "f16", (8, 16))
    c = rng.standard_normal((16, 8)).astype(np.float16)
    pairs = np.zeros((32, 4), "u4")
    pairs[:, :2] = spread(c).view("u4")
    found = multiplied("m16n8k16.row.col.f16.f16.f16.f16", (4, 2, 2), *fragments(a, b, 16), pairs)
    halves = np.ascontiguousarray(found[:, :2]).view(np.float16)
    exact = spread(wide_a @ wide_b.T + c)
    assert (np.abs(halves - exact) <= 2.0**-11 * np.abs(exact) + 2.0**-15).all()


def test_saturation():
    a = np.full((16, 32), 127, np.uint8)
    b = np.full((8, 32), 127, np.uint8)
    c = np.full((16, 8), 2**31 - 5, np.int32)
    form = "m16n8k32.row.col.satfinite.s32.s8.s8.s32"
    found = multiplied(form, (4, 2, 4), *fragments(a, b, 8), spread(c).view("u4"))
    assert (found.view("i4") == 2**31 - 1).all()
    found = multiplied(form.replace(".satfinite", ""), (4, 2, 4), *fragments(a, b, 8),
                       spread(c).view("u4"))  # fmt: skip
    assert (found.view("i4") < 0).all()
