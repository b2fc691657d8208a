"""mov: copies, and the packing and unpacking of registers.

The first element of a vector is the least significant part.
"""

from __future__ import annotations

import numpy as np

from simulator.isa.table import instruction
from simulator.isa.values import DTYPES, Array

_MOV = "9.7.9.3 mov"
_PACK = "9.7.9.4 mov"
_B32, _B64 = DTYPES["b32"], DTYPES["b64"]

_SCALARS = (
    "pred", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64", "b128",
)  # fmt: skip


@instruction("mov.<t>", "<t> = <t>", t=_SCALARS, section=_MOV)
def mov(a: Array) -> Array:
    """``a`` itself: values are never written to, so no copy is needed."""
    return a


@instruction("mov.b64", "b64 = (b32*2)", section=_PACK)
def pack_64(parts: tuple[Array, Array]) -> Array:
    """Two 32-bit registers as one of 64 bits; a third of what kernels execute is this."""
    low, high = parts
    pairs = np.empty(64, _B32)
    pairs[0::2] = low
    pairs[1::2] = high
    return pairs.view(_B64)


@instruction("mov.b64", "(b32*2) = b64", section=_PACK)
def unpack_64(a: Array) -> Array:
    """The low and the high half of a 64-bit register, one a row."""
    return a.view(_B32).reshape(32, 2).T.copy()


@instruction("mov.<t>", "<t> = (<e>*2)", t=("b16",), e=("b8",), section=_PACK)
@instruction("mov.<t>", "<t> = (<e>*2)", t=("b32",), e=("b16",), section=_PACK)
def pack_2(parts: tuple[Array, Array], *, t: str) -> Array:
    """Two registers as one of twice the width."""
    low, high = parts
    pairs = np.empty(2 * low.size, low.dtype)
    pairs[0::2] = low
    pairs[1::2] = high
    return pairs.view(DTYPES[t])


@instruction("mov.b128", "b128 = (b64*2)", section=_PACK)
def pack_128(parts: tuple[Array, Array]) -> Array:
    """Two 64-bit registers as one of 128 bits."""
    return np.stack(parts, axis=1).ravel()


@instruction("mov.<t>", "<t> = (<e>*4)", t=("b32",), e=("b8",), section=_PACK)
@instruction("mov.<t>", "<t> = (<e>*4)", t=("b64",), e=("b16",), section=_PACK)
@instruction("mov.<t>", "<t> = (<e>*4)", t=("b128",), e=("b32",), section=_PACK)
def pack_4(parts: tuple[Array, Array, Array, Array], *, t: str) -> Array:
    """Four registers as one of four times the width."""
    return np.stack(parts, axis=1).ravel().view(DTYPES[t])


@instruction("mov.<t>", "(<e>*2) = <t>", t=("b16",), e=("b8",), section=_PACK)
@instruction("mov.<t>", "(<e>*2) = <t>", t=("b32",), e=("b16",), section=_PACK)
@instruction("mov.<t>", "(<e>*2) = <t>", t=("b128",), e=("b64",), section=_PACK)
@instruction("mov.<t>", "(<e>*4) = <t>", t=("b32",), e=("b8",), section=_PACK)
@instruction("mov.<t>", "(<e>*4) = <t>", t=("b64",), e=("b16",), section=_PACK)
@instruction("mov.<t>", "(<e>*4) = <t>", t=("b128",), e=("b32",), section=_PACK)
def unpack(a: Array, *, e: str) -> Array:
    """The parts of a register, one a row, least significant first."""
    return a.view(DTYPES[e]).reshape(32, -1).T.copy()
