"""How a PTX type in a signature arrives in an instruction's function.

A scalar type gives 32 elements, one a lane. A packed type (``f16x2``, ``f32x2`` and so on) and
``b128`` give 64, lane-major: elements ``2 * lane`` (the low half) and ``2 * lane + 1``. bf16 has no
numpy dtype, so it travels as its bit pattern. A register holds bits: a view of its storage in the
type's dtype is the value, without a conversion.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""A value over the lanes of a warp, in the dtype of its PTX type."""

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(code)
    for name, code in {
        "pred": "?",
        "b8": "u1", "u8": "u1", "s8": "i1",
        "b16": "u2", "u16": "u2", "s16": "i2", "f16": "f2", "bf16": "u2",
        "b32": "u4", "u32": "u4", "s32": "i4", "f32": "f4", "f16x2": "f2", "bf16x2": "u2",
        "u16x2": "u2", "s16x2": "i2",
        "b64": "u8", "u64": "u8", "s64": "i8", "f64": "f8", "f32x2": "f4",
        "b128": "u8",
    }.items()
}  # fmt: skip
"""The dtype in which a value of each PTX type arrives."""

BITS: Final[dict[str, int]] = {
    "pred": 1,
    "b8": 8, "u8": 8, "s8": 8,
    "b16": 16, "u16": 16, "s16": 16, "f16": 16, "bf16": 16,
    "b32": 32, "u32": 32, "s32": 32, "f32": 32, "f16x2": 32, "bf16x2": 32,
    "u16x2": 32, "s16x2": 32,
    "b64": 64, "u64": 64, "s64": 64, "f64": 64, "f32x2": 64,
    "b128": 128,
}  # fmt: skip
"""The width of a register of each PTX type; a predicate counts as one bit."""

STORAGE: Final[dict[int, np.dtype[Any]]] = {
    1: np.dtype("?"),
    8: np.dtype("u1"),
    16: np.dtype("u2"),
    32: np.dtype("u4"),
    64: np.dtype("u8"),
    128: np.dtype("u8"),
}
"""The dtype that holds registers of each width; a 128-bit one takes two elements a lane."""
