"""Arithmetic on f32 and f32x2: sums, products, order and signs.

A NaN result is always 0x7fffffff: the ISA leaves the payload open, and this is what the hardware
writes, for abs and neg too; copysign alone keeps it. Without a rounding modifier add, sub and mul
round to nearest even. ``.ftz`` makes subnormal operands and results zeros of their sign; whether a
result is subnormal is decided after rounding it to 24 bits whatever its exponent (IEEE 754's
tininess after rounding), which an H200 confirms. ``.sat`` limits the result to [0, 1], NaN and -0
becoming +0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np

from simulator.isa.table import instruction
from simulator.isa.values import Array
from simulator.numerics.formats import canonical_nan
from simulator.numerics.rounding import Direction, add32, flush, fma32, mul32, sub32

_NEAREST = ("", ".rn")
_DIRECTED = (".rz", ".rm", ".rp")
_PLAIN = ("f32", "f32x2")
_MAGNITUDE: Final = np.uint32(0x7FFFFFFF)
_SIGN: Final = np.uint32(0x80000000)


# 1. Sums and products rounded to nearest


@instruction("add<mode>.<t>", "<t> = <t> <t>", mode=_NEAREST, t=_PLAIN, section="9.7.3.3 add")
def add(a: Array, b: Array) -> Array:
    """``a + b`` to nearest even."""
    return canonical_nan(a + b)


@instruction("sub<mode>.<t>", "<t> = <t> <t>", mode=_NEAREST, t=_PLAIN, section="9.7.3.4 sub")
def sub(a: Array, b: Array) -> Array:
    """``a - b`` to nearest even."""
    return canonical_nan(a - b)


@instruction("mul<mode>.<t>", "<t> = <t> <t>", mode=_NEAREST, t=_PLAIN, section="9.7.3.5 mul")
def mul(a: Array, b: Array) -> Array:
    """``a * b`` to nearest even."""
    return canonical_nan(a * b)


@instruction("fma.rn.<t>", "<t> = <t> <t> <t>", t=_PLAIN, section="9.7.3.6 fma")
def fma(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c``, rounded once to nearest even."""
    return fma32(a, b, c)


# 2. The same in other rounding modes, with .ftz and .sat


def _variants(name: str, signature: str, section: str) -> Callable[[Any], Any]:
    """A decorator that enters every form of an instruction that is not plain and to nearest."""
    nearest = (".rn",) if name == "fma" else _NEAREST

    def declare(function: Any) -> Any:
        for t, flags in (("f32", (".ftz", ".sat", ".ftz.sat")), ("f32x2", (".ftz",))):
            for modes, more in ((nearest, ()), (_DIRECTED, ("",))):
                instruction(f"{name}<mode><flags>.<t>", signature, mode=modes,
                            flags=(*more, *flags), t=(t,), section=section)(function)  # fmt: skip
        return function

    return declare


@_variants("add", "<t> = <t> <t>", "9.7.3.3 add")
def add_variant(a: Array, b: Array, *, mode: str, flags: str) -> Array:
    """``a + b`` in the given rounding mode, with ``.ftz`` and ``.sat`` as given."""
    return _variant(add32, (a, b), mode, flags)


@_variants("sub", "<t> = <t> <t>", "9.7.3.4 sub")
def sub_variant(a: Array, b: Array, *, mode: str, flags: str) -> Array:
    """``a - b`` in the given rounding mode, with ``.ftz`` and ``.sat`` as given."""
    return _variant(sub32, (a, b), mode, flags)


@_variants("mul", "<t> = <t> <t>", "9.7.3.5 mul")
def mul_variant(a: Array, b: Array, *, mode: str, flags: str) -> Array:
    """``a * b`` in the given rounding mode, with ``.ftz`` and ``.sat`` as given."""
    return _variant(mul32, (a, b), mode, flags)


@_variants("fma", "<t> = <t> <t> <t>", "9.7.3.6 fma")
def fma_variant(a: Array, b: Array, c: Array, *, mode: str, flags: str) -> Array:
    """``a * b + c`` rounded once in the given mode, with ``.ftz`` and ``.sat`` as given."""
    return _variant(fma32, (a, b, c), mode, flags)


def _variant(
    function: Callable[..., Array], operands: tuple[Array, ...], mode: str, flags: str
) -> Array:
    direction = cast(Direction, mode[1:] or "rn")
    if ".ftz" not in flags:
        result = function(*operands, direction)
    else:
        operands = tuple(map(flush, operands))
        result = function(*operands, direction)
        # Sums of two are exact near the smallest normal number.
        product = function in (mul32, fma32)
        scaled = function(*_scaled(*operands), direction) if product else result * _SCALE
        result = flush_result(result, scaled)
    return saturated(result) if ".sat" in flags else result


_SCALE: Final = np.float32(2.0**64)
_MIN_NORMAL: Final = np.float32(2.0**-126)


def _scaled(a: Array, b: Array, *c: Array) -> tuple[Array, ...]:
    """Operands for a product or fused sum 2**64 times as large, where it is near 2**-126.

    The smaller factor is scaled: a product that small leaves it room.
    """
    first = np.abs(a) <= np.abs(b)
    return (
        np.where(first, a * _SCALE, a), np.where(first, b, b * _SCALE), *(x * _SCALE for x in c)
    )  # fmt: skip


def flush_result(result: Array, scaled: Array) -> Array:
    """``result`` with what is subnormal after rounding as zero.

    ``scaled`` is 2**64 times the result, rounded in the same mode to float32. It decides where
    ``result``, rounded on the coarser grid of subnormals, has become the smallest normal number.
    """
    size = np.abs(result)
    small = (size < _MIN_NORMAL) | ((size == _MIN_NORMAL) & (np.abs(scaled) < _MIN_NORMAL * _SCALE))
    return np.where(small, np.copysign(np.float32(0), result), result)


def saturated(x: Array) -> Array:
    """``x`` limited to [0, 1]; NaN and -0 become +0. Any floating-point dtype."""
    zero, one = x.dtype.type(0), x.dtype.type(1)
    limited: Array = np.where(x > 0, np.minimum(x, one), zero)
    return limited


# 3. Order

_ORDER: Final = {
    "min": (np.fmin, np.minimum, np.bitwise_or),
    "max": (np.fmax, np.maximum, np.bitwise_and),
}
"""Of each name: the choice past NaN, the choice that keeps NaN, the sign of two zeros' choice."""


@instruction("<op>.f32", "f32 = f32 f32", op=("min",), section="9.7.3.11 min")
@instruction("<op>.f32", "f32 = f32 f32", op=("max",), section="9.7.3.12 max")
def extreme(a: Array, b: Array, *, op: str) -> Array:
    """The smaller or larger; the other operand where one is NaN; -0 is smaller than +0."""
    choose, _, sign = _ORDER[op]
    result = choose(a, b)
    if np.count_nonzero(result) != result.size:
        result = _sign_zeros(result, a, b, sign)
    return canonical_nan(result)


@instruction("<op>.NaN.f32", "f32 = f32 f32", op=("min",), section="9.7.3.11 min")
@instruction("<op>.NaN.f32", "f32 = f32 f32", op=("max",), section="9.7.3.12 max")
def extreme_nan(a: Array, b: Array, *, op: str) -> Array:
    """The smaller or larger; NaN where one is NaN; -0 is smaller than +0."""
    _, choose, sign = _ORDER[op]
    result = choose(a, b)
    if np.count_nonzero(result) != result.size:
        result = _sign_zeros(result, a, b, sign)
    return canonical_nan(result)


def _sign_zeros(result: Array, a: Array, b: Array, sign: np.ufunc) -> Array:
    """``result`` where both operands are zeros with the sign that numpy leaves to chance."""
    zero = (sign(a.view(np.uint32), b.view(np.uint32)) & _SIGN).view(np.float32)
    return np.where((a == 0) & (b == 0), zero, result)


@instruction("<op>.f32", "f32 = f32 f32 f32", op=("min",), section="9.7.3.11 min")
@instruction("<op>.f32", "f32 = f32 f32 f32", op=("max",), section="9.7.3.12 max")
def extreme_of_3(a: Array, b: Array, c: Array, *, op: str) -> Array:
    """The smallest or largest of the operands that are numbers; NaN if none is."""
    return extreme(extreme(a, b, op=op), c, op=op)


@instruction("<op>.NaN.f32", "f32 = f32 f32 f32", op=("min",), section="9.7.3.11 min")
@instruction("<op>.NaN.f32", "f32 = f32 f32 f32", op=("max",), section="9.7.3.12 max")
def extreme_nan_of_3(a: Array, b: Array, c: Array, *, op: str) -> Array:
    """The smallest or largest; NaN where one is NaN."""
    return extreme_nan(extreme_nan(a, b, op=op), c, op=op)


def _order_variants(signature: str, absolute: str) -> Callable[[Any], Any]:
    """A decorator that enters the forms with ``.ftz`` or magnitudes, for min and for max."""

    def declare(function: Any) -> Any:
        for op, section in (("min", "9.7.3.11 min"), ("max", "9.7.3.12 max")):
            for ftz, size in ((".ftz", ""), ("", absolute), (".ftz", absolute)):
                instruction("<op><ftz><nan><size>.f32", signature, op=(op,), ftz=(ftz,),
                            nan=("", ".NaN"), size=(size,), section=section)(function)  # fmt: skip
        return function

    return declare


@_order_variants("f32 = f32 f32", ".xorsign.abs")
def extreme_variant(a: Array, b: Array, *, op: str, ftz: str, nan: str, size: str) -> Array:
    """As without ``.ftz``; ``.xorsign.abs`` compares magnitudes and multiplies the signs."""
    choose = extreme_nan if nan else extreme
    if ftz:
        a, b = flush(a), flush(b)
    if not size:
        return choose(a, b, op=op)
    result = choose(np.abs(a), np.abs(b), op=op)
    sign = (a.view(np.uint32) ^ b.view(np.uint32)) & _SIGN
    return np.where(np.isnan(result), result.view(np.uint32), result.view(np.uint32) | sign).view(
        np.float32
    )


@_order_variants("f32 = f32 f32 f32", ".abs")
def extreme_variant_of_3(
    a: Array, b: Array, c: Array, *, op: str, ftz: str, nan: str, size: str
) -> Array:
    """As without ``.ftz``; ``.abs`` compares and returns magnitudes."""
    choose = extreme_nan if nan else extreme
    if ftz:
        a, b, c = flush(a), flush(b), flush(c)
    if size:
        a, b, c = np.abs(a), np.abs(b), np.abs(c)
    return choose(choose(a, b, op=op), c, op=op)


# 4. Signs and kinds


@instruction("abs.f32", "f32 = f32", section="9.7.3.9 abs")
def abs_(a: Array) -> Array:
    """``|a|``."""
    return canonical_nan(np.abs(a))


@instruction("abs.ftz.f32", "f32 = f32", section="9.7.3.9 abs")
def abs_ftz(a: Array) -> Array:
    """``|a|``, 0 for a subnormal."""
    return abs_(flush(a))


@instruction("neg.f32", "f32 = f32", section="9.7.3.10 neg")
def neg(a: Array) -> Array:
    """``-a``."""
    return canonical_nan(-a)


@instruction("neg.ftz.f32", "f32 = f32", section="9.7.3.10 neg")
def neg_ftz(a: Array) -> Array:
    """``-a``, a zero for a subnormal."""
    return neg(flush(a))


@instruction("copysign.f32", "f32 = f32 f32", section="9.7.3.2 copysign")
def copysign(a: Array, b: Array) -> Array:
    """``b`` with the sign of ``a``."""
    return ((a.view(np.uint32) & _SIGN) | (b.view(np.uint32) & _MAGNITUDE)).view(np.float32)
