"""Integer instructions that count, find, reverse or cut out bits, and small dot products."""

from __future__ import annotations

import numpy as np

from simulator.isa.table import instruction
from simulator.isa.values import DTYPES, Array

_BITS = ("b32", "b64")


@instruction("popc.<t>", "u32 = <t>", t=_BITS, section="9.7.1.14 popc")
def popc(a: Array) -> Array:
    """The number of one bits."""
    return np.bitwise_count(a).astype(np.uint32)


@instruction("clz.<t>", "u32 = <t>", t=_BITS, section="9.7.1.15 clz")
def clz(a: Array) -> Array:
    """The number of zero bits above the highest one; the width for 0."""
    return popc(~_below(a))


def _below(a: Array) -> Array:
    """``a`` with every bit below its highest one set too."""
    for distance in (1, 2, 4, 8, 16, 32)[: 5 if a.itemsize == 4 else 6]:
        a = a | a >> a.dtype.type(distance)
    return a


@instruction("bfind.<t>", "u32 = <t>", t=("u32", "u64", "s32", "s64"), section="9.7.1.16 bfind")
def bfind(a: Array) -> Array:
    """The position of the highest bit that differs from the sign; all ones if there is none."""
    return popc(_below(_without_sign(a))) - np.uint32(1)


@instruction(
    "bfind.shiftamt.<t>", "u32 = <t>", t=("u32", "u64", "s32", "s64"), section="9.7.1.16 bfind"
)
def bfind_shiftamt(a: Array) -> Array:
    """The left shift that moves the bit of ``bfind`` to the top; all ones if there is none."""
    position = bfind(a)
    found = position != 0xFFFFFFFF
    return np.where(found, np.uint32(8 * a.itemsize - 1) - position, position)


def _without_sign(a: Array) -> Array:
    """``a`` as unsigned, complemented where negative."""
    return np.where(a < 0, ~a, a).view(f"u{a.itemsize}")


@instruction("fns.b32", "b32 = b32 b32 s32", section="9.7.1.17 fns")
def fns(mask: Array, base: Array, offset: Array) -> Array:
    """The position of the n-th set bit of ``mask`` from ``base``; all ones if there is none.

    ``offset`` n > 0 counts upwards and n < 0 downwards, ``base`` included; 0 asks for ``base``.
    Beyond 31, where the ISA leaves it undefined, ``base`` counts modulo 32.
    """
    out = np.full_like(mask, 0xFFFFFFFF)
    words = zip(mask.tolist(), (base & np.uint32(31)).tolist(), offset.tolist(), strict=True)
    for lane, (word, start, n) in enumerate(words):
        path = range(start, 32) if n > 0 else range(start, -1, -1) if n < 0 else (start,)
        found = [i for i in path if word >> i & 1]
        rank = max(abs(n), 1)
        if len(found) >= rank:
            out[lane] = found[rank - 1]
    return out


@instruction("brev.<t>", "<t> = <t>", t=_BITS, section="9.7.1.18 brev")
def brev(a: Array) -> Array:
    """The bits in reverse order."""
    bits = np.unpackbits(a.view(np.uint8).reshape(len(a), -1), axis=1, bitorder="little")
    return np.packbits(bits[:, ::-1], axis=1, bitorder="little").view(a.dtype).ravel()


@instruction("bfe.<t>", "<t> = <t> u32 u32", t=("u32", "u64"), section="9.7.1.19 bfe")
def bfe_unsigned(a: Array, position: Array, length: Array) -> Array:
    """``length`` bits of ``a`` from ``position``, zero-extended; both operands modulo 256."""
    moved: Array = a >> (position & np.uint32(255)).astype(a.dtype)
    return moved & _ones(length & np.uint32(255), a.dtype)


@instruction("bfe.<t>", "<t> = <t> u32 u32", t=("s32", "s64"), section="9.7.1.19 bfe")
def bfe_signed(a: Array, position: Array, length: Array) -> Array:
    """``length`` bits of ``a`` from ``position``, sign-extended; 0 for length 0."""
    width = 8 * a.itemsize
    start = (position & np.uint32(255)).astype(np.int64)
    count = (length & np.uint32(255)).astype(np.int64)
    top = np.minimum(start + count, width) - 1
    sign = a >> np.maximum(top, 0).astype(a.dtype) & 1
    ones = _ones(np.minimum(count, width - np.minimum(start, width)), a.dtype)
    field = a >> np.minimum(start, width - 1).astype(a.dtype) & ones
    return np.where(count == 0, 0, np.where(sign != 0, field | ~ones, field)).astype(a.dtype)


def _ones(count: Array, dtype: np.dtype[np.generic]) -> Array:
    """The ``count`` lowest bits set; all of them from the width on."""
    bits = np.minimum(count, 8 * dtype.itemsize).astype(np.uint64)
    ones = ~(np.uint64(0xFFFFFFFFFFFFFFFF) << bits)
    return np.where(bits == 64, np.uint64(0xFFFFFFFFFFFFFFFF), ones).astype(dtype)


@instruction("bfi.<t>", "<t> = <t> <t> u32 u32", t=_BITS, section="9.7.1.20 bfi")
def bfi(a: Array, b: Array, position: Array, length: Array) -> Array:
    """``b`` with the ``length`` lowest bits of ``a`` at ``position``; both operands modulo 256."""
    start = (position & np.uint32(255)).astype(b.dtype)
    field: Array = _ones(length & np.uint32(255), b.dtype) << start
    both: Array = (b & ~field) | (a << start & field)
    return both


@instruction("szext.<mode>.<t>", "<t> = <t> u32", mode=("clamp", "wrap"), t=("u32", "s32"),
             section="9.7.1.22 szext")  # fmt: skip
def szext(a: Array, length: Array, *, mode: str) -> Array:
    """The ``length`` lowest bits, extended by zeros or their own sign; see ``bfe``.

    A length beyond 31 counts modulo 32 for ``wrap`` and keeps the word for ``clamp``.
    """
    count = np.minimum(length, np.uint32(32)) if mode == "clamp" else length & np.uint32(31)
    start = np.zeros_like(count)
    return (bfe_signed if a.dtype == np.int32 else bfe_unsigned)(a, start, count)


@instruction("bmsk.<mode>.b32", "b32 = u32 u32", mode=("clamp", "wrap"), section="9.7.1.23 bmsk")
def bmsk(position: Array, length: Array, *, mode: str) -> Array:
    """``length`` one bits from ``position`` on; both clamped to 32, or modulo 32."""
    if mode == "clamp":
        start, count = np.minimum(position, np.uint32(32)), np.minimum(length, np.uint32(32))
    else:
        start, count = position & np.uint32(31), length & np.uint32(31)
    mask: Array = _ones(count, np.dtype(np.uint32)) << start
    return mask


@instruction("dp4a.<a>.<b>", "u32 = b32 b32 u32", a=("u32",), b=("u32",), section="9.7.1.24 dp4a")
@instruction("dp4a.<a>.<b>", "s32 = b32 b32 s32", a=("u32",), b=("s32",), section="9.7.1.24 dp4a")
@instruction("dp4a.<a>.<b>", "s32 = b32 b32 s32", a=("s32",), b=("u32", "s32"),
             section="9.7.1.24 dp4a")  # fmt: skip
def dp4a(x: Array, y: Array, c: Array, *, a: str, b: str) -> Array:
    """``c`` plus the dot product of the four bytes of ``x`` and ``y``, each of its own sign."""
    left, right = _parts(x, f"{a[0]}8"), _parts(y, f"{b[0]}8")
    products: Array = (left * right).sum(axis=1).astype(c.dtype)
    return c + products


@instruction("dp2a.<half>.<a>.<b>", "u32 = b32 b32 u32", a=("u32",), b=("u32",),
             half=("lo", "hi"), section="9.7.1.25 dp2a")  # fmt: skip
@instruction("dp2a.<half>.<a>.<b>", "s32 = b32 b32 s32", a=("u32",), b=("s32",),
             half=("lo", "hi"), section="9.7.1.25 dp2a")  # fmt: skip
@instruction("dp2a.<half>.<a>.<b>", "s32 = b32 b32 s32", a=("s32",), b=("u32", "s32"),
             half=("lo", "hi"), section="9.7.1.25 dp2a")  # fmt: skip
def dp2a(x: Array, y: Array, c: Array, *, half: str, a: str, b: str) -> Array:
    """``c`` plus the dot product of the two halves of ``x`` and the low or high bytes of ``y``."""
    left, right = _parts(x, f"{a[0]}16"), _parts(y, f"{b[0]}8")
    chosen = right[:, :2] if half == "lo" else right[:, 2:]
    products: Array = (left * chosen).sum(axis=1).astype(c.dtype)
    return c + products


def _parts(x: Array, t: str) -> Array:
    """The parts of 32-bit words as integers of a smaller type, [lanes, parts], in 64 bits."""
    return x.view(DTYPES[t]).reshape(len(x), -1).astype(np.int64)
