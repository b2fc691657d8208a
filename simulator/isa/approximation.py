"""Division, roots and transcendental functions of f32.

The approximate functions are ``simulator.numerics.approximate``: as accurate as float64 makes them,
where the ISA only bounds their errors. The correctly rounded forms are exact.
"""

from __future__ import annotations

import numpy as np

from simulator.isa.float32 import flush_result
from simulator.isa.table import instruction
from simulator.isa.values import Array
from simulator.numerics import approximate
from simulator.numerics.formats import canonical_nan
from simulator.numerics.rounding import flush

_FTZ = ("", ".ftz")


@instruction("<f>.approx<ftz>.f32", "f32 = f32", f=("rcp",), ftz=_FTZ, section="9.7.3.13 rcp")
@instruction("<f>.approx<ftz>.f32", "f32 = f32", f=("sqrt",), ftz=_FTZ, section="9.7.3.15 sqrt")
@instruction("<f>.approx<ftz>.f32", "f32 = f32", f=("rsqrt",), ftz=_FTZ, section="9.7.3.16 rsqrt")
@instruction("<f>.approx<ftz>.f32", "f32 = f32", f=("sin",), ftz=_FTZ, section="9.7.3.18 sin")
@instruction("<f>.approx<ftz>.f32", "f32 = f32", f=("cos",), ftz=_FTZ, section="9.7.3.19 cos")
@instruction("<f>.approx<ftz>.f32", "f32 = f32", f=("lg2",), ftz=_FTZ, section="9.7.3.20 lg2")
@instruction("<f>.approx<ftz>.f32", "f32 = f32", f=("ex2",), ftz=_FTZ, section="9.7.3.21 ex2")
@instruction("<f>.approx<ftz>.f32", "f32 = f32", f=("tanh",), ftz=("",), section="9.7.3.22 tanh")
def approximation(a: Array, *, f: str, ftz: str) -> Array:
    """The function of ``a``."""
    return approximate.FUNCTIONS[f](a, ftz=ftz != "")


# Correctly rounded division and roots, and the approximate divisions

_DIRECTIONS = ("rn", "rz", "rm", "rp")


@instruction("div.<mode><ftz>.f32", "f32 = f32 f32", mode=_DIRECTIONS, ftz=_FTZ,
             section="9.7.3.8 div")  # fmt: skip
def div(a: Array, b: Array, *, mode: str, ftz: str) -> Array:
    """``a / b`` rounded once."""
    if ftz:
        a, b = flush(a), flush(b)
    result = _divide(a, b, mode)
    if ftz:
        result = flush_result(result, _divide(a * np.float32(2.0**64), b, mode))
    return canonical_nan(result)


def _divide(a: Array, b: Array, mode: str) -> Array:
    quotient = a / b
    # The remainder of the nearest quotient, exact in float64, tells on which side the exact one is.
    rest = a.astype(np.float64) - np.multiply(quotient, b, dtype=np.float64)
    beyond = np.where(np.isinf(quotient) & np.isfinite(a) & (b != 0), -quotient, rest * np.sign(b))
    return _direct(quotient, beyond, mode)


@instruction("rcp.<mode><ftz>.f32", "f32 = f32", mode=_DIRECTIONS, ftz=_FTZ,
             section="9.7.3.13 rcp")  # fmt: skip
def rcp(a: Array, *, mode: str, ftz: str) -> Array:
    """``1 / a`` rounded once."""
    return div(np.ones_like(a), a, mode=mode, ftz=ftz)


@instruction("sqrt.<mode><ftz>.f32", "f32 = f32", mode=_DIRECTIONS, ftz=_FTZ,
             section="9.7.3.15 sqrt")  # fmt: skip
def sqrt(a: Array, *, mode: str, ftz: str) -> Array:
    """The square root, rounded once."""
    if ftz:
        a = flush(a)
    root = np.sqrt(a)
    rest = a.astype(np.float64) - np.multiply(root, root, dtype=np.float64)
    return canonical_nan(_direct(root, rest, mode))


def _direct(nearest: Array, beyond: Array, mode: str) -> Array:
    """The neighbour of ``nearest`` that the mode asks for; ``beyond`` is (exact - nearest)'s sign.

    Where ``beyond`` is NaN, ``nearest`` is exact.
    """
    below = np.nextafter(nearest, np.float32(-np.inf))
    above = np.nextafter(nearest, np.float32(np.inf))
    negative = np.signbit(nearest)
    if mode == "rm" or mode == "rz":
        nearest = np.where((beyond < 0) & ~(negative & (mode == "rz")), below, nearest)
    if mode == "rp" or mode == "rz":
        nearest = np.where((beyond > 0) & (negative | (mode == "rp")), above, nearest)
    return nearest


@instruction("div.full<ftz>.f32", "f32 = f32 f32", ftz=_FTZ, section="9.7.3.8 div")
def div_full(a: Array, b: Array, *, ftz: str) -> Array:
    """``a / b``, to 2 units in the last place by the ISA; here to nearest even."""
    return div(a, b, mode="rn", ftz=ftz)


@instruction("div.approx<ftz>.f32", "f32 = f32 f32", ftz=_FTZ, section="9.7.3.8 div")
def div_approx(a: Array, b: Array, *, ftz: str) -> Array:
    """``a / b``; 0, or NaN for an infinite ``a``, where ``b`` is a number beyond 2**126."""
    huge = np.isfinite(b) & (np.abs(b) > np.float32(2.0**126))
    instead = np.where(np.isinf(a), np.float32(np.nan), np.float32(0) * np.sign(a) * np.sign(b))
    return canonical_nan(np.where(huge, instead, div(a, b, mode="rn", ftz=ftz)))
