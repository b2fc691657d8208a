"""The approximate functions of PTX, here as accurate as float64 makes them.

PTX bounds their errors and leaves the last bits to the hardware. The functions below evaluate in
float64 and round once to float32, so they are correctly rounded unless the float64 result errs
across a rounding boundary (about one argument in 2^28). Hardware that is measured bit by bit can
take their place in ``FUNCTIONS``. Special values follow the tables of the PTX ISA, by IEEE rules.

Arguments and results are float32 arrays. ``ftz`` replaces subnormal arguments and results by
zeros of the same sign.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.numerics.formats import Floats, canonical_nan
from simulator.numerics.rounding import flush

Doubles = NDArray[np.float64]


class Approximation(Protocol):
    """A function of one float32 array."""

    def __call__(self, x: Floats, *, ftz: bool = False) -> Floats:
        """The value at each ``x``, of the same shape."""


def _rounded(
    function: Callable[[Doubles], Doubles], documentation: str, *, flushes_argument: bool = True
) -> Approximation:
    """``function``, defined on float64, as an approximation with the given docstring.

    ``flushes_argument=False`` is for functions that cannot tell a subnormal from zero.
    """

    @np.errstate(all="ignore")
    def approximation(x: Floats, *, ftz: bool = False) -> Floats:
        wide = (flush(x) if ftz and flushes_argument else x).astype(np.float64)
        result = function(wide).astype(np.float32)
        return canonical_nan(flush(result) if ftz else result)

    approximation.__doc__ = documentation
    return approximation


ex2 = _rounded(
    np.exp2, "2^x. ex2(-inf) = +0, ex2(+-0) = 1, ex2(+inf) = +inf.", flushes_argument=False
)
lg2 = _rounded(np.log2, "log2(x). lg2(+-0) = -inf, lg2(x < 0) = NaN, lg2(+inf) = +inf.")
rcp = _rounded(np.reciprocal, "1/x. rcp(+-0) = +-inf, rcp(+-inf) = +-0.")
sqrt = _rounded(np.sqrt, "Square root. sqrt(-0) = -0, sqrt(x < 0) = NaN.")
rsqrt = _rounded(
    lambda x: 1.0 / np.sqrt(x), "1/sqrt(x). rsqrt(+-0) = +-inf, rsqrt(x < 0) = NaN, rsqrt(inf) = 0."
)
sin = _rounded(np.sin, "sin(x), x in radians. sin(+-0) = +-0, sin(+-inf) = NaN.")
cos = _rounded(np.cos, "cos(x), x in radians. cos(+-0) = 1, cos(+-inf) = NaN.")
tanh = _rounded(np.tanh, "tanh(x). tanh(+-0) = +-0, tanh(+-inf) = +-1.")

FUNCTIONS = MappingProxyType(
    {
        "ex2": ex2, "lg2": lg2, "rcp": rcp, "sqrt": sqrt, "rsqrt": rsqrt, "sin": sin, "cos": cos,
        "tanh": tanh,
    }
)  # fmt: skip
