"""Number formats as data: decoding, encoding with every PTX rounding mode, packed conversions.

One generic pair, ``decode`` and ``encode``, covers all formats by integer arithmetic. The packed
conversions at the end of the file do the same for the few instructions that kernels repeat, fast
enough for one warp; the tests hold them to ``encode`` bit by bit.

Source: PTX ISA, "cvt" (rounding, ``.satfinite``, canonical NaNs) and "Alternate floating-point
data formats"; OCP 8-bit and MX format specifications for the encodings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint32]
Floats = NDArray[np.float32]
Codes = NDArray[np.int64]
Mask = NDArray[np.bool_]
RoundingMode = Literal["rn", "rna", "rz", "rm", "rp"]

F32_NAN = 0x7FFFFFFF
"""The one NaN that PTX float arithmetic generates."""
F32_INFINITY = 0x7F800000
_F32_MAGNITUDE = np.uint32(0x7FFFFFFF)
_F32_BIAS = 127
_F32_MANTISSA_BITS = 23

# Zero-dimensional arrays: numpy spends as long on turning a number into an array as on 32 lanes.
_ONE = np.array(1, np.uint32)
_SIXTEEN = np.array(16, np.uint32)
_LOW_HALF = np.array(0xFFFF, np.uint32)
_HIGH_HALF = np.array(0xFFFF0000, np.uint32)
_HALF_BF16 = np.array(0x7FFF, np.uint32)


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with one sign bit.

    ``specials`` says what the top codes mean: ``ieee`` (an all-ones exponent is infinity or NaN),
    ``nan`` (only the all-ones magnitude is NaN, there is no infinity) or ``none`` (all codes are
    numbers). ``padding`` counts unused low bits of the stored word (tf32 in a 32-bit register).
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Literal["ieee", "nan", "none"] = "ieee"
    padding: int = 0

    @property
    def has_infinity(self) -> bool:
        """Whether a code for infinity exists."""
        return self.specials == "ieee"

    @property
    def magnitude_bits(self) -> int:
        """Number of bits besides the sign, without padding."""
        return self.exponent_bits + self.mantissa_bits

    @property
    def storage_bits(self) -> int:
        """Number of bits of a stored value, padding included."""
        return 1 + self.magnitude_bits + self.padding

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number, and of all subnormal ones."""
        return 1 - self.bias

    @property
    def infinity(self) -> int:
        """Magnitude code of infinity; -1, which no number has, if there is none."""
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits if self.has_infinity else -1

    @property
    def max_finite(self) -> int:
        """Magnitude code of the largest number."""
        top = (1 << self.magnitude_bits) - 1
        return {"ieee": self.infinity - 1, "nan": top - 1, "none": top}[self.specials]

    @property
    def nan(self) -> int:
        """Magnitude code that ``cvt`` gives for NaN: canonical, or the largest number if none."""
        return (1 << self.magnitude_bits) - 1


E4M3 = Format("e4m3", 4, 3, 7, specials="nan")
E5M2 = Format("e5m2", 5, 2, 15)
E2M3 = Format("e2m3", 2, 3, 1, specials="none")
E3M2 = Format("e3m2", 3, 2, 3, specials="none")
E2M1 = Format("e2m1", 2, 1, 1, specials="none")
F16 = Format("f16", 5, 10, 15)
BF16 = Format("bf16", 8, 7, 127)
TF32 = Format("tf32", 8, 10, 127, padding=13)
F32 = Format("f32", 8, 23, 127)

FORMATS = {f.name: f for f in (E4M3, E5M2, E2M3, E3M2, E2M1, F16, BF16, TF32, F32)}


def decode(bits: NDArray[Any], fmt: Format) -> Floats:
    """The float32 values of the codes ``bits``: exact, for every format here.

    Padding and bits above the format are ignored. Every NaN code gives the canonical NaN.
    """
    word = np.asarray(bits)
    if fmt.storage_bits <= 16:
        values: Floats = decode_table(fmt)[word & ((1 << fmt.storage_bits) - 1)]
        return values
    kept = word.astype(np.uint32) & np.uint32((0xFFFFFFFF << fmt.padding) & 0xFFFFFFFF)
    return canonical_nan(kept.view(np.float32))


@cache
def decode_table(fmt: Format) -> Floats:
    """The read-only float32 values of all codes of a format of at most 16 bits, in code order."""
    code = np.arange(1 << fmt.storage_bits)
    magnitude = code & ((1 << fmt.magnitude_bits) - 1)
    exponent = magnitude >> fmt.mantissa_bits
    fraction = magnitude & ((1 << fmt.mantissa_bits) - 1)
    significand = fraction + ((exponent > 0) << fmt.mantissa_bits)
    scale = np.maximum(exponent, 1) - fmt.bias - fmt.mantissa_bits
    value = np.ldexp(significand.astype(np.float64), scale)
    special = magnitude > fmt.max_finite
    value[special] = np.inf if fmt.has_infinity else 0.0
    table: Floats = np.where(code >> fmt.magnitude_bits == 1, -value, value).astype(np.float32)
    table.view(np.uint32)[special & (magnitude != fmt.infinity)] = F32_NAN
    table.setflags(write=False)
    return table


def canonical_nan(values: Floats) -> Floats:
    """``values`` with every NaN replaced by the canonical one; the same array if there is none."""
    nan = values != values
    if not np.count_nonzero(nan):
        return values
    result = values.copy()
    result.view(np.uint32)[nan] = F32_NAN
    return result


def encode(bits: Bits, fmt: Format, mode: RoundingMode = "rn", *, saturate: bool = False) -> Bits:
    """The codes in ``fmt`` of the float32 values given by ``bits``, rounded once.

    ``mode``: rn nearest even, rna nearest with ties away from zero, rz toward zero, rm down,
    rp up. ``saturate`` is PTX ``.satfinite``: what lies beyond the largest number, infinity
    included, becomes the largest number. Without it such values become infinity or, where the
    format has none, NaN. NaN gives ``fmt.nan`` with a positive sign.

    Raises ValueError for a format with neither infinity nor NaN unless ``saturate`` is given.
    """
    if fmt.specials == "none" and not saturate:
        raise ValueError(f"encode: format {fmt.name} has no infinity, so it needs saturate=True")
    word = np.asarray(bits, dtype=np.uint32)
    magnitude = word & _F32_MAGNITUDE
    negative = word >> np.uint32(31) != 0
    code = _round_magnitude(magnitude, negative, fmt, mode)
    code = _limit(code, magnitude == F32_INFINITY, negative, fmt=fmt, mode=mode, saturate=saturate)
    code |= negative.astype(np.int64) << fmt.magnitude_bits
    code = np.where(magnitude > F32_INFINITY, fmt.nan, code) << fmt.padding
    if fmt.padding:
        # A canonical tf32 NaN is the canonical f32 NaN, padding included.
        code = np.where(magnitude > F32_INFINITY, F32_NAN, code)
    return code.astype(np.uint32)


def _round_magnitude(magnitude: Bits, negative: Mask, fmt: Format, mode: RoundingMode) -> Codes:
    """Codes of the magnitudes after rounding, as if exponents had no upper limit."""
    field = (magnitude >> np.uint32(_F32_MANTISSA_BITS)).astype(np.int64)
    fraction = magnitude.astype(np.int64) & ((1 << _F32_MANTISSA_BITS) - 1)
    significand = fraction + ((field > 0).astype(np.int64) << _F32_MANTISSA_BITS)
    exponent = np.maximum(field, 1) - _F32_BIAS
    target = np.maximum(exponent, fmt.min_exponent)
    # Beyond 25 places the whole significand lies below half of the last kept bit.
    shift = np.minimum(_F32_MANTISSA_BITS - fmt.mantissa_bits + target - exponent, 25)
    kept = significand >> shift
    rest = significand - (kept << shift)
    kept += _rounds_up(kept, rest, (1 << shift) >> 1, negative, mode)
    # The leading bit of a normal number adds one to the exponent field; a subnormal has none.
    code: Codes = ((target - fmt.min_exponent) << fmt.mantissa_bits) + kept
    return code


def _rounds_up(
    kept: Codes,
    rest: Codes,
    half: Codes,
    negative: Mask,
    mode: RoundingMode,
) -> Mask:
    """Whether the magnitude grows by one unit, for the cut-off part ``rest``."""
    inexact: Mask = rest != 0
    choices: dict[str, Callable[[], Mask]] = {
        "rn": lambda: (rest > half) | ((rest == half) & (kept & 1 == 1)),
        "rna": lambda: rest >= half,
        "rz": lambda: np.zeros_like(inexact),
        "rm": lambda: negative,
        "rp": lambda: ~negative,
    }
    if mode not in choices:
        raise ValueError(f"encode: rounding mode {mode!r} is not one of {', '.join(choices)}")
    return inexact & choices[mode]()


def _limit(
    code: Codes,
    infinite: Mask,
    negative: Mask,
    *,
    fmt: Format,
    mode: RoundingMode,
    saturate: bool,
) -> Codes:
    """Codes with what exceeds the largest number replaced as ``encode`` says."""
    over = (code > fmt.max_finite) | infinite
    if saturate:
        return np.where(over, fmt.max_finite, code)
    beyond = fmt.infinity if fmt.has_infinity else fmt.nan
    # A directed mode that rounds toward zero stops at the largest number, unless it was infinite.
    stops = {"rz": np.ones_like(negative), "rm": ~negative, "rp": negative}.get(mode)
    if stops is not None:
        code = np.where(over & stops & ~infinite, fmt.max_finite, code)
        over = over & (~stops | infinite)
    return np.where(over, beyond, code)


@cache
def _e4m3_by_prefix() -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """e4m3 codes by the top 16 bits of a float32, the last one sticky: low and high byte forms.

    Three mantissa bits and the rounding bit lie well above the sticky bit, so no case is lost.
    """
    prefix = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    low = encode(prefix, E4M3, saturate=True).astype(np.uint16)
    return low, low << np.uint16(8)


def pack_e4m3x2(first: Bits, second: Bits) -> NDArray[np.uint16]:
    """``cvt.rn.satfinite.e4m3x2.f32 d, first, second``: the first source in the high byte.

    Takes float32 bits, gives 16-bit codes; NaN becomes 0x7f and overflow 448 with its sign.
    """
    low, high = _e4m3_by_prefix()
    packed: NDArray[np.uint16] = high.take(_sticky_prefix(first)) | low.take(_sticky_prefix(second))
    return packed


def _sticky_prefix(bits: Bits) -> Bits:
    """Top 16 bits, the last one or-ed with whether any bit was cut off."""
    return (bits >> _SIXTEEN) | (bits & _LOW_HALF).astype(np.bool_)


def pack_bf16x2(first: Bits, second: Bits) -> Bits:
    """``cvt.rn.bf16x2.f32 d, first, second``: the first source in the high half; NaN 0x7fff."""
    bits = np.array((first, second))
    rounded = bits + ((bits >> _SIXTEEN) & _ONE)
    rounded += _HALF_BF16
    values = bits.view(np.float32)
    nan = values != values
    if np.count_nonzero(nan):
        rounded[nan] = F32_NAN
    packed: Bits = (rounded[0] & _HIGH_HALF) | (rounded[1] >> _SIXTEEN)
    return packed


@np.errstate(all="ignore")
def pack_f16x2(first: Bits, second: Bits) -> Bits:
    """``cvt.rn.f16x2.f32 d, first, second``: the first source in the high half; NaN 0x7fff.

    numpy's conversion rounds once to nearest even, subnormals included.
    """
    half = np.array((first, second)).view(np.float32).astype(np.float16)
    code = half.view(np.uint16).astype(np.uint32)
    nan = half != half
    if np.count_nonzero(nan):
        code[nan] = F16.nan
    packed: Bits = (code[0] << _SIXTEEN) | code[1]
    return packed
