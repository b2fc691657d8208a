"""cvt to and from the packed small formats, and to tf32.

Of two sources the first goes to the high half. The ISA's ``.relu`` makes negative results zero and
``.satfinite`` limits the magnitude to the largest number of the format.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from simulator.isa.table import instruction
from simulator.isa.values import Array
from simulator.numerics.formats import (
    FORMATS,
    Format,
    RoundingMode,
    decode_table,
    encode,
    pack_bf16x2,
    pack_e4m3x2,
    pack_f16x2,
)

_CVT = "9.7.9.22 cvt"
_WIDTHS = {"f16x2": 16, "bf16x2": 16, "e4m3x2": 8, "e5m2x2": 8,
           "e2m3x2": 8, "e3m2x2": 8, "e2m1x2": 4}  # fmt: skip


# 1. The forms that kernels repeat


@instruction("cvt.rn.satfinite.e4m3x2.f32", "b16 = f32 f32", section=_CVT)
def e4m3x2_from_f32(a: Array, b: Array) -> Array:
    """The nearest e4m3 codes of ``a`` (high byte) and ``b``, at most 448; 0x7f for NaN."""
    return pack_e4m3x2(a.view(np.uint32), b.view(np.uint32))


@instruction("cvt.rn.bf16x2.f32", "b32 = f32 f32", section=_CVT)
def bf16x2_from_f32(a: Array, b: Array) -> Array:
    """The nearest bf16 codes of ``a`` (high half) and ``b``; 0x7fff for NaN."""
    return pack_bf16x2(a.view(np.uint32), b.view(np.uint32))


@instruction("cvt.rn.f16x2.f32", "b32 = f32 f32", section=_CVT)
def f16x2_from_f32(a: Array, b: Array) -> Array:
    """The nearest f16 codes of ``a`` (high half) and ``b``; 0x7fff for NaN."""
    return pack_f16x2(a.view(np.uint32), b.view(np.uint32))


# 2. From float32


@instruction("cvt.rn<limits>.<d>.f32", "b32 = f32 f32", d=("f16x2", "bf16x2"),
             limits=(".relu", ".satfinite", ".relu.satfinite"), section=_CVT)  # fmt: skip
def sixteen_rn(a: Array, b: Array, *, d: str, limits: str) -> Array:
    """The nearest codes of ``a`` (high half) and ``b``."""
    return _join(_codes(a, d, "rn", limits), _codes(b, d, "rn", limits), d)


@instruction("cvt.rz<limits>.<d>.f32", "b32 = f32 f32", d=("f16x2", "bf16x2"),
             limits=("", ".relu", ".satfinite", ".relu.satfinite"), section=_CVT)  # fmt: skip
def sixteen_rz(a: Array, b: Array, *, d: str, limits: str) -> Array:
    """The codes of ``a`` (high half) and ``b``, rounded toward zero."""
    return _join(_codes(a, d, "rz", limits), _codes(b, d, "rz", limits), d)


@instruction("cvt.rn<limits>.e4m3x2.f32", "b16 = f32 f32", d=("e4m3x2",),
             limits=(".satfinite.relu",), section=_CVT)  # fmt: skip
@instruction("cvt.rn<limits>.<d>.f32", "b16 = f32 f32", d=("e5m2x2", "e2m3x2", "e3m2x2"),
             limits=(".satfinite", ".satfinite.relu"), section=_CVT)  # fmt: skip
@instruction("cvt.rn<limits>.<d>.f32", "b8 = f32 f32", d=("e2m1x2",),
             limits=(".satfinite", ".satfinite.relu"), section=_CVT)  # fmt: skip
def small_from_f32(a: Array, b: Array, *, d: str, limits: str) -> Array:
    """The nearest codes of ``a`` (high part) and ``b``, limited to the largest number."""
    return _join(_codes(a, d, "rn", limits), _codes(b, d, "rn", limits), d)


@instruction("cvt.<mode><limits>.tf32.f32", "b32 = f32", mode=("rna",),
             limits=("", ".satfinite"), section=_CVT)  # fmt: skip
@instruction("cvt.<mode><limits>.tf32.f32", "b32 = f32", mode=("rn", "rz"),
             limits=("", ".relu", ".satfinite", ".satfinite.relu"), section=_CVT)  # fmt: skip
def tf32_from_f32(a: Array, *, mode: RoundingMode, limits: str) -> Array:
    """``a`` rounded to 10 mantissa bits, as a 32-bit word with 13 low zeros; 0x7fffe000 for NaN.

    That NaN is what an H200 writes for rn and rz; its rna, which makes an infinity of some NaNs,
    is not followed.
    """
    return _codes(a, "tf32", mode, limits) & np.uint32(0xFFFFE000)


def _codes(x: Array, packed: str, mode: RoundingMode, limits: str) -> Array:
    """The codes of float32 values in a format, ``limits`` being the modifiers as written."""
    bits = x.view(np.uint32)
    if ".relu" in limits:
        bits = np.where(x <= 0, np.uint32(0), bits)
    return encode(bits, _format(packed), mode, saturate=".satfinite" in limits)


def _format(packed: str) -> Format:
    return FORMATS[packed.removesuffix("x2")]


def _join(high: Array, low: Array, packed: str) -> Array:
    """Two codes in one register of the packed type."""
    width = _WIDTHS[packed]
    both: Array = high << np.uint32(width) | low
    return both.astype(f"u{width // 4}")


# 3. Between f16x2 and eight bits or less


@instruction("cvt.rn<limits>.<d>.f16x2", "b16 = f16x2", d=("e4m3x2", "e5m2x2"),
             limits=(".satfinite", ".satfinite.relu"), section=_CVT)  # fmt: skip
def small_from_f16x2(a: Array, *, d: str, limits: str) -> Array:
    """The nearest codes of both halves, limited to the largest number."""
    codes = _codes(a.astype(np.float32), d, "rn", limits)
    return _join(codes[1::2], codes[0::2], d)


@instruction("cvt.rn<limits>.f16x2.<s>", "b32 = b16", s=("e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2"),
             limits=("", ".relu"), section=_CVT)  # fmt: skip
@instruction("cvt.rn<limits>.f16x2.<s>", "b32 = b8", s=("e2m1x2",), limits=("", ".relu"),
             section=_CVT)  # fmt: skip
def f16x2_from_small(a: Array, *, s: str, limits: str) -> Array:
    """The f16 codes of both parts: exact; 0x7fff for NaN."""
    table, width = _f16_by_code(s, limits), _WIDTHS[s]
    low = a & a.dtype.type((1 << width) - 1)
    both: Array = table[a >> a.dtype.type(width)] << np.uint32(16) | table[low]
    return both


@cache
def _f16_by_code(packed: str, limits: str) -> Array:
    """The f16 codes of every code of a small format; bits above the format are ignored."""
    values = decode_table(_format(packed))
    codes = _codes(values, "f16", "rn", limits)
    return np.resize(codes, 1 << _WIDTHS[packed])
