"""f16, bf16 and mixed-precision arithmetic against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from simulator.isa import half
from tests.simulator.isa.exact import F32, FORMATS, ONE, Value, fused, saturated
from tests.simulator.isa.instructions import Family

FAMILY = Family(half)
NEAREST = ("", ".rn")
MODES = (*NEAREST, ".rz", ".rm", ".rp")
FTZ = ("", ".ftz")


def negated(x):
    return Value(not x.negative, x.magnitude)


def calculate(name, t, ftz, limit, operands):
    fmt = FORMATS[t]
    operands = [fmt.value(fmt.flush(x) if ftz else x) for x in operands]
    one, zero = fmt.value(ONE[t]), fmt.value(0)
    a, b = operands[:2]
    terms = {
        "add": (a, one, b), "sub": (a, one, negated(b)), "fma": tuple(operands),
        "mul": (a, b, Value(a.negative != b.negative, zero.magnitude)),
    }[name]  # fmt: skip
    result = fused(fmt, *terms, ftz=ftz != "")
    if limit == ".sat":
        return saturated(fmt, result)
    if limit == ".relu" and result & fmt.sign:
        return 0
    return result


def declare(name, t, modes, ftz, limits):
    known = {"name": (name,), "mode": modes, "ftz": ftz, "limit": limits}

    @FAMILY.oracle(f"<name><mode><ftz><limit>.{t}", **known)
    def one(*operands, name, ftz, limit):
        return calculate(name, t, ftz, limit, operands)

    @FAMILY.oracle(f"<name><mode><ftz><limit>.{t}x2", **known)
    def pair(*operands, name, ftz, limit):
        parts = zip(*operands, strict=True)
        return tuple(calculate(name, t, ftz, limit, p) for p in parts)


for _name in ("add", "sub", "mul"):
    declare(_name, "f16", NEAREST, FTZ, ("", ".sat"))
    declare(_name, "bf16", NEAREST, ("",), ("",))
declare("fma", "f16", (".rn",), FTZ, ("", ".sat", ".relu"))
declare("fma", "bf16", (".rn",), ("",), ("", ".relu"))


def unary(name, t, ftz, a):
    fmt = FORMATS[t]
    a = fmt.flush(a) if ftz else a
    if fmt.is_nan(a):
        return fmt.nan
    return a ^ fmt.sign if name == "neg" else a & ~fmt.sign


@FAMILY.oracle("<name><ftz>.<t>", name=("neg", "abs"), t=("f16",), ftz=FTZ)
@FAMILY.oracle("<name><ftz>.<t>", name=("neg", "abs"), t=("bf16",), ftz=("",))
def sign(a, *, name, t, ftz):
    return unary(name, t, ftz, a)


@FAMILY.oracle("<name><ftz>.<t>x2", name=("neg", "abs"), t=("f16",), ftz=FTZ)
@FAMILY.oracle("<name><ftz>.<t>x2", name=("neg", "abs"), t=("bf16",), ftz=("",))
def sign_pair(a, *, name, t, ftz):
    return tuple(unary(name, t, ftz, x) for x in a)


def extreme(op, t, ftz, nan, size, operands):
    fmt = FORMATS[t]
    operands = [fmt.flush(x) if ftz else x for x in operands]
    sign = (operands[0] ^ operands[1]) & fmt.sign if size else 0
    operands = [x & ~fmt.sign if size else x for x in operands]
    numbers = [x for x in operands if not fmt.is_nan(x)]
    if not numbers or (nan and len(numbers) < 2):
        return fmt.nan
    return sign | (min if op == "min" else max)(
        numbers, key=lambda x: (fmt.value(x).order(), -(x & fmt.sign))
    )


ORDER = {"op": ("min", "max"), "nan": ("", ".NaN"), "size": ("", ".xorsign.abs")}


@FAMILY.oracle("<op><ftz><nan><size>.<t>", t=("f16",), ftz=FTZ, **ORDER)
@FAMILY.oracle("<op><ftz><nan><size>.<t>", t=("bf16",), ftz=("",), **ORDER)
def order(a, b, *, op, t, ftz, nan, size):
    return extreme(op, t, ftz, nan, size, (a, b))


@FAMILY.oracle("<op><ftz><nan><size>.<t>x2", t=("f16",), ftz=FTZ, **ORDER)
@FAMILY.oracle("<op><ftz><nan><size>.<t>x2", t=("bf16",), ftz=("",), **ORDER)
def order_pair(a, b, *, op, t, ftz, nan, size):
    return tuple(extreme(op, t, ftz, nan, size, p) for p in zip(a, b, strict=True))


@FAMILY.oracle("<name><mode><sat>.f32.<s>", name=("add", "sub"), mode=MODES, sat=("", ".sat"),
               s=("f16", "bf16"))  # fmt: skip
def mixed(a, c, *, name, mode, sat, s):
    x, y = FORMATS[s].value(a), F32.value(c)
    y = y if name == "add" else negated(y)
    result = fused(F32, x, F32.value(ONE["f32"]), y, mode[1:] or "rn")
    return saturated(F32, result) if sat else result


@FAMILY.oracle("fma<mode><sat>.f32.<s>", mode=MODES[1:], sat=("", ".sat"), s=("f16", "bf16"))
def mixed_fma(a, b, c, *, mode, sat, s):
    x, y = FORMATS[s].value(a), FORMATS[s].value(b)
    result = fused(F32, x, y, F32.value(c), mode[1:])
    return saturated(F32, result) if sat else result


APPROXIMATIONS = ("tanh.approx.<t>", "ex2.approx.<t>", "ex2.approx.ftz.<t>")


@pytest.mark.parametrize("template", [t for t in FAMILY.templates if t not in APPROXIMATIONS])
def test_half(template):
    FAMILY.check(template, rounds=3)


@pytest.mark.parametrize("t", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["tanh", "ex2"])
def test_every_argument_of_a_function(name, t):
    """All 65,536 codes, to half a unit in the last place; pairs give the same."""
    mnemonic = f"{name}.approx.{'ftz.' if name == 'ex2' and t == 'bf16' else ''}{t}"
    entry = next(e for e in FAMILY.entries if e.mnemonic == mnemonic)
    pair = next(e for e in FAMILY.entries if e.mnemonic == mnemonic + "x2")
    codes = np.arange(1 << 16, dtype=np.uint16)
    operand = codes.view(np.float16) if t == "f16" else codes
    with np.errstate(all="ignore"):
        got = entry.function(operand).view(np.uint16)
        assert np.array_equal(pair.function(operand).view(np.uint16), got)
    fmt = FORMATS[t]
    for code, result in zip(codes.tolist(), got.tolist(), strict=True):
        x = fmt.value(code)
        if x.is_nan or x.is_infinite:
            limit = {"tanh": ONE[t] | (code & fmt.sign), "ex2": 0 if x.negative else fmt.infinity}
            assert result == (fmt.nan if x.is_nan else limit[name])
        elif code % 7 == 0:
            # A seventh of the codes keeps the exact rounding affordable.
            assert result == nearest(name, float(x.number), t) | (
                name == "tanh" and code & fmt.sign
            )


def nearest(name, x, t):
    fmt = FORMATS[t]
    if name == "ex2" and x >= 1000:
        return fmt.infinity
    code = fmt.round(Fraction(math.tanh(x) if name == "tanh" else 2.0 ** max(x, -1000.0)))
    return fmt.flush(code) if name == "ex2" and t == "bf16" else code
