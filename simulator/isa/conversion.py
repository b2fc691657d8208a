"""cvt between integers: truncation, extension and saturation."""

from __future__ import annotations

import numpy as np

from simulator.isa.table import instruction
from simulator.isa.types import DTYPES, Array

_CVT = "9.7.9.22 cvt"
_INTEGERS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")


@instruction("cvt.<d>.<s>", "<d> = <s>", d=_INTEGERS, s=_INTEGERS, section=_CVT)
def integer(a: Array, *, d: str) -> Array:
    """``a`` extended by its own sign or zeros, or cut to the low bits."""
    return a.astype(DTYPES[d])


@instruction("cvt.sat.<d>.<s>", "<d> = <s>", d=_INTEGERS, s=_INTEGERS, section=_CVT)
def integer_sat(a: Array, *, d: str) -> Array:
    """``a`` limited to the range of the destination."""
    here, there = np.iinfo(a.dtype), np.iinfo(DTYPES[d])
    low, high = max(here.min, there.min), min(here.max, there.max)
    return np.minimum(np.maximum(a, low), high).astype(DTYPES[d])
