"""Binary floating point on exact fractions: the arithmetic that the oracles are written in.

A value is a bit pattern; ``Format.value`` gives what it stands for and ``Format.round`` the bits of
a number in any rounding mode. Nothing here uses floating-point arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

INFINITY: Final = "infinity"
NAN: Final = "nan"


@dataclass(frozen=True)
class Value:
    """A decoded bit pattern: a sign, and a magnitude that is a fraction, INFINITY or NAN."""

    negative: bool
    magnitude: Fraction | str

    @property
    def is_nan(self) -> bool:
        return self.magnitude == NAN

    @property
    def is_infinite(self) -> bool:
        return self.magnitude == INFINITY

    @property
    def is_zero(self) -> bool:
        return self.magnitude == 0

    @property
    def number(self) -> Fraction:
        """The signed number; only of finite values."""
        assert isinstance(self.magnitude, Fraction)
        return -self.magnitude if self.negative else self.magnitude

    def order(self) -> Fraction:
        """A key by which finite and infinite values compare; zeros are equal."""
        if self.is_infinite:
            return Fraction(-(2**2000) if self.negative else 2**2000)
        return self.number


@dataclass(frozen=True)
class Format:
    """An IEEE 754 format by its field widths, with the NaN that the hardware generates."""

    exponent_bits: int
    mantissa_bits: int
    nan: int

    @property
    def width(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def sign(self) -> int:
        return 1 << (self.width - 1)

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def smallest_normal(self) -> Fraction:
        return Fraction(2) ** (1 - self.bias)

    def value(self, bits: int) -> Value:
        """What a bit pattern stands for."""
        negative, magnitude = bool(bits & self.sign), bits & ~self.sign
        if magnitude >= self.infinity:
            return Value(negative, INFINITY if magnitude == self.infinity else NAN)
        field, fraction = magnitude >> self.mantissa_bits, magnitude % (1 << self.mantissa_bits)
        significand = fraction + ((field > 0) << self.mantissa_bits)
        scale = max(field, 1) - self.bias - self.mantissa_bits
        return Value(negative, significand * Fraction(2) ** scale)

    def round(self, x: Fraction, mode: str = "rn", *, zero_negative: bool = False) -> int:
        """The bits of ``x``, rounded; an exact zero takes the sign asked for."""
        if x == 0:
            return self.sign if zero_negative else 0
        code = self._round_magnitude(abs(x), mode, x < 0)
        return code | (self.sign if x < 0 else 0)

    def _round_magnitude(self, x: Fraction, mode: str, negative: bool) -> int:
        exponent = max(exponent_of(x), 1 - self.bias)
        units = x / Fraction(2) ** (exponent - self.mantissa_bits)
        whole = round_fraction(units, mode, negative)
        # The leading bit of a normal number carries into the exponent field by itself.
        code = whole + ((exponent + self.bias - 1) << self.mantissa_bits)
        if code < self.infinity:
            return code
        stays = mode == "rz" or (mode == "rm" and not negative) or (mode == "rp" and negative)
        return self.infinity - 1 if stays else self.infinity

    def is_tiny(self, x: Fraction, mode: str) -> bool:
        """Whether ``x``, rounded with no lower limit of the exponent, is below the normal range."""
        if x == 0:
            return False
        unit = Fraction(2) ** (exponent_of(abs(x)) - self.mantissa_bits)
        return round_fraction(abs(x) / unit, mode, x < 0) * unit < self.smallest_normal

    def flush(self, bits: int) -> int:
        """A zero of the same sign for a subnormal."""
        return bits & self.sign if bits & self.infinity == 0 else bits

    def is_nan(self, bits: int) -> bool:
        return bits & ~self.sign > self.infinity


def exponent_of(x: Fraction) -> int:
    """The power of two below or at a positive ``x``."""
    guess = x.numerator.bit_length() - x.denominator.bit_length()
    return guess if Fraction(2) ** guess <= x else guess - 1


def round_fraction(x: Fraction, mode: str, negative: bool) -> int:
    """The integer for a magnitude ``x`` of a number with the given sign."""
    low = math.floor(x)
    rest = x - low
    if rest == 0:
        return low
    return (
        low
        + {
            "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2 == 1),
            "rna": rest >= Fraction(1, 2),
            "rz": False,
            "rm": negative,
            "rp": not negative,
        }[mode]
    )


F16 = Format(5, 10, 0x7FFF)
BF16 = Format(8, 7, 0x7FFF)
F32 = Format(8, 23, 0x7FFFFFFF)
F64 = Format(11, 52, 0xFFF8000000000000)
FORMATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}
ONE = {"f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F800000, "f64": 0x3FF0000000000000}


def fused(fmt: Format, a: Value, b: Value, c: Value, mode: str = "rn", *, ftz: bool = False) -> int:
    """``a * b + c`` rounded once to ``fmt``; invalid operations and NaN give its NaN."""
    if a.is_nan or b.is_nan or c.is_nan:
        return fmt.nan
    negative = a.negative != b.negative
    if a.is_infinite or b.is_infinite:
        if a.is_zero or b.is_zero or (c.is_infinite and c.negative != negative):
            return fmt.nan
        return fmt.infinity | (fmt.sign if negative else 0)
    if c.is_infinite:
        return fmt.infinity | (fmt.sign if c.negative else 0)
    exact = a.number * b.number + c.number
    # An exact zero is negative if both terms are, or if they cancel while rounding down.
    both = negative and c.negative
    same = negative == c.negative
    zero_negative = both if same else mode == "rm"
    if ftz and fmt.is_tiny(exact, mode):
        return fmt.sign if exact < 0 else 0
    return fmt.round(exact, mode, zero_negative=zero_negative)


def saturated(fmt: Format, bits: int) -> int:
    """``bits`` limited to [0, 1]; NaN and -0 give +0."""
    value = fmt.value(bits)
    if value.is_nan or value.negative or value.is_zero:
        return 0
    one = fmt.bias << fmt.mantissa_bits
    return min(bits, one)
