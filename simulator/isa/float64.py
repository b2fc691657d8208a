"""Arithmetic on f64, to nearest even; and testp of f32 and f64.

A NaN operand gives itself, quieted, with its payload and sign, the last operand first: so does an
H200. An invalid operation gives 0xfff8000000000000.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from simulator.isa.table import instruction
from simulator.isa.values import Array

_NEAREST = ("", ".rn")


def _keep_nan(result: Array, *operands: Array) -> Array:
    """``result`` with the last operand that is NaN, quieted, in its place."""
    for x in operands:
        result = np.where(np.isnan(x), x * 1.0, result)
    return result


@instruction("add<mode>.f64", "f64 = f64 f64", mode=_NEAREST, section="9.7.3.3 add")
def add(a: Array, b: Array) -> Array:
    """``a + b`` to nearest even."""
    return _keep_nan(a + b, a, b)


@instruction("sub<mode>.f64", "f64 = f64 f64", mode=_NEAREST, section="9.7.3.4 sub")
def sub(a: Array, b: Array) -> Array:
    """``a - b`` to nearest even."""
    return _keep_nan(a - b, a, b)


@instruction("mul<mode>.f64", "f64 = f64 f64", mode=_NEAREST, section="9.7.3.5 mul")
def mul(a: Array, b: Array) -> Array:
    """``a * b`` to nearest even."""
    return _keep_nan(a * b, a, b)


@instruction("fma.rn.f64", "f64 = f64 f64 f64", section="9.7.3.6 fma")
def fma(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c``, rounded once to nearest even, by exact fractions."""
    result = _keep_nan(a * b + c, a, b, c)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    # An exact zero keeps the sign that the float64 expression gives it.
    for lane in np.flatnonzero(finite & (a != 0) & (b != 0)):
        exact = Fraction(a[lane]) * Fraction(b[lane]) + Fraction(c[lane])
        if exact:
            result[lane] = _nearest(exact)
        elif c[lane] != 0:
            result[lane] = 0.0
    return result


def _nearest(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return np.inf if exact > 0 else -np.inf


@instruction("div.rn.f64", "f64 = f64 f64", section="9.7.3.8 div")
def div(a: Array, b: Array) -> Array:
    """``a / b`` to nearest even."""
    return _keep_nan(a / b, a, b)


@instruction("abs.f64", "f64 = f64", section="9.7.3.9 abs")
def abs_(a: Array) -> Array:
    """``|a|``; a NaN keeps its sign."""
    return np.where(np.isnan(a), a * 1.0, np.abs(a))


@instruction("neg.f64", "f64 = f64", section="9.7.3.10 neg")
def neg(a: Array) -> Array:
    """``-a``; a NaN keeps its sign."""
    return np.where(np.isnan(a), a * 1.0, -a)


@instruction("min.f64", "f64 = f64 f64", section="9.7.3.11 min")
def min_(a: Array, b: Array) -> Array:
    """The smaller; the other operand where one is NaN; -0 is smaller than +0."""
    return _choose((b < a) | ((a == b) & np.signbit(b)), a, b)


@instruction("max.f64", "f64 = f64 f64", section="9.7.3.12 max")
def max_(a: Array, b: Array) -> Array:
    """The larger; the other operand where one is NaN; -0 is smaller than +0."""
    return _choose((b > a) | ((a == b) & np.signbit(a)), a, b)


def _choose(second: Array, a: Array, b: Array) -> Array:
    """``b`` where ``second`` says so or ``a`` is NaN, else ``a``; a NaN is quieted."""
    return np.where(second | np.isnan(a), b * 1.0, a)


@instruction("rcp.rn.f64", "f64 = f64", section="9.7.3.13 rcp")
def rcp(a: Array) -> Array:
    """``1 / a`` to nearest even."""
    return 1 / a


@instruction("sqrt.rn.f64", "f64 = f64", section="9.7.3.15 sqrt")
def sqrt(a: Array) -> Array:
    """The square root to nearest even."""
    return np.sqrt(a)


@instruction("copysign.f64", "f64 = f64 f64", section="9.7.3.2 copysign")
def copysign(a: Array, b: Array) -> Array:
    """``b`` with the sign of ``a``."""
    return np.copysign(b, a)


_WHAT = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")


@instruction("testp.<what>.<t>", "pred = <t>", what=_WHAT, t=("f32", "f64"),
             section="9.7.3.1 testp")  # fmt: skip
def testp(a: Array, *, what: str) -> Array:
    """Whether ``a`` is what the name says; zeros count as normal."""
    if what == "finite":
        return np.isfinite(a)
    if what == "infinite":
        return np.isinf(a)
    if what in ("number", "notanumber"):
        return np.equal(np.isnan(a), what == "notanumber")
    small: Array = (np.abs(a) < np.finfo(a.dtype).smallest_normal) & (a != 0)
    return small if what == "subnormal" else np.isfinite(a) & ~small
