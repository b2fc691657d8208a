"""Float32 arithmetic rounded exactly once, in every PTX rounding mode.

Each operation is computed in float64 and, where float64 is inexact, brought to odd: an inexact
result gets an odd last bit, which no float32 value and no midpoint between two of them has, so the
final rounding to float32 decides as if it saw the exact result (Boldo and Melquiond, "Emulation
of a FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).

Arguments and results are float32 arrays of one shape; subnormals are kept unless ``flush`` is
applied; a NaN result is the canonical one, as PTX defines it for float arithmetic.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulator.numerics.formats import Floats, canonical_nan

Doubles = NDArray[np.float64]
Direction = Literal["rn", "rz", "rm", "rp"]

_EXPONENT = np.array(0x7F800000, np.uint32)
_SIGN = np.array(0x80000000, np.uint32)
_ZERO = np.array(0, np.uint32)
# Of a float64, the bits below the place of float32's half unit, and including it.
_BELOW_HALF = np.array((1 << 28) - 1, np.uint64)
_BELOW_UNIT = np.array((1 << 29) - 1, np.uint64)
_HALF = np.array(1 << 28, np.uint64)
_NO_BITS = np.array(0, np.uint64)
_MIN_NORMAL = 2.0**-126


@np.errstate(all="ignore")
def fma32(a: Floats, b: Floats, c: Floats, mode: Direction = "rn") -> Floats:
    """``a * b + c`` rounded once: ``fma.{rn,rz,rm,rp}.f32``."""
    # The product of two float32 values has at most 48 bits and never leaves float64's range.
    return _add(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64), mode)


@np.errstate(all="ignore")
def add32(a: Floats, b: Floats, mode: Direction = "rn") -> Floats:
    """``a + b`` rounded once: ``add.f32``."""
    if mode == "rn":
        return canonical_nan(a + b)
    return _add(a.astype(np.float64), b.astype(np.float64), mode)


def sub32(a: Floats, b: Floats, mode: Direction = "rn") -> Floats:
    """``a - b`` rounded once: ``sub.f32``."""
    return add32(a, -b, mode)


@np.errstate(all="ignore")
def mul32(a: Floats, b: Floats, mode: Direction = "rn") -> Floats:
    """``a * b`` rounded once: ``mul.f32``."""
    if mode == "rn":
        return canonical_nan(a * b)
    return to_f32(a.astype(np.float64) * b.astype(np.float64), mode)


def flush(values: Floats) -> Floats:
    """``values`` with subnormals replaced by zeros of the same sign: the ``.ftz`` modifier."""
    bits = values.view(np.uint32)
    tiny = (bits & _EXPONENT) == _ZERO
    if not np.count_nonzero(tiny):
        return values
    return np.where(tiny, bits & _SIGN, bits).view(np.float32)


def _add(x: Doubles, y: Doubles, mode: Direction) -> Floats:
    """The exact sum of two float64 values, each of at most 48 bits, rounded once to float32."""
    total = x + y
    if mode == "rn":
        if not np.count_nonzero((total.view(np.uint64) & _BELOW_HALF) == _NO_BITS):
            # No midpoint, no subnormal midpoint and no NaN: all of those end in 28 zeros.
            return total.astype(np.float32)
        if not _on_midpoint(total):
            return canonical_nan(total.astype(np.float32))
    result = to_f32(_to_odd(total, x, y), mode)
    if mode == "rm":
        # Opposite values cancel to -0 when rounding down, to +0 otherwise.
        cancelled = (total == 0) & (np.signbit(x) != np.signbit(y))
        result = np.where(cancelled, np.float32(-0.0), result)
    return result


def _on_midpoint(total: Doubles) -> bool:
    """Whether some value lies halfway between two float32 values, or is too small to tell.

    Rounding is monotonic: unless the float64 sum is itself a midpoint, it lies on the same side
    of every midpoint as the exact sum. Below float32's normal range midpoints lie elsewhere.
    """
    halfway = (total.view(np.uint64) & _BELOW_UNIT) == _HALF
    size = np.abs(total)
    return bool(np.count_nonzero(halfway | ((size < _MIN_NORMAL) & (size > 0))))


def _to_odd(total: Doubles, x: Doubles, y: Doubles) -> Doubles:
    """``x + y``, rounded to ``total``, again but to odd; infinities and NaN unchanged."""
    # Knuth's TwoSum: the rounding error of a float64 sum, exactly.
    part = total - x
    error = (x - (total - part)) + (y - part)
    inexact = np.abs(error) > 0
    bits = total.view(np.int64)
    # Toward zero where the sum was rounded away from it, then with the last bit set.
    too_far = np.signbit(error) != np.signbit(total)
    odd = (bits - too_far) | 1
    return np.where(inexact, odd, bits).view(np.float64)


@np.errstate(all="ignore")
def to_f32(values: Doubles, mode: Direction = "rn") -> Floats:
    """Float64 values, exact or rounded to odd, rounded to float32; a NaN becomes canonical."""
    nearest = values.astype(np.float32)
    if mode == "rn":
        return canonical_nan(nearest)
    wide = nearest.astype(np.float64)
    if mode == "rz":
        step_back = np.abs(wide) > np.abs(values)
        toward = np.zeros_like(nearest)
    elif mode == "rm":
        step_back, toward = wide > values, np.full_like(nearest, -np.inf)
    elif mode == "rp":
        step_back, toward = wide < values, np.full_like(nearest, np.inf)
    else:
        raise ValueError(f"to_f32: rounding mode {mode!r} is not one of rn, rz, rm, rp")
    return canonical_nan(np.where(step_back, np.nextafter(nearest, toward), nearest))
