"""Formats against torch's casts, and against rounding written anew on exact fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch

from simulator.numerics import formats
from simulator.numerics.formats import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, F16, F32, TF32, Format

TORCH = {
    E4M3: torch.float8_e4m3fn,
    E5M2: torch.float8_e5m2,
    F16: torch.float16,
    BF16: torch.bfloat16,
}
SMALL = [E4M3, E5M2, E2M3, E3M2, E2M1, F16, BF16, TF32]
MODES = ["rn", "rna", "rz", "rm", "rp"]
SPECIAL = [
    0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFBFFFFF,
    0x7FFFFFFF, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF,
]  # fmt: skip


def torch_codes(values: torch.Tensor, fmt: Format) -> np.ndarray:
    integer = torch.int16 if fmt.storage_bits == 16 else torch.uint8
    raw = values.to(TORCH[fmt]).view(integer).numpy()
    return raw.view(f"u{raw.itemsize}").astype(np.uint32)


def torch_values(codes: np.ndarray, fmt: Format) -> np.ndarray:
    unsigned = codes.astype(f"u{fmt.storage_bits // 8}")
    signed = unsigned.view(np.int16) if fmt.storage_bits == 16 else unsigned
    return torch.from_numpy(signed).view(TORCH[fmt]).to(torch.float32).numpy()


@pytest.mark.parametrize("fmt", TORCH, ids=lambda f: f.name)
def test_every_code_decodes_as_torch_does(fmt):
    codes = np.arange(1 << fmt.storage_bits, dtype=np.uint32)
    ours, theirs = formats.decode(codes, fmt), torch_values(codes, fmt)
    assert np.array_equal(np.isnan(ours), np.isnan(theirs))
    number = ~np.isnan(theirs)
    assert np.array_equal(ours[number].view(np.uint32), theirs[number].view(np.uint32))
    assert set(ours[~number].view(np.uint32).tolist()) <= {formats.F32_NAN}


@pytest.mark.parametrize(
    ("fmt", "largest", "smallest"),
    [(E2M3, 7.5, 0.125), (E3M2, 28.0, 0.0625), (E2M1, 6.0, 0.5), (E4M3, 448.0, 2.0**-9)],
    ids=lambda x: getattr(x, "name", None),
)
def test_range_of_small_formats(fmt, largest, smallest):
    values = formats.decode(np.arange(1 << fmt.storage_bits), fmt)
    assert np.nanmax(values) == largest
    assert values[values > 0].min() == smallest


@pytest.mark.parametrize("fmt", SMALL, ids=lambda f: f.name)
@pytest.mark.parametrize("mode", MODES)
def test_encoding_a_decoded_code_gives_it_back(fmt, mode):
    codes = np.arange(1 << (fmt.magnitude_bits + 1), dtype=np.uint32) << fmt.padding
    values = formats.decode(codes, fmt)
    saturate = fmt.specials == "none"
    back = formats.encode(values.view(np.uint32), fmt, mode, saturate=saturate)
    number = ~np.isnan(values)
    assert np.array_equal(back[number], codes[number])
    assert set(back[~number].tolist()) <= {formats.F32_NAN if fmt is TF32 else fmt.nan}


def sample_bits(fmt: Format, rng: np.random.Generator, count: int = 4000) -> np.ndarray:
    """Float32 bits around every kind of value of ``fmt``: random, near ties, subnormal, special."""
    limit = float(formats.decode(np.array([fmt.max_finite << fmt.padding]), fmt)[0])
    with np.errstate(over="ignore"):
        scale = np.ldexp(1.0, rng.integers(fmt.min_exponent - fmt.mantissa_bits - 3, 200, count))
        spread = (rng.standard_normal(count) * np.minimum(scale, 2 * limit)).astype(np.float32)
    codes = rng.integers(0, fmt.max_finite, count, dtype=np.uint32)
    pair = [formats.decode(c << fmt.padding, fmt).astype(np.float64) for c in (codes, codes + 1)]
    tie = (sum(pair) / 2 * rng.choice([-1, 1], count)).astype(np.float32).view(np.uint32)
    near = tie + rng.integers(-1, 2, count).astype(np.uint32)
    whole = rng.integers(0, 1 << 32, count, dtype=np.uint32)
    return np.concatenate([spread.view(np.uint32), tie, near, whole, np.array(SPECIAL, np.uint32)])


def exact(value: float) -> Fraction:
    return Fraction(float(value))


def rounded_by_search(value: float, fmt: Format, mode: str, saturate: bool) -> int:
    """Code of ``value`` by searching the sorted list of representable numbers."""
    sign = int(np.signbit(value))
    top = sign << fmt.magnitude_bits
    if np.isinf(value):
        return top | (fmt.max_finite if saturate else fmt.infinity if fmt.has_infinity else fmt.nan)
    grid = GRIDS[fmt]
    magnitude = abs(exact(value))
    below = int(np.searchsorted(grid, abs(float(value)), side="right")) - 1
    if exact(grid[below]) == magnitude:
        return top | below
    # One step beyond the largest number continues the grid, as IEEE 754 defines overflow.
    step = exact(grid[-1]) - exact(grid[-2])
    beyond = below == fmt.max_finite
    above = exact(grid[-1]) + step if beyond else exact(grid[below + 1])
    middle = (exact(grid[below]) + above) / 2
    up = {
        "rn": magnitude > middle or (magnitude == middle and below % 2 == 1),
        "rna": magnitude >= middle,
        "rz": False,
        "rm": sign == 1,
        "rp": sign == 0,
    }[mode]
    if beyond and up:
        return top | (fmt.max_finite if saturate else fmt.infinity if fmt.has_infinity else fmt.nan)
    return top | (below + up)


GRIDS = {
    f: formats.decode(np.arange(f.max_finite + 1) << f.padding, f).astype(np.float64) for f in SMALL
}


@pytest.mark.parametrize("fmt", [E4M3, E5M2, E2M3, E3M2, E2M1, F16], ids=lambda f: f.name)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("saturate", [False, True], ids=["", "satfinite"])
def test_encode_equals_a_search_over_exact_fractions(fmt, mode, saturate):
    if fmt.specials == "none" and not saturate:
        with pytest.raises(ValueError, match=fmt.name):
            formats.encode(np.zeros(1, np.uint32), fmt, mode)
        return
    bits = sample_bits(fmt, np.random.default_rng(1), 150)
    values = bits.view(np.float32)
    ours = formats.encode(bits, fmt, mode, saturate=saturate)
    for value, code in zip(values, ours.tolist(), strict=True):
        expected = fmt.nan if np.isnan(value) else rounded_by_search(value, fmt, mode, saturate)
        assert code == expected, (value.hex(), mode)


@pytest.mark.parametrize("fmt", [BF16, TF32], ids=lambda f: f.name)
@pytest.mark.parametrize("mode", MODES)
def test_wide_formats_round_to_a_neighbour(fmt, mode):
    bits = sample_bits(fmt, np.random.default_rng(2), 400)
    values = bits.view(np.float32)
    for value, code in zip(values, formats.encode(bits, fmt, mode).tolist(), strict=True):
        if np.isnan(value):
            assert code == (formats.F32_NAN if fmt is TF32 else 0x7FFF)
        else:
            assert code >> fmt.padding == rounded_by_search(value, fmt, mode, False)


@pytest.mark.parametrize("fmt", TORCH, ids=lambda f: f.name)
def test_nearest_even_equals_torch(fmt):
    bits = sample_bits(fmt, np.random.default_rng(3), 20000)
    values = bits.view(np.float32)
    ours = formats.encode(bits, fmt)
    theirs = torch_codes(torch.from_numpy(values.copy()), fmt)
    number = ~np.isnan(values)
    if fmt is E4M3:
        # torch saturates e4m3 in some versions; compare where the value is in range.
        number &= np.abs(values) <= 464
    assert np.array_equal(ours[number], theirs[number])


def test_float32_is_kept():
    bits = sample_bits(BF16, np.random.default_rng(4), 1000)
    nan = np.isnan(bits.view(np.float32))
    for mode in MODES:
        assert np.array_equal(formats.encode(bits, F32, mode)[~nan], bits[~nan])
    assert set(formats.encode(bits, F32)[nan].tolist()) == {formats.F32_NAN}


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (448.0, 0x7E), (464.0, 0x7E), (1e9, 0x7E), (-1e9, 0xFE), (np.inf, 0x7E), (-np.inf, 0xFE),
        (np.nan, 0x7F), (2.0**-10, 0x00), (np.nextafter(np.float32(2.0**-10), np.float32(1)), 0x01),
        (-(2.0**-10), 0x80), (1.0, 0x38), (-0.0, 0x80),
    ],
)  # fmt: skip
def test_satfinite_e4m3_by_hand(value, code):
    bits = np.array([value], np.float32).view(np.uint32)
    assert formats.encode(bits, E4M3, saturate=True).tolist() == [code]


@pytest.mark.parametrize(
    ("pack", "fmt", "width", "saturate"),
    [
        (formats.pack_e4m3x2, E4M3, 8, True),
        (formats.pack_bf16x2, BF16, 16, False),
        (formats.pack_f16x2, F16, 16, False),
    ],
    ids=["e4m3x2", "bf16x2", "f16x2"],
)
def test_packed_conversions_equal_encode(pack, fmt, width, saturate):
    bits = sample_bits(fmt, np.random.default_rng(5), 20000)
    first, second = bits, bits[::-1].copy()
    expected = (formats.encode(first, fmt, saturate=saturate) << width) | formats.encode(
        second, fmt, saturate=saturate
    )
    assert np.array_equal(pack(first, second).astype(np.uint32), expected)


def test_e4m3_table_is_right_beside_every_tie():
    """Both neighbours of each tie, one float32 unit away: the sticky bit must decide."""
    for below, above in pairwise(GRIDS[E4M3]):
        tie = np.array([(below + above) / 2], np.float32)
        down, up = np.nextafter(tie, np.float32(0)), np.nextafter(tie, np.float32(np.inf))
        code = [
            int(formats.pack_e4m3x2(x.view(np.uint32), x.view(np.uint32))[0]) for x in (down, up)
        ]
        low = int(np.searchsorted(GRIDS[E4M3], below))
        assert code == [low * 0x101, (low + 1) * 0x101]


def test_without_the_sticky_bit_the_table_would_round_wrongly():
    just_above = np.array([0x3F880001], np.uint32)  # 1.0625 and a little: must become 1.125
    assert formats.pack_e4m3x2(just_above, just_above)[0] == 0x3939
    assert formats.pack_e4m3x2(just_above & 0xFFFF0000, just_above & 0xFFFF0000)[0] == 0x3838
