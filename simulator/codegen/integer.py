"""Integer arithmetic, logic, shifts and bit fields."""

from __future__ import annotations

from typing import Any

from simulator.codegen.emit import Emitter, Value, ints, splat
from simulator.codegen.translations import pure
from simulator.isa.values import BITS

_UNSIGNED = ("u16", "u32", "u64")
_SIGNED = ("s16", "s32", "s64")
_TYPES = (*_UNSIGNED, *_SIGNED)
_PAIRS = ("u16x2", "s16x2")
_WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
_BITS = ("b16", "b32", "b64")


def _signed(t: str) -> bool:
    return t.startswith("s")


# 1. Sums and products


@pure("add.<t>", t=(*_TYPES, *_PAIRS))
def _add(e: Emitter, a: Value, b: Value) -> Value:
    return e.b.add(a, b)


@pure("sub.<t>", t=_TYPES)
def _sub(e: Emitter, a: Value, b: Value) -> Value:
    return e.b.sub(a, b)


@pure("neg.<t>", t=_SIGNED)
def _neg(e: Emitter, a: Value) -> Value:
    return e.b.neg(a)


@pure("abs.<t>", t=_SIGNED)
def _abs(e: Emitter, a: Value) -> Value:
    return e.b.select(e.b.icmp_signed("<", a, splat(a.type, 0)), e.b.neg(a), a)


@pure("mul.lo.<t>", t=_TYPES)
def _mul_lo(e: Emitter, a: Value, b: Value) -> Value:
    return e.b.mul(a, b)


@pure("mad.lo.<t>", t=_TYPES)
def _mad_lo(e: Emitter, a: Value, b: Value, c: Value) -> Value:
    return e.b.add(e.b.mul(a, b), c)


def _extend(e: Emitter, a: Value, t: str) -> Value:
    wide = ints(2 * BITS[t])
    return e.b.sext(a, wide) if _signed(t) else e.b.zext(a, wide)


@pure("mul.wide.<t>", t=tuple(_WIDE))
def _mul_wide(e: Emitter, a: Value, b: Value, *, t: str) -> Value:
    return e.b.mul(_extend(e, a, t), _extend(e, b, t))


@pure("mad.wide.<t>", t=tuple(_WIDE))
def _mad_wide(e: Emitter, a: Value, b: Value, c: Value, *, t: str) -> Value:
    return e.b.add(_mul_wide(e, a, b, t=t), c)


@pure("mul.hi.<t>", t=(*_WIDE, "u64", "s64"))
def _mul_hi(e: Emitter, a: Value, b: Value, *, t: str) -> Value:
    product = _mul_wide(e, a, b, t=t)
    return e.b.trunc(e.b.lshr(product, splat(product.type, BITS[t])), a.type)


@pure("mad.hi.<t>", t=(*_WIDE, "u64", "s64"))
def _mad_hi(e: Emitter, a: Value, b: Value, c: Value, *, t: str) -> Value:
    return e.b.add(_mul_hi(e, a, b, t=t), c)


@pure("sad.<t>", t=_TYPES)
def _sad(e: Emitter, a: Value, b: Value, c: Value, *, t: str) -> Value:
    return e.b.add(c, e.b.sub(_choose(e, a, b, ">", t), _choose(e, a, b, "<", t)))


# 2. Quotients: the divisor 0 and an overflow must not reach the machine's division


@pure("div.<t>", t=("u16", "u32", "u64"))
def _div_unsigned(e: Emitter, a: Value, b: Value) -> Value:
    zero = e.b.icmp_unsigned("==", b, splat(b.type, 0))
    quotient = e.b.udiv(a, e.b.select(zero, splat(b.type, 1), b))
    return e.b.select(zero, splat(b.type, -1), quotient)


@pure("rem.<t>", t=("u16", "u32", "u64"))
def _rem_unsigned(e: Emitter, a: Value, b: Value) -> Value:
    zero = e.b.icmp_unsigned("==", b, splat(b.type, 0))
    rest = e.b.urem(a, e.b.select(zero, splat(b.type, 1), b))
    return e.b.select(zero, splat(b.type, -1), rest)


@pure("div.<t>", t=("s16", "s32"))
def _div_signed(e: Emitter, a: Value, b: Value, *, t: str) -> Value:
    zero = e.b.icmp_unsigned("==", b, splat(b.type, 0))
    divisor = _extend(e, e.b.select(zero, splat(b.type, 1), b), t)
    quotient = e.b.trunc(e.b.sdiv(_extend(e, a, t), divisor), a.type)
    return e.b.select(zero, splat(b.type, -1), quotient)


@pure("rem.<t>", t=("s16", "s32"))
def _rem_signed(e: Emitter, a: Value, b: Value, *, t: str) -> Value:
    zero = e.b.icmp_unsigned("==", b, splat(b.type, 0))
    rest = e.b.sub(a, e.b.mul(b, _div_signed(e, a, b, t=t)))
    return e.b.select(zero, splat(b.type, -1), rest)


# 3. Order


def _choose(e: Emitter, a: Value, b: Value, sign: str, t: str) -> Value:
    compare = e.b.icmp_signed if _signed(t) else e.b.icmp_unsigned
    return e.b.select(compare(sign, a, b), a, b)


@pure("min.<t>", t=(*_TYPES, *_PAIRS))
def _min(e: Emitter, a: Value, b: Value, *, t: str) -> Value:
    return _choose(e, a, b, "<", t)


@pure("max.<t>", t=(*_TYPES, *_PAIRS))
def _max(e: Emitter, a: Value, b: Value, *, t: str) -> Value:
    return _choose(e, a, b, ">", t)


@pure("<op>.relu.<t>", op=("min", "max"), t=("s32", "s16x2"))
def _relu(e: Emitter, a: Value, b: Value, *, op: str, t: str) -> Value:
    chosen = _choose(e, a, b, "<" if op == "min" else ">", t)
    return _choose(e, chosen, splat(a.type, 0), ">", t)


# 4. Logic and shifts


@pure("<op>.<t>", op=("and", "or", "xor"), t=("pred", *_BITS))
def _logic(e: Emitter, a: Value, b: Value, *, op: str) -> Value:
    return {"and": e.b.and_, "or": e.b.or_, "xor": e.b.xor}[op](a, b)


@pure("not.<t>", t=("pred", *_BITS))
def _not(e: Emitter, a: Value) -> Value:
    return e.b.not_(a)


@pure("cnot.<t>", t=_BITS)
def _cnot(e: Emitter, a: Value) -> Value:
    return e.b.zext(e.b.icmp_unsigned("==", a, splat(a.type, 0)), a.type)


def _fit(e: Emitter, amount: Value, kind: Any) -> Value:
    """A 32-bit shift amount in the width of what is shifted, after it was limited."""
    bits = kind.element.width
    if bits == 32:
        return amount
    return e.b.zext(amount, kind) if bits > 32 else e.b.trunc(amount, kind)


def _shift(e: Emitter, a: Value, n: Value, how: str) -> Value:
    """``a`` shifted; from the width on 0, or the sign for ``ashr``."""
    width = a.type.element.width
    beyond = e.b.icmp_unsigned(">=", n, splat(n.type, width))
    inside = e.b.select(beyond, splat(n.type, width - 1 if how == "ashr" else 0), n)
    moved = getattr(e.b, how)(a, _fit(e, inside, a.type))
    return moved if how == "ashr" else e.b.select(beyond, splat(a.type, 0), moved)


@pure("shl.<t>", t=_BITS)
def _shl(e: Emitter, a: Value, n: Value) -> Value:
    return _shift(e, a, n, "shl")


@pure("shr.<t>", t=(*_BITS, *_UNSIGNED, *_SIGNED))
def _shr(e: Emitter, a: Value, n: Value, *, t: str) -> Value:
    return _shift(e, a, n, "ashr" if _signed(t) else "lshr")


@pure("shf.<side>.<mode>.b32", side=("l", "r"), mode=("clamp", "wrap"))
def _shf(e: Emitter, a: Value, b: Value, c: Value, *, side: str, mode: str) -> Value:
    if mode == "wrap":
        n = e.b.and_(c, splat(c.type, 31))
    else:
        n = e.b.select(e.b.icmp_unsigned(">", c, splat(c.type, 32)), splat(c.type, 32), c)
    rest = e.b.sub(splat(c.type, 32), n)
    if side == "l":
        return e.b.or_(_shift(e, b, n, "shl"), _shift(e, a, rest, "lshr"))
    return e.b.or_(_shift(e, b, rest, "shl"), _shift(e, a, n, "lshr"))


@pure("lop3.b32")
def lop3(e: Emitter, a: Value, b: Value, c: Value, table: Value) -> Value:
    """The table's lane 0 counts, as in the table's own function; it is an immediate."""
    result = splat(a.type, 0)
    for i in range(8):
        term = splat(a.type, -1)
        for value, bit in ((a, 4), (b, 2), (c, 1)):
            term = e.b.and_(term, value if i & bit else e.b.not_(value))
        row = e.b.and_(e.b.lshr(table, splat(a.type, i)), splat(a.type, 1))
        result = e.b.or_(result, e.b.and_(term, e.b.neg(row)))
    return result


@pure("prmt.b32")
def _prmt(e: Emitter, a: Value, b: Value, c: Value) -> Value:
    wide, result = ints(64), splat(ints(32), 0)
    both = e.b.or_(e.b.zext(a, wide), e.b.shl(e.b.zext(b, wide), splat(wide, 32)))
    for i in range(4):
        selector = e.b.and_(e.b.lshr(c, splat(c.type, 4 * i)), splat(c.type, 15))
        place = e.b.zext(e.b.shl(e.b.and_(selector, splat(c.type, 7)), splat(c.type, 3)), wide)
        byte = e.b.trunc(e.b.lshr(both, place), ints(8))
        sign = e.b.ashr(byte, splat(ints(8), 7))
        signed = e.b.icmp_unsigned("!=", e.b.and_(selector, splat(c.type, 8)), splat(c.type, 0))
        picked = e.b.zext(e.b.select(signed, sign, byte), ints(32))
        result = e.b.or_(result, e.b.shl(picked, splat(c.type, 8 * i)))
    return result


# 5. Bit fields


@pure("popc.<t>", t=("b32", "b64"))
def _popc(e: Emitter, a: Value) -> Value:
    return _word(e, e.intrinsic("ctpop", a))


@pure("clz.<t>", t=("b32", "b64"))
def _clz(e: Emitter, a: Value) -> Value:
    return _word(e, e.intrinsic("ctpop", e.b.not_(_below(e, a))))


def _below(e: Emitter, a: Value) -> Value:
    """``a`` with every bit below its highest one set too."""
    for power in range(a.type.element.width.bit_length() - 1):
        a = e.b.or_(a, e.b.lshr(a, splat(a.type, 1 << power)))
    return a


@pure("brev.<t>", t=("b32", "b64"))
def _brev(e: Emitter, a: Value) -> Value:
    return e.intrinsic("bitreverse", a)


def _word(e: Emitter, a: Value) -> Value:
    return a if a.type == ints(32) else e.b.trunc(a, ints(32))


def _ones(e: Emitter, count: Value, kind: Any) -> Value:
    """``count`` (32 bits wide) low bits set; all from the width on."""
    return e.b.not_(_shift(e, splat(kind, -1), count, "shl"))


@pure("bfe.<t>", t=("u32", "u64"))
def _bfe(e: Emitter, a: Value, position: Value, length: Value) -> Value:
    low = splat(position.type, 255)
    moved = _shift(e, a, e.b.and_(position, low), "lshr")
    return e.b.and_(moved, _ones(e, e.b.and_(length, low), a.type))


@pure("bfe.<t>", t=("s32", "s64"))
def _bfe_signed(e: Emitter, a: Value, position: Value, length: Value) -> Value:
    """The field is moved to the top, cut at its own top bit, and back with its sign."""
    low, width = splat(position.type, 255), a.type.element.width
    start, count = e.b.and_(position, low), e.b.and_(length, low)
    most = splat(count.type, width)
    end = e.b.add(start, count)
    end = e.b.select(e.b.icmp_unsigned(">", end, most), most, end)
    start = e.b.select(e.b.icmp_unsigned(">", start, end), end, start)
    held = e.b.sub(end, start)
    top = _shift(e, a, e.b.sub(most, end), "shl")
    field = _shift(e, top, e.b.sub(most, held), "ashr")
    sign = e.b.ashr(top, splat(a.type, width - 1))
    field = e.b.select(e.b.icmp_unsigned("==", held, splat(held.type, 0)), sign, field)
    return e.b.select(e.b.icmp_unsigned("==", count, splat(count.type, 0)), splat(a.type, 0), field)


@pure("bfi.<t>", t=("b32", "b64"))
def _bfi(e: Emitter, a: Value, b: Value, position: Value, length: Value) -> Value:
    low = splat(position.type, 255)
    start = e.b.and_(position, low)
    field = _shift(e, _ones(e, e.b.and_(length, low), a.type), start, "shl")
    kept = e.b.and_(b, e.b.not_(field))
    return e.b.or_(kept, e.b.and_(_shift(e, a, start, "shl"), field))
