"""Approximate functions: special values by table, ordinary values against arbitrary precision."""

from __future__ import annotations

from math import inf, nan

import mpmath
import numpy as np
import pytest

from simulator.numerics import approximate
from simulator.numerics.approximate import FUNCTIONS

SUBNORMAL = 2.0**-130
# The tables of the PTX ISA: function, ftz, argument, result.
TABLE = [
    ("ex2", False, -inf, 0.0), ("ex2", False, -0.0, 1.0), ("ex2", False, SUBNORMAL, 1.0),
    ("ex2", False, -SUBNORMAL, 1.0), ("ex2", False, inf, inf), ("ex2", False, nan, nan),
    ("ex2", False, -130.0, 2.0**-130), ("ex2", True, -130.0, 0.0), ("ex2", True, 128.0, inf),
    ("ex2", True, -126.0, 2.0**-126), ("ex2", True, -SUBNORMAL, 1.0),
    ("lg2", False, -inf, nan), ("lg2", False, -1.0, nan), ("lg2", False, -0.0, -inf),
    ("lg2", False, 0.0, -inf), ("lg2", False, inf, inf), ("lg2", False, SUBNORMAL, -130.0),
    ("lg2", False, -SUBNORMAL, nan), ("lg2", True, SUBNORMAL, -inf),
    ("lg2", True, -SUBNORMAL, -inf), ("lg2", False, 1.0, 0.0), ("lg2", False, nan, nan),
    ("rcp", False, -inf, -0.0), ("rcp", False, -0.0, -inf), ("rcp", False, 0.0, inf),
    ("rcp", False, inf, 0.0), ("rcp", False, nan, nan), ("rcp", True, SUBNORMAL, inf),
    ("rcp", True, -SUBNORMAL, -inf), ("rcp", True, 2.0**127, 0.0),
    ("rcp", False, 2.0**127, 2.0**-127), ("rcp", True, -(2.0**127), -0.0),
    ("sqrt", False, -inf, nan), ("sqrt", False, -1.0, nan), ("sqrt", False, -0.0, -0.0),
    ("sqrt", False, inf, inf), ("sqrt", True, SUBNORMAL, 0.0), ("sqrt", True, -SUBNORMAL, -0.0),
    ("rsqrt", False, -inf, nan), ("rsqrt", False, -1.0, nan), ("rsqrt", False, -0.0, -inf),
    ("rsqrt", False, 0.0, inf), ("rsqrt", False, inf, 0.0), ("rsqrt", True, -SUBNORMAL, -inf),
    ("sin", False, -0.0, -0.0), ("sin", False, inf, nan), ("sin", True, -SUBNORMAL, -0.0),
    ("cos", False, 0.0, 1.0), ("cos", False, -inf, nan), ("cos", True, SUBNORMAL, 1.0),
    ("tanh", False, -inf, -1.0), ("tanh", False, inf, 1.0), ("tanh", False, -0.0, -0.0),
    ("tanh", False, nan, nan),
]  # fmt: skip


@pytest.mark.parametrize(("name", "ftz", "argument", "result"), TABLE)
def test_special_values(name, ftz, argument, result):
    (value,) = FUNCTIONS[name](np.array([argument], np.float32), ftz=ftz)
    if np.isnan(result):
        assert value.view(np.uint32) == 0x7FFFFFFF
    else:
        assert (float(value), np.signbit(value)) == (result, np.signbit(np.float64(result)))


EXACT = {
    "ex2": lambda x: mpmath.power(2, x),
    "lg2": lambda x: mpmath.log(x, 2),
    "rcp": lambda x: 1 / mpmath.mpf(x),
    "sqrt": mpmath.sqrt,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "tanh": mpmath.tanh,
}
RANGES = {
    "ex2": (-140, 127),
    "lg2": (1e-38, 1e3),
    "sin": (-40, 40),
    "cos": (-40, 40),
    "tanh": (-9, 9),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_ordinary_values_are_correctly_rounded(name):
    rng = np.random.default_rng(1)
    low, high = RANGES.get(name, (1e-3, 1e3))
    arguments = rng.uniform(low, high, 300).astype(np.float32)
    if name in ("lg2", "rcp", "sqrt", "rsqrt"):
        arguments = np.concatenate(
            [arguments, np.ldexp(1 + rng.random(100), rng.integers(-120, 120, 100)).astype("f4")]
        )
    results = FUNCTIONS[name](arguments)
    with mpmath.workdps(40):
        for argument, result in zip(arguments, results, strict=True):
            exact = EXACT[name](mpmath.mpf(float(argument)))
            near = [
                result,
                np.nextafter(result, np.float32(-inf)),
                np.nextafter(result, np.float32(inf)),
            ]
            errors = [abs(mpmath.mpf(float(x)) - exact) for x in near]
            assert errors[0] == min(errors)


def test_flushed_results_are_never_subnormal():
    arguments = np.random.default_rng(2).integers(0, 1 << 32, 20000, dtype=np.uint32).view("f4")
    for name, function in FUNCTIONS.items():
        results = function(arguments, ftz=True)
        assert not np.any((np.abs(results) < 2.0**-126) & (results != 0)), name


def test_every_function_is_documented():
    assert all(approximate.FUNCTIONS[name].__doc__ for name in EXACT)
    assert set(EXACT) == set(FUNCTIONS)
