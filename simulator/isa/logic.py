"""Logic and shift instructions, and prmt.

Shift amounts are unsigned and clamp at the width. numpy's shifts clamp alike: an amount of at least
the width gives 0, or the sign; the tests pin it.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from simulator.isa.table import instruction
from simulator.isa.values import Array

_BITS = ("b16", "b32", "b64")
_ALL = ("pred", *_BITS)


@instruction("and.<t>", "<t> = <t> <t>", t=_ALL, section="9.7.8.1 and")
def and_(a: Array, b: Array) -> Array:
    """Bitwise and."""
    return a & b


@instruction("or.<t>", "<t> = <t> <t>", t=_ALL, section="9.7.8.2 or")
def or_(a: Array, b: Array) -> Array:
    """Bitwise or."""
    return a | b


@instruction("xor.<t>", "<t> = <t> <t>", t=_ALL, section="9.7.8.3 xor")
def xor(a: Array, b: Array) -> Array:
    """Bitwise exclusive or."""
    return a ^ b


@instruction("not.<t>", "<t> = <t>", t=_ALL, section="9.7.8.4 not")
def not_(a: Array) -> Array:
    """Bitwise negation."""
    return ~a


@instruction("cnot.<t>", "<t> = <t>", t=_BITS, section="9.7.8.5 cnot")
def cnot(a: Array) -> Array:
    """1 where ``a`` is 0, else 0."""
    return np.equal(a, 0).astype(a.dtype)


@instruction("lop3.b32", "b32 = b32 b32 b32 b32", section="9.7.8.6 lop3")
def lop3(a: Array, b: Array, c: Array, table: Array) -> Array:
    """Bitwise ``table[a b c]``; the 8-bit table is an immediate, so the same for every lane."""
    result = np.zeros_like(a)
    for in_a, in_b, in_c in _minterms(int(table[0]) & 0xFF):
        result |= (a if in_a else ~a) & (b if in_b else ~b) & (c if in_c else ~c)
    return result


@cache
def _minterms(table: int) -> list[tuple[int, int, int]]:
    """The input bits (a, b, c) for which the table says 1."""
    return [(i >> 2 & 1, i >> 1 & 1, i & 1) for i in range(8) if table >> i & 1]


@instruction(
    "lop3.<op>.b32",
    "b32|pred = b32 b32 b32 b32 pred",
    op=("or", "and"),
    section="9.7.8.6 lop3",
)
def lop3_pred(
    a: Array, b: Array, c: Array, table: Array, q: Array, *, op: str
) -> tuple[Array, Array]:
    """As ``lop3``, and (result is not 0) combined with ``q``."""
    d = lop3(a, b, c, table)
    return d, (d != 0) | q if op == "or" else (d != 0) & q


@instruction("shf.<side>.<mode>.b32", "b32 = b32 b32 u32",
             side=("l", "r"), mode=("clamp", "wrap"), section="9.7.8.7 shf")  # fmt: skip
def shf(a: Array, b: Array, c: Array, *, side: str, mode: str) -> Array:
    """Upper (``l``) or lower (``r``) 32 bits of the shifted 64-bit ``b:a``."""
    n = np.minimum(c, np.uint32(32)) if mode == "clamp" else c & np.uint32(31)
    rest = np.uint32(32) - n
    return (b << n) | (a >> rest) if side == "l" else (b << rest) | (a >> n)


@instruction("shl.<t>", "<t> = <t> u32", t=("b32", "b64"), section="9.7.8.8 shl")
def shl(a: Array, n: Array) -> Array:
    """``a`` shifted left; 0 from the width on."""
    return a << n


@instruction("shl.b16", "b16 = b16 u32", section="9.7.8.8 shl")
def shl_16(a: Array, n: Array) -> Array:
    """``a`` shifted left; 0 from the width on."""
    return a << np.minimum(n, np.uint32(16)).astype(np.uint16)


@instruction("shr.<t>", "<t> = <t> u32", t=("b32", "u32", "b64", "u64", "s64"),
             section="9.7.8.9 shr")  # fmt: skip
def shr(a: Array, n: Array) -> Array:
    """``a`` shifted right; 0, or the sign of a signed ``a``, from the width on."""
    return a >> n


@instruction("shr.s32", "s32 = s32 u32", section="9.7.8.9 shr")
def shr_s32(a: Array, n: Array) -> Array:
    """``a`` shifted right; the sign from the width on."""
    return np.right_shift(a, np.minimum(n, np.uint32(31)).view(np.int32))


@instruction("shr.<t>", "<t> = <t> u32", t=("b16", "u16", "s16"), section="9.7.8.9 shr")
def shr_16(a: Array, n: Array) -> Array:
    """``a`` shifted right; 0, or the sign of a signed ``a``, from the width on."""
    amount: Array = np.minimum(n, np.uint32(16)).astype(a.dtype)
    return a >> amount


@instruction("prmt.b32", "b32 = b32 b32 b32", section="9.7.9.7 prmt")
def prmt(a: Array, b: Array, c: Array) -> Array:
    """Byte i is byte ``c[4i+2 : 4i]`` of ``b:a``, or its sign over 8 bits if ``c[4i+3]`` is set."""
    selectors = (c[:, None] >> np.array([0, 4, 8, 12], np.uint32)) & np.uint32(15)
    picked = np.take_along_axis(_bytes(a, b), (selectors & np.uint32(7)).astype(np.intp), axis=1)
    signs = (picked.view(np.int8) >> np.int8(7)).view(np.uint8)
    return np.where(selectors & np.uint32(8), signs, picked).view(np.uint32).ravel()


_PRMT_BYTES = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}
"""Source bytes of each mode for the selectors 0 to 3, least significant byte first."""


@instruction("prmt.b32.<mode>", "b32 = b32 b32 b32", mode=_PRMT_BYTES, section="9.7.9.7 prmt")
def prmt_mode(a: Array, b: Array, c: Array, *, mode: str) -> Array:
    """The bytes of ``b:a`` that the mode's table names for the two low bits of ``c``."""
    chosen = np.array(_PRMT_BYTES[mode])[c & np.uint32(3)]
    return np.take_along_axis(_bytes(a, b), chosen, axis=1).view(np.uint32).ravel()


def _bytes(a: Array, b: Array) -> Array:
    """The eight bytes of ``b:a``, [lanes, 8]."""
    return np.stack((a, b), axis=1).view(np.uint8)
