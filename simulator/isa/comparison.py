"""Comparison and selection: set, setp, selp, slct.

The ordered comparisons are false and the unordered ones (``equ`` to ``geu``) true where an operand
is NaN. f16 and bf16 compare as their float32 values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from simulator.isa.half import flush16, wide
from simulator.isa.table import instruction
from simulator.isa.values import Array
from simulator.numerics.rounding import flush

Comparison = Callable[[Array, Array], Array]


def _eq(a: Array, b: Array) -> Array:
    """``a == b``."""
    return np.equal(a, b)


def _ne(a: Array, b: Array) -> Array:
    """``a != b``, both being numbers."""
    return np.not_equal(a, b)


def _lt(a: Array, b: Array) -> Array:
    """``a < b``."""
    return a < b


def _le(a: Array, b: Array) -> Array:
    """``a <= b``."""
    return a <= b


def _gt(a: Array, b: Array) -> Array:
    """``a > b``."""
    return a > b


def _ge(a: Array, b: Array) -> Array:
    """``a >= b``."""
    return a >= b


def _float_ne(a: Array, b: Array) -> Array:
    """``a != b``, both being numbers."""
    return (a < b) | (a > b)


def _ltu(a: Array, b: Array) -> Array:
    """``a < b`` or one is NaN."""
    return ~(a >= b)


def _leu(a: Array, b: Array) -> Array:
    """``a <= b`` or one is NaN."""
    return ~(a > b)


def _gtu(a: Array, b: Array) -> Array:
    """``a > b`` or one is NaN."""
    return ~(a <= b)


def _geu(a: Array, b: Array) -> Array:
    """``a >= b`` or one is NaN."""
    return ~(a < b)


def _equ(a: Array, b: Array) -> Array:
    """``a == b`` or one is NaN."""
    return ~_float_ne(a, b)


def _num(a: Array, b: Array) -> Array:
    """Neither is NaN."""
    return np.equal(a, a) & np.equal(b, b)


def _nan(a: Array, b: Array) -> Array:
    """One is NaN."""
    return np.not_equal(a, a) | np.not_equal(b, b)


_EQUALITY: Final[dict[str, Comparison]] = {"eq": _eq, "ne": _ne}
_ORDER: Final[dict[str, Comparison]] = {"lt": _lt, "le": _le, "gt": _gt, "ge": _ge}
_UNSIGNED: Final[dict[str, Comparison]] = {"lo": _lt, "ls": _le, "hi": _gt, "hs": _ge}
_FLOAT: Final[dict[str, Comparison]] = {
    "eq": _eq, "ne": _float_ne, **_ORDER,
    "equ": _equ, "neu": _ne, "ltu": _ltu, "leu": _leu, "gtu": _gtu, "geu": _geu,
    "num": _num, "nan": _nan,
}  # fmt: skip


# 1. setp and set


def _combine(op: str, t: Array, c: Array) -> Array:
    """``t op c`` for predicates."""
    return t & c if op == "and" else t | c if op == "or" else t ^ c


def _declare(op: str, compare: Comparison, types: tuple[str, ...], ftz: str = "") -> None:
    """Enter every form of ``setp`` and ``set`` with one comparison of some types."""
    setp = partial(instruction, section="9.7.6.2 setp", op=(op,), ftz=(ftz,), t=types)
    set_ = partial(instruction, section="9.7.6.1 set", op=(op,), ftz=(ftz,), t=types)

    def both(a: Array, b: Array) -> tuple[Array, Array]:
        """The comparison and its complement."""
        t = compare(a, b)
        return t, ~t

    def combined(a: Array, b: Array, c: Array, *, how: str) -> Array:
        """The comparison combined with ``c``."""
        return _combine(how, compare(a, b), c)

    def both_combined(a: Array, b: Array, c: Array, *, how: str) -> tuple[Array, Array]:
        """The comparison and its complement, each combined with ``c``."""
        t = compare(a, b)
        return _combine(how, t, c), _combine(how, ~t, c)

    def value(a: Array, b: Array, *, d: str) -> Array:
        """All ones, or 1.0, where the comparison is true, else 0."""
        return _TRUE[d][compare(a, b).astype(np.intp)]

    def value_combined(a: Array, b: Array, c: Array, *, d: str, how: str) -> Array:
        """All ones, or 1.0, where the comparison combined with ``c`` is true, else 0."""
        return _TRUE[d][_combine(how, compare(a, b), c).astype(np.intp)]

    one, two, how = "pred = <t> <t>", "pred|pred = <t> <t>", ("and", "or", "xor")
    setp("setp.<op><ftz>.<t>", one)(compare)
    setp("setp.<op><ftz>.<t>", two)(both)
    setp("setp.<op>.<how><ftz>.<t>", f"{one} pred", how=how)(combined)
    setp("setp.<op>.<how><ftz>.<t>", f"{two} pred", how=how)(both_combined)
    set_("set.<op><ftz>.<d>.<t>", "<d> = <t> <t>", d=_TRUE)(value)
    set_("set.<op>.<how><ftz>.<d>.<t>", "<d> = <t> <t> pred", how=how, d=_TRUE)(value_combined)


_TRUE: Final[dict[str, Array]] = {
    "u32": np.array([0, -1]).astype(np.uint32),
    "s32": np.array([0, -1], np.int32),
    "f32": np.array([0, 1], np.float32),
}
"""What ``set`` writes for false and for true."""


def _prepared(compare: Comparison, prepare: Callable[[Array], Array]) -> Comparison:
    """The comparison of prepared operands."""

    def prepared(a: Array, b: Array) -> Array:
        return compare(prepare(a), prepare(b))

    prepared.__doc__ = f"{compare.__doc__} Subnormals are zeros with .ftz."
    return prepared


def _declare_half(op: str, compare: Comparison, t: str, ftz: str = "") -> None:
    """Enter the forms of ``setp`` for a 16-bit type and for its pair."""
    setp = partial(instruction, section="9.7.7.2 setp", op=(op,), ftz=(ftz,), t=(t,))

    def combined(a: Array, b: Array, c: Array, *, how: str) -> Array:
        """The comparison combined with ``c``."""
        return _combine(how, compare(a, b), c)

    def pair(a: Array, b: Array) -> tuple[Array, Array]:
        """The comparisons of the low and of the high halves."""
        t = compare(a, b)
        return t[0::2].copy(), t[1::2].copy()

    def pair_combined(a: Array, b: Array, c: Array, *, how: str) -> tuple[Array, Array]:
        """The comparisons of the low and of the high halves, each combined with ``c``."""
        low, high = pair(a, b)
        return _combine(how, low, c), _combine(how, high, c)

    how = ("and", "or", "xor")
    setp("setp.<op><ftz>.<t>", "pred = <t> <t>")(compare)
    setp("setp.<op>.<how><ftz>.<t>", "pred = <t> <t> pred", how=how)(combined)
    setp("setp.<op><ftz>.<t>x2", "pred|pred = <t>x2 <t>x2")(pair)
    setp("setp.<op>.<how><ftz>.<t>x2", "pred|pred = <t>x2 <t>x2 pred", how=how)(pair_combined)


def _bf16(a: Array) -> Array:
    return wide(a, "bf16")


for _op, _compare in (_EQUALITY | _ORDER | _UNSIGNED).items():
    _signed = () if _op in _UNSIGNED else ("s16", "s32", "s64")
    _bits = ("b16", "b32", "b64") if _op in _EQUALITY else ()
    _declare(_op, _compare, ("u16", "u32", "u64", *_signed, *_bits))
for _op, _compare in _FLOAT.items():
    _declare(_op, _compare, ("f32", "f64"))
    _declare(_op, _prepared(_compare, flush), ("f32",), ".ftz")
    _declare_half(_op, _compare, "f16")
    _declare_half(_op, _prepared(_compare, flush16), "f16", ".ftz")
    _declare_half(_op, _prepared(_compare, _bf16), "bf16")


# 2. selp and slct

_SELECTED = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64")


@instruction("selp.<t>", "<t> = <t> <t> pred", t=_SELECTED, section="9.7.6.3 selp")
def selp(a: Array, b: Array, c: Array) -> Array:
    """``a`` where ``c`` is true, else ``b``."""
    return np.where(c, a, b)


@instruction("slct.<t>.s32", "<t> = <t> <t> s32", t=_SELECTED, section="9.7.6.4 slct")
@instruction("slct.<t>.f32", "<t> = <t> <t> f32", t=_SELECTED, section="9.7.6.4 slct")
def slct(a: Array, b: Array, c: Array) -> Array:
    """``a`` where ``c >= 0``, else ``b``; so ``b`` for NaN and ``a`` for -0."""
    return np.where(c >= 0, a, b)


@instruction("slct.ftz.<t>.f32", "<t> = <t> <t> f32", t=_SELECTED, section="9.7.6.4 slct")
def slct_ftz(a: Array, b: Array, c: Array) -> Array:
    """``a`` where ``c``, a subnormal counting as zero, is at least 0, else ``b``."""
    return np.where(flush(c) >= 0, a, b)
