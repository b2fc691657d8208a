"""set, setp, selp and slct against comparisons of exact values."""

from __future__ import annotations

import pytest

from simulator.isa import comparison
from tests.simulator.isa.exact import FORMATS
from tests.simulator.isa.instructions import Family

FAMILY = Family(comparison)
ORDER = ("lt", "le", "gt", "ge")
BASE = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
UNORDERED = ("equ", "neu", "ltu", "leu", "gtu", "geu")
UNSIGNED = ("u16", "u32", "u64")
SIGNED = ("s16", "s32", "s64")
BITS = ("b16", "b32", "b64")
HOW = ("and", "or", "xor")
SELECTED = (*BITS, *UNSIGNED, *SIGNED, "f32", "f64")
FTZ = ("", ".ftz")


def ordered(op, a, b):
    return {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[op]


def compare(op, t, a, b, ftz=""):
    if t not in FORMATS:
        return ordered(BASE.get(op, op), a, b)
    fmt = FORMATS[t]
    x, y = (fmt.value(fmt.flush(v) if ftz else v) for v in (a, b))
    nan = x.is_nan or y.is_nan
    if op in ("num", "nan"):
        return nan == (op == "nan")
    if nan:
        return op in UNORDERED
    return ordered(op[:2], x.order(), y.order())


def combine(how, t, c):
    return {"and": t and c, "or": t or c, "xor": t != c}[how]


def declare(op, types, ftz=""):
    known = {"op": (op,), "t": types, "ftz": (ftz,)}
    combined = {**known, "how": HOW}
    values = {"d": ("u32", "s32", "f32")}

    @FAMILY.oracle("setp.<op><ftz>.<t>", "pred = <t> <t>", **known)
    def one(a, b, *, op, t, ftz):
        return compare(op, t, a, b, ftz)

    @FAMILY.oracle("setp.<op><ftz>.<t>", "pred|pred = <t> <t>", **known)
    def two(a, b, *, op, t, ftz):
        result = compare(op, t, a, b, ftz)
        return result, not result

    @FAMILY.oracle("setp.<op>.<how><ftz>.<t>", "pred = <t> <t> pred", **combined)
    def one_combined(a, b, c, *, op, t, ftz, how):
        return combine(how, compare(op, t, a, b, ftz), c)

    @FAMILY.oracle("setp.<op>.<how><ftz>.<t>", "pred|pred = <t> <t> pred", **combined)
    def two_combined(a, b, c, *, op, t, ftz, how):
        result = compare(op, t, a, b, ftz)
        return combine(how, result, c), combine(how, not result, c)

    @FAMILY.oracle("set.<op><ftz>.<d>.<t>", **known, **values)
    def value(a, b, *, op, t, ftz, d):
        return truth(compare(op, t, a, b, ftz), d)

    @FAMILY.oracle("set.<op>.<how><ftz>.<d>.<t>", **combined, **values)
    def value_combined(a, b, c, *, op, t, ftz, how, d):
        return truth(combine(how, compare(op, t, a, b, ftz), c), d)


def declare_half(op, t, ftz=""):
    known = {"op": (op,), "t": (t,), "ftz": (ftz,)}

    @FAMILY.oracle("setp.<op><ftz>.<t>", **known)
    def one(a, b, *, op, t, ftz):
        return compare(op, t, a, b, ftz)

    @FAMILY.oracle("setp.<op>.<how><ftz>.<t>", how=HOW, **known)
    def one_combined(a, b, c, *, op, t, ftz, how):
        return combine(how, compare(op, t, a, b, ftz), c)

    @FAMILY.oracle("setp.<op><ftz>.<t>x2", **known)
    def pair(a, b, *, op, t, ftz):
        return tuple(compare(op, t, x, y, ftz) for x, y in zip(a, b, strict=True))

    @FAMILY.oracle("setp.<op>.<how><ftz>.<t>x2", how=HOW, **known)
    def pair_combined(a, b, c, *, op, t, ftz, how):
        return tuple(combine(how, compare(op, t, x, y, ftz), c) for x, y in zip(a, b, strict=True))


def truth(result, d):
    return 0 if not result else 0x3F800000 if d == "f32" else -1


for _op in ("eq", "ne", *ORDER, *BASE):
    declare(
        _op, (*UNSIGNED, *(() if _op in BASE else SIGNED), *(BITS if _op in ("eq", "ne") else ()))
    )
for _op in ("eq", "ne", *ORDER, *UNORDERED, "num", "nan"):
    declare(_op, ("f32", "f64"))
    declare(_op, ("f32",), ".ftz")
    declare_half(_op, "f16")
    declare_half(_op, "f16", ".ftz")
    declare_half(_op, "bf16")


@FAMILY.oracle("selp.<t>", t=SELECTED)
def selp(a, b, c):
    return a if c else b


@FAMILY.oracle("slct.<t>.s32", t=SELECTED)
def slct(a, b, c):
    return a if c >= 0 else b


@FAMILY.oracle("slct<ftz>.<t>.f32", ftz=FTZ, t=SELECTED)
def slct_float(a, b, c, *, ftz):
    return a if compare("ge", "f32", c, 0, ftz) else b


@pytest.mark.parametrize("template", FAMILY.templates)
def test_comparison(template):
    FAMILY.check(template, rounds=2 if template.startswith("s") and "<how>" not in template else 1)
