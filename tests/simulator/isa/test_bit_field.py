"""Counting, finding, reversing and cutting out bits, against loops over single bits."""

from __future__ import annotations

import pytest

from simulator.isa import bit_field
from simulator.isa.values import BITS
from tests.simulator.isa.instructions import Family

FAMILY = Family(bit_field)
BOTH = ("b32", "b64")
TYPES = ("u32", "u64", "s32", "s64")
NONE = 0xFFFFFFFF


@FAMILY.oracle("popc.<t>", t=BOTH)
def popc(a):
    return bin(a).count("1")


@FAMILY.oracle("clz.<t>", t=BOTH)
def clz(a, *, t):
    return BITS[t] - a.bit_length()


@FAMILY.oracle("bfind.<t>", t=TYPES)
def bfind(a):
    return (~a if a < 0 else a).bit_length() - 1


@FAMILY.oracle("bfind.shiftamt.<t>", t=TYPES)
def bfind_shiftamt(a, *, t):
    position = bfind(a)
    return NONE if position < 0 else BITS[t] - 1 - position


def fns_inputs(rng, number):
    sparse = rng.integers(0, 1 << 32, 32) & rng.integers(0, 1 << 32, 32)
    base, offset = rng.integers(0, 32, 32), rng.integers(-20, 21, 32)
    return [sparse.astype("u4"), base.astype("u4"), offset.astype("i4")]


@FAMILY.oracle("fns.b32", inputs=fns_inputs)
def fns(mask, base, offset):
    if offset == 0:
        return base if mask >> base & 1 else NONE
    position, count, step = base, abs(offset) - 1, 1 if offset > 0 else -1
    while 0 <= position < 32:
        if mask >> position & 1:
            if count == 0:
                return position
            count -= 1
        position += step
    return NONE


@FAMILY.oracle("brev.<t>", t=BOTH)
def brev(a, *, t):
    return int(format(a, f"0{BITS[t]}b")[::-1], 2)


@FAMILY.oracle("bfe.<t>", t=TYPES)
def bfe(a, position, length, *, t):
    top = BITS[t] - 1
    position, length = position & 255, length & 255
    unsigned = t[0] == "u" or length == 0
    sign = 0 if unsigned else a >> min(position + length - 1, top) & 1
    return sum(
        (a >> position + i & 1 if i < length and position + i <= top else sign) << i
        for i in range(top + 1)
    )


@FAMILY.oracle("bfi.<t>", t=BOTH)
def bfi(a, b, position, length, *, t):
    position, length = position & 255, length & 255
    for i in range(length):
        if position + i < BITS[t]:
            b = b & ~(1 << position + i) | (a >> i & 1) << position + i
    return b


@FAMILY.oracle("szext.<mode>.<t>", mode=("clamp", "wrap"), t=("u32", "s32"))
def szext(a, length, *, mode, t):
    length = min(length, 32) if mode == "clamp" else length % 32
    field = a % (1 << length)
    negative = t == "s32" and length > 0 and field >> length - 1
    return field - (1 << length) if negative else field


@FAMILY.oracle("bmsk.<mode>.b32", mode=("clamp", "wrap"))
def bmsk(position, length, *, mode):
    limit = (lambda n: min(n, 32)) if mode == "clamp" else (lambda n: n % 32)
    return (1 << limit(length)) - 1 << limit(position)


def parts(word, width, t):
    fields = [word >> i & (1 << width) - 1 for i in range(0, 32, width)]
    return [f - (1 << width) if t[0] == "s" and f >> width - 1 else f for f in fields]


@FAMILY.oracle("dp4a.<a>.<b>", a=("u32", "s32"), b=("u32", "s32"))
def dp4a(x, y, c, *, a, b):
    return c + sum(p * q for p, q in zip(parts(x, 8, a), parts(y, 8, b), strict=True))


@FAMILY.oracle("dp2a.<half>.<a>.<b>", half=("lo", "hi"), a=("u32", "s32"), b=("u32", "s32"))
def dp2a(x, y, c, *, half, a, b):
    chosen = parts(y, 8, b)[0 if half == "lo" else 2 :][:2]
    return c + sum(p * q for p, q in zip(parts(x, 16, a), chosen, strict=True))


@pytest.mark.parametrize("template", FAMILY.templates)
def test_bit_field(template):
    FAMILY.check(template, rounds=8)
