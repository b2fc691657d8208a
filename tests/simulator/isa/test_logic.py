"""Logic, shifts and prmt, against the ISA's definitions on single bits and bytes."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.isa import logic
from simulator.isa.values import BITS
from tests.simulator.isa.instructions import LANES, Family, draw_value

FAMILY = Family(logic)
BITWISE = ("b16", "b32", "b64")
ALL = ("pred", *BITWISE)
B32 = 0xFFFFFFFF


@FAMILY.oracle("and.<t>", t=ALL)
def and_(a, b):
    return a & b


@FAMILY.oracle("or.<t>", t=ALL)
def or_(a, b):
    return a | b


@FAMILY.oracle("xor.<t>", t=ALL)
def xor(a, b):
    return a ^ b


@FAMILY.oracle("not.<t>", t=ALL)
def not_(a, *, t):
    return not a if t == "pred" else -a - 1


@FAMILY.oracle("cnot.<t>", t=BITWISE)
def cnot(a):
    return int(a == 0)


def table_inputs(rng, number):
    """The table of a lop3 is the same in every lane; each round takes other ones."""
    words = [draw_value("b32", rng) for _ in range(3)]
    return [*words, np.full(LANES, (37 * number + 5) % 256, np.uint32)]


@FAMILY.oracle("lop3.b32", inputs=table_inputs)
def lop3(a, b, c, table):
    bits = (table >> (4 * (a >> i & 1) + 2 * (b >> i & 1) + (c >> i & 1)) & 1 for i in range(32))
    return sum(bit << i for i, bit in enumerate(bits))


def table_inputs_with_predicate(rng, number):
    return [*table_inputs(rng, number), draw_value("pred", rng)]


@FAMILY.oracle("lop3.<op>.b32", op=("or", "and"), inputs=table_inputs_with_predicate)
def lop3_pred(a, b, c, table, q, *, op):
    d = lop3(a, b, c, table)
    return d, (d != 0 or q) if op == "or" else (d != 0 and q)


@FAMILY.oracle("shf.<side>.<mode>.b32", side=("l", "r"), mode=("clamp", "wrap"))
def shf(a, b, c, *, side, mode):
    n = min(c, 32) if mode == "clamp" else c % 32
    return (b << 32 | a) << n >> 32 if side == "l" else (b << 32 | a) >> n


@FAMILY.oracle("shl.<t>", t=BITWISE)
def shl(a, n):
    return a << min(n, 64)


@FAMILY.oracle("shr.<t>", t=(*BITWISE, "u16", "u32", "u64", "s16", "s32", "s64"))
def shr(a, n):
    return a >> min(n, 64)


def selected(a, b, index):
    return (b << 32 | a) >> 8 * index & 0xFF


@FAMILY.oracle("prmt.b32")
def prmt(a, b, c):
    out = 0
    for i in range(4):
        selector = c >> 4 * i & 15
        byte = selected(a, b, selector & 7)
        out |= (byte if selector < 8 else 0xFF * (byte >> 7)) << 8 * i
    return out


# The ISA's table, most significant byte first as it is printed there.
PRMT = {
    "f4e": ("3210", "4321", "5432", "6543"),
    "b4e": ("5670", "6701", "7012", "0123"),
    "rc8": ("0000", "1111", "2222", "3333"),
    "ecl": ("3210", "3211", "3222", "3333"),
    "ecr": ("0000", "1110", "2210", "3210"),
    "rc16": ("1010", "3232", "1010", "3232"),
}


@FAMILY.oracle("prmt.b32.<mode>", mode=PRMT)
def prmt_mode(a, b, c, *, mode):
    out = 0
    for index in PRMT[mode][c & 3]:
        out = out << 8 | selected(a, b, int(index))
    return out


@pytest.mark.parametrize("template", FAMILY.templates)
def test_logic(template):
    FAMILY.check(template, rounds=8)


@pytest.mark.parametrize("kind", [*BITWISE, "s16", "s32", "s64"])
def test_shifts_by_every_amount(kind):
    """Each amount up to twice the width, and amounts that are negative as signed numbers."""
    right = next(e for e in FAMILY.entries if e.mnemonic == f"shr.{kind}").function
    rng = np.random.default_rng(3)
    a = draw_value(kind, rng)
    for n in [*range(2 * BITS[kind] + 1), 0x7FFFFFFF, 0x80000000, 0xFFFFFFE0, 0xFFFFFFFF]:
        got = right(a, np.full(LANES, n, np.uint32))
        assert got.tolist() == [x >> min(n, 64) for x in a.tolist()]
