"""f32 and f32x2 arithmetic, comparison, selection and conversion.

Sums and products are single IEEE operations of the host, the fused one included, so they round once
as the table's functions do. A NaN result becomes canonical where those make it so.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from simulator.codegen.emit import Emitter, Value, ints, lane_type, splat
from simulator.codegen.translations import pure
from simulator.isa.values import BITS
from simulator.machine.warp import LANES

_NEAREST = ("", ".rn")
_PLAIN = ("f32", "f32x2")
_FTZ = ("", ".ftz")
_NAN, _INFINITY, _SIGN = 0x7FFFFFFF, 0x7F800000, 0x80000000


def _words(e: Emitter, x: Value) -> Value:
    """The bits of a float vector."""
    return e.b.bitcast(x, ints(64 if x.type.element == ir.DoubleType() else 32, x.type.count))


def _floats(e: Emitter, x: Value) -> Value:
    """A float vector from its bits."""
    return e.b.bitcast(x, ir.VectorType(ir.FloatType(), x.type.count))


def canonical(e: Emitter, x: Value) -> Value:
    """``x`` with the canonical NaN for every NaN."""
    nan = e.b.fcmp_unordered("uno", x, x)
    return _floats(e, e.b.select(nan, splat(ints(32, x.type.count), _NAN), _words(e, x)))


def flush(e: Emitter, x: Value) -> Value:
    """``x`` with zeros of its sign for subnormals."""
    bits = _words(e, x)
    tiny = e.b.icmp_unsigned("==", e.b.and_(bits, splat(bits.type, _INFINITY)), splat(bits.type, 0))
    return _floats(e, e.b.select(tiny, e.b.and_(bits, splat(bits.type, _SIGN)), bits))


def _finish(e: Emitter, x: Value, ftz: str) -> Value:
    return canonical(e, flush(e, x) if ftz else x)


# 1. Arithmetic


@pure("<op><mode><ftz>.<t>", op=("add", "sub"), mode=_NEAREST, ftz=_FTZ, t=_PLAIN)
@pure("<op><mode><ftz>.<t>", op=("mul",), mode=_NEAREST, ftz=("",), t=_PLAIN)
def _arithmetic(e: Emitter, a: Value, b: Value, *, op: str, ftz: str) -> Value:
    if ftz:
        a, b = flush(e, a), flush(e, b)
    return _finish(e, {"add": e.b.fadd, "sub": e.b.fsub, "mul": e.b.fmul}[op](a, b), ftz)


@pure("fma.rn.<t>", t=_PLAIN)
def _fma(e: Emitter, a: Value, b: Value, c: Value) -> Value:
    return canonical(e, e.intrinsic("fma", a, b, c))


@pure("abs<ftz>.f32", ftz=_FTZ)
def _abs(e: Emitter, a: Value, *, ftz: str) -> Value:
    bits = _words(e, flush(e, a) if ftz else a)
    return canonical(e, _floats(e, e.b.and_(bits, splat(bits.type, _NAN))))


@pure("neg<ftz>.f32", ftz=_FTZ)
def _neg(e: Emitter, a: Value, *, ftz: str) -> Value:
    bits = _words(e, flush(e, a) if ftz else a)
    return canonical(e, _floats(e, e.b.xor(bits, splat(bits.type, _SIGN))))


@pure("copysign.f32")
def _copysign(e: Emitter, a: Value, b: Value) -> Value:
    sign = e.b.and_(_words(e, a), splat(ints(32), _SIGN))
    return _floats(e, e.b.or_(sign, e.b.and_(_words(e, b), splat(ints(32), _NAN))))


# 2. Order


def _extreme(e: Emitter, a: Value, b: Value, op: str, nan: str) -> Value:
    """The smaller or larger of two: -0 below +0, NaN passed over or, with ``nan``, kept."""
    chosen = e.b.select(e.b.fcmp_ordered("<" if op == "min" else ">", a, b), a, b)
    zeros = (e.b.or_ if op == "min" else e.b.and_)(_words(e, a), _words(e, b))
    result = e.b.select(e.b.fcmp_ordered("==", a, b), zeros, _words(e, chosen))
    a_nan, b_nan = e.b.fcmp_unordered("uno", a, a), e.b.fcmp_unordered("uno", b, b)
    if nan:
        either = e.b.or_(a_nan, b_nan)
        return _floats(e, e.b.select(either, splat(ints(32), _NAN), result))
    result = e.b.select(a_nan, _words(e, b), result)
    return canonical(e, _floats(e, e.b.select(b_nan, _words(e, a), result)))


@pure("<op><ftz><nan>.f32", op=("min", "max"), ftz=_FTZ, nan=("", ".NaN"))
def _native_extreme(e: Emitter, *operands: Value, op: str, ftz: str, nan: str) -> Value:
    first, *rest = [flush(e, x) for x in operands] if ftz else operands
    for other in rest:
        first = _extreme(e, first, other, op, nan)
    return first


# 3. Comparison and selection

_INTEGER = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
            "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}  # fmt: skip
_ORDERED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "num": "ord"}
_UNORDERED = {
    "equ": "==",
    "neu": "!=",
    "ltu": "<",
    "leu": "<=",
    "gtu": ">",
    "geu": ">=",
    "nan": "uno",
}
_COMBINE = ("and", "or", "xor")
_TYPES = {
    op: tuple(f"{s}{n}" for s in signs for n in (16, 32, 64))
    for ops, signs in (("eq ne", "usb"), ("lt le gt ge", "us"), ("lo ls hi hs", "u"))
    for op in ops.split()
}
"""The types that each comparison of integers has."""


def _integer(e: Emitter, a: Value, b: Value, op: str, t: str) -> Value:
    signed = t.startswith("s") and op not in ("lo", "ls", "hi", "hs")
    return (e.b.icmp_signed if signed else e.b.icmp_unsigned)(_INTEGER[op], a, b)


def _float(e: Emitter, a: Value, b: Value, op: str, ftz: str) -> Value:
    if ftz:
        a, b = flush(e, a), flush(e, b)
    if op in _ORDERED:
        return e.b.fcmp_ordered(_ORDERED[op], a, b)
    return e.b.fcmp_unordered(_UNORDERED[op], a, b)


def _results(e: Emitter, flags: Value, rest: tuple[Value, ...], how: str) -> Any:
    """The one or two predicates of a setp, combined with a third operand if there is one."""
    both = (flags, e.b.not_(flags))
    if rest:
        combine = {"and": e.b.and_, "or": e.b.or_, "xor": e.b.xor}[how]
        both = (combine(both[0], rest[0]), combine(both[1], rest[0]))
    return both[: len(e.targets)]


def _setp_integer(e: Emitter, a: Value, b: Value, *rest: Value, op: str, t: str, how: str) -> Any:
    return _results(e, _integer(e, a, b, op, t), rest, how)


for _op, _types in _TYPES.items():
    pure("setp.<op>.<t>", op=(_op,), t=_types, how=("",))(_setp_integer)
    pure("setp.<op>.<how>.<t>", op=(_op,), t=_types, how=_COMBINE)(_setp_integer)


@pure("setp.<op><ftz>.f32", op=(*_ORDERED, *_UNORDERED), ftz=_FTZ)
def _setp_float(e: Emitter, a: Value, b: Value, *, op: str, ftz: str) -> Any:
    return _results(e, _float(e, a, b, op, ftz), (), "")


@pure("setp.<op>.<how><ftz>.f32", op=(*_ORDERED, *_UNORDERED), how=_COMBINE, ftz=_FTZ)
def _setp_float_combined(
    e: Emitter, a: Value, b: Value, c: Value, *, op: str, how: str, ftz: str
) -> Any:
    return _results(e, _float(e, a, b, op, ftz), (c,), how)


_SELECTED = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64")


@pure("selp.<t>", t=_SELECTED)
def _selp(e: Emitter, a: Value, b: Value, c: Value) -> Value:
    return e.b.select(c, a, b)


# 4. Moves

_SCALARS = ("pred", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64")


@pure("mov.<t>", "<t> = <t>", t=_SCALARS)
def _mov(e: Emitter, a: Value) -> Value:
    return a


@pure("mov.<t>", "<t> = (<p>*2)", t=("b16",), p=("b8",))
@pure("mov.<t>", "<t> = (<p>*2)", t=("b32",), p=("b16",))
@pure("mov.<t>", "<t> = (<p>*2)", t=("b64",), p=("b32",))
@pure("mov.<t>", "<t> = (<p>*4)", t=("b32",), p=("b8",))
@pure("mov.<t>", "<t> = (<p>*4)", t=("b64",), p=("b16",))
def _pack(e: Emitter, parts: tuple[Value, ...], *, t: str, p: str) -> Value:
    kind, result = ints(BITS[t]), splat(ints(BITS[t]), 0)
    for i, part in enumerate(parts):
        result = e.b.or_(result, e.b.shl(e.b.zext(part, kind), splat(kind, i * BITS[p])))
    return result


@pure("mov.<t>", "(<p>*2) = <t>", t=("b16",), p=("b8",))
@pure("mov.<t>", "(<p>*2) = <t>", t=("b32",), p=("b16",))
@pure("mov.<t>", "(<p>*2) = <t>", t=("b64",), p=("b32",))
@pure("mov.<t>", "(<p>*4) = <t>", t=("b32",), p=("b8",))
@pure("mov.<t>", "(<p>*4) = <t>", t=("b64",), p=("b16",))
def _unpack(e: Emitter, a: Value, *, p: str) -> Any:
    kind = ints(BITS[p])
    return tuple(
        e.b.trunc(e.b.lshr(a, splat(a.type, i * BITS[p])), kind) for i in range(len(e.targets))
    )


@pure("cvta.<s>.u64", s=("param", "global", "to.param", "to.global", "local", "to.local"))
def _cvta(e: Emitter, a: Value) -> Value:
    return a


# 5. Conversion

_INTEGERS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")


@pure("cvt.<d>.<s>", d=_INTEGERS, s=_INTEGERS)
def _cvt_integer(e: Emitter, a: Value, *, d: str, s: str) -> Value:
    if BITS[d] == BITS[s]:
        return a
    if BITS[d] < BITS[s]:
        return e.b.trunc(a, ints(BITS[d]))
    return (e.b.sext if s.startswith("s") else e.b.zext)(a, ints(BITS[d]))


@pure("cvt.rn.f32.<s>", s=("u8", "u16", "u32", "s8", "s16", "s32"))
def _f32_from_integer(e: Emitter, a: Value, *, s: str) -> Value:
    return (e.b.sitofp if s.startswith("s") else e.b.uitofp)(a, lane_type("f32"))


@pure("cvt.f32.bf16")
def _f32_from_bf16(e: Emitter, a: Value) -> Value:
    return _floats(e, e.b.shl(e.b.zext(a, ints(32)), splat(ints(32), 16)))


def _bf16(e: Emitter, x: Value) -> Value:
    """The nearest bf16 codes, in 32 bits."""
    bits, kind = _words(e, x), ints(32)
    odd = e.b.and_(e.b.lshr(bits, splat(kind, 16)), splat(kind, 1))
    rounded = e.b.lshr(e.b.add(e.b.add(bits, odd), splat(kind, 0x7FFF)), splat(kind, 16))
    return e.b.select(e.b.fcmp_unordered("uno", x, x), splat(kind, 0x7FFF), rounded)


def _f16(e: Emitter, x: Value) -> Value:
    """The nearest f16 codes, in 32 bits."""
    half = e.b.fptrunc(x, ir.VectorType(ir.HalfType(), LANES))
    code = e.b.zext(e.b.bitcast(half, ints(16)), ints(32))
    return e.b.select(e.b.fcmp_unordered("uno", x, x), splat(ints(32), 0x7FFF), code)


def _e4m3(e: Emitter, x: Value) -> Value:
    """The nearest e4m3 codes, at most 448, in 32 bits."""
    kind = ints(32)
    bits = _words(e, x)
    size = e.b.and_(bits, splat(kind, _NAN))
    odd = e.b.and_(e.b.lshr(size, splat(kind, 20)), splat(kind, 1))
    normal = e.b.lshr(e.b.add(e.b.add(size, odd), splat(kind, (1 << 19) - 1)), splat(kind, 20))
    normal = e.b.sub(normal, splat(kind, (127 - 7) << 3))
    # Adding 2^14, whose unit is 2^-9, the smallest e4m3 number, rounds a subnormal to its code.
    shifted = e.b.fadd(_floats(e, size), splat(x.type, 2.0**14))
    subnormal = e.b.sub(_words(e, shifted), splat(kind, (127 + 14) << 23))
    small = e.b.icmp_unsigned("<", size, splat(kind, (127 - 6) << 23))
    code = e.b.select(small, subnormal, normal)
    code = e.b.select(e.b.icmp_signed(">", code, splat(kind, 0x7E)), splat(kind, 0x7E), code)
    sign = e.b.and_(e.b.lshr(bits, splat(kind, 24)), splat(kind, 0x80))
    nan = e.b.icmp_unsigned(">", size, splat(kind, _INFINITY))
    return e.b.select(nan, splat(kind, 0x7F), e.b.or_(code, sign))


@pure("cvt.rn.<d>.f32", d=("bf16x2", "f16x2"))
def _cvt_pair(e: Emitter, a: Value, b: Value, *, d: str) -> Value:
    code = _bf16 if d == "bf16x2" else _f16
    return e.b.or_(e.b.shl(code(e, a), splat(ints(32), 16)), code(e, b))


@pure("cvt.rn.<d>.f32", d=("bf16", "f16"))
def _cvt_half(e: Emitter, a: Value, *, d: str) -> Value:
    return e.b.trunc((_bf16 if d == "bf16" else _f16)(e, a), ints(16))


@pure("cvt.rn.satfinite.e4m3x2.f32")
def _cvt_e4m3x2(e: Emitter, a: Value, b: Value) -> Value:
    both = e.b.or_(e.b.shl(_e4m3(e, a), splat(ints(32), 8)), _e4m3(e, b))
    return e.b.trunc(both, ints(16))


# 6. Approximate functions: float64, rounded once, as the table's functions do

_DOUBLES = ir.VectorType(ir.DoubleType(), LANES)


def _double(e: Emitter, a: Value, ftz: str) -> Value:
    return e.b.fpext(flush(e, a) if ftz else a, _DOUBLES)


def _single(e: Emitter, x: Value, ftz: str) -> Value:
    return _finish(e, e.b.fptrunc(x, lane_type("f32")), ftz)


@pure("<f>.approx<ftz>.f32", f=("rcp", "sqrt", "rsqrt"), ftz=_FTZ)
def _algebraic(e: Emitter, a: Value, *, f: str, ftz: str) -> Value:
    x = _double(e, a, ftz)
    if f != "rcp":
        x = e.intrinsic("sqrt", x)
    return _single(e, x if f == "sqrt" else e.b.fdiv(splat(_DOUBLES, 1.0), x), ftz)


@pure("div.<mode>.f32", mode=("rn", "full"))
def _divide(e: Emitter, a: Value, b: Value) -> Value:
    return canonical(e, e.b.fdiv(a, b))


@pure("rcp.rn.f32")
def _reciprocal(e: Emitter, a: Value) -> Value:
    return canonical(e, e.b.fdiv(splat(a.type, 1.0), a))


@pure("sqrt.rn.f32")
def _root(e: Emitter, a: Value) -> Value:
    return canonical(e, e.intrinsic("sqrt", a))


@pure("lg2.approx<ftz>.f32", ftz=_FTZ)
def lg2(e: Emitter, a: Value, *, ftz: str) -> Value:
    """The C library's function, which is numpy's too, lane by lane."""
    values, results = e.spill(_double(e, a, ftz)), e.room(_DOUBLES)
    double = ir.DoubleType()
    module = e.function.module
    function = module.globals.get("log2") or ir.Function(
        module, ir.FunctionType(double, [double]), "log2"
    )
    with e.loop(LANES) as lane:
        result = e.b.call(function, [e.element(values, lane, double)])
        e.b.store(result, e.b.gep(results, [lane], source_etype=double))
    return _single(e, e.b.load(results, typ=_DOUBLES), ftz)


_EXP2 = (
    1.0, 0.6931471805599453, 0.24022650695910072, 0.05550410866482158, 0.009618129107628477,
    0.0013333558146428443, 0.00015403530393381608, 1.5252733804059841e-05, 1.3215486790144307e-06,
    1.0178086009239699e-07, 7.0549116208011234e-09, 4.4455382718708116e-10, 2.5678435993488204e-11,
    1.3691488853904128e-12,
)  # fmt: skip
"""ln(2)^k / k!: 2^r for |r| <= 1/2 to less than 2^-60 beside the rounding of float64."""


@pure("ex2.approx<ftz>.f32", ftz=_FTZ)
def ex2(e: Emitter, a: Value, *, ftz: str) -> Value:
    """2^a: the nearest integer goes to the exponent, the rest into the series."""
    x = e.b.fpext(a, _DOUBLES)
    # Beyond these bounds the result is 0 or infinity in float32 whatever the exact value is.
    x = e.b.select(e.b.fcmp_ordered("<", x, splat(_DOUBLES, -1000.0)), splat(_DOUBLES, -1000.0), x)
    x = e.b.select(e.b.fcmp_ordered(">", x, splat(_DOUBLES, 1000.0)), splat(_DOUBLES, 1000.0), x)
    number = e.b.select(e.b.fcmp_unordered("uno", x, x), splat(_DOUBLES, 0.0), x)
    # Adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits.
    shifted = e.b.fadd(number, splat(_DOUBLES, 1.5 * 2.0**52))
    rest = e.b.fsub(number, e.b.fsub(shifted, splat(_DOUBLES, 1.5 * 2.0**52)))
    power = splat(_DOUBLES, _EXP2[-1])
    for coefficient in _EXP2[-2::-1]:
        power = e.intrinsic("fma", power, rest, splat(_DOUBLES, coefficient))
    exponent = e.b.shl(e.b.bitcast(shifted, ints(64)), splat(ints(64), 52))
    result = e.b.bitcast(e.b.add(e.b.bitcast(power, ints(64)), exponent), _DOUBLES)
    single = e.b.fptrunc(result, lane_type("f32"))
    nan = e.b.fcmp_unordered("uno", a, a)
    single = _floats(e, e.b.select(nan, splat(ints(32), _NAN), _words(e, single)))
    return _finish(e, single, ftz)
