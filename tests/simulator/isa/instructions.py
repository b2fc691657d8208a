"""Holds every instruction of a family to an oracle that works on one lane in plain Python.

A test file declares its oracles with ``oracle`` and hands its family's module to ``templates`` and
``check_template``: an entry of the table without an oracle fails there, so nothing that the table
lists goes untested.

An oracle receives Python values: integers as such, predicates as bool, floating-point values as
their bit patterns, packed types and vectors as tuples, lowest part first. It gives back the same.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np

from simulator.isa.table import TABLE, Entry, Slot, parse_signature
from simulator.isa.values import BITS, DTYPES, STORAGE

LANES = 32
FLOATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}

Inputs = Callable[[np.random.Generator, int], list[Any]]
Oracles = dict[tuple[str, tuple[Any, ...] | None], tuple[Callable[..., Any], Inputs | None]]


class Family:
    """The oracles of one module of instructions."""

    def __init__(self, module: ModuleType) -> None:
        self.entries = [e for forms in TABLE.values() for e in forms if home(e) == module.__name__]
        self._oracles: Oracles = {}

    def oracle(
        self, template: str, signature: str | None = None, *, inputs: Inputs | None = None,
        **variables: Iterable[str],
    ) -> Callable[..., Any]:  # fmt: skip
        """Declare the decorated function as the meaning of each expansion of the template.

        With ``signature`` only of the forms that have it. ``inputs(rng, round)`` may give the
        operands (arrays) of a round instead of the ones drawn by type.
        """

        def declare(function: Callable[..., Any]) -> Callable[..., Any]:
            wanted = [
                p.name
                for p in inspect.signature(function).parameters.values()
                if p.kind is p.KEYWORD_ONLY
            ]
            for choice in itertools.product(*variables.values()):
                values = dict(zip(variables, choice, strict=True))
                bound = functools.partial(function, **{k: values[k] for k in wanted})
                form = None if signature is None else parse_signature(fill(signature, values))
                self._oracles[fill(template, values), form] = (bound, inputs)
            return function

        return declare

    @property
    def templates(self) -> list[str]:
        """The templates of the module's instructions."""
        return list(dict.fromkeys(e.template for e in self.entries))

    def check(self, template: str, rounds: int = 4) -> None:
        """Compare every expansion of a template with its oracle on several warps of operands."""
        for entry in self.entries:
            if entry.template == template:
                form = (entry.results, entry.operands)
                oracles = self._oracles
                found = oracles.get((entry.mnemonic, form)) or oracles.get((entry.mnemonic, None))
                assert found is not None, f"{entry.mnemonic} has no oracle"
                compare(entry, *found, rounds=rounds)


def home(entry: Entry) -> str:
    """The module that declares an entry's function."""
    function: Any = entry.function
    return str(getattr(function, "func", function).__module__) if function else ""


def fill(text: str, values: dict[str, str]) -> str:
    return re.sub(r"<(\w+)>", lambda m: values[m[1]], text)


def compare(
    entry: Entry, oracle: Callable[..., Any], inputs: Inputs | None = None, *, rounds: int
) -> None:
    """Run ``entry`` on random operands and compare each lane's result, bit by bit."""
    rng = np.random.default_rng(len(entry.mnemonic))
    assert entry.function is not None
    with np.errstate(all="ignore"):
        for number in range(rounds):
            drawn = inputs(rng, number) if inputs else [draw(s, rng) for s in entry.operands]
            kept = [frozen(x) for x in drawn]
            given = entry.function(*kept)
            results = (given,) if len(entry.results) == 1 else tuple(given)
            actual = [lanes(s, x) for s, x in zip(entry.results, results, strict=True)]
            operands = [lanes(s, x) for s, x in zip(entry.operands, drawn, strict=True)]
            for lane, values in enumerate(zip(*operands, strict=True)):
                expected = oracle(*values)
                expected = (expected,) if len(entry.results) == 1 else expected
                got = tuple(a[lane] for a in actual)
                want = tuple(map(normal, entry.results, expected))
                assert got == want, (
                    f"{entry.mnemonic} {shown(values)}: {shown(got)}, not {shown(want)}"
                )


def frozen(x: Any) -> Any:
    """A copy that may not be written to."""
    if isinstance(x, tuple):
        return tuple(map(frozen, x))
    x = x.copy()
    x.setflags(write=False)
    return x


def shown(x: Any) -> Any:
    return type(x)(map(shown, x)) if isinstance(x, tuple) else hex(x) if type(x) is int else x


# 1. Operands


def draw(slot: Slot, rng: np.random.Generator) -> Any:
    """Random operands for a slot: corner values, small values and arbitrary bits mixed."""
    arrays = [draw_value(t, rng) for t in slot.types]
    return tuple(arrays) if slot.form == "vector" else arrays[0]


def draw_value(kind: str, rng: np.random.Generator) -> np.ndarray:
    if kind == "pred":
        return rng.integers(0, 2, LANES).astype(bool)
    scalar = kind.removesuffix("x2") if kind.endswith("x2") else "u64" if kind == "b128" else kind
    count = LANES * elements(kind)
    width = BITS[scalar]
    whole = rng.integers(0, 1 << width, count, dtype=np.uint64)
    special = rng.choice(np.array(corners(scalar), np.uint64), count)
    usual = everyday(scalar, rng, count)
    bits = np.choose(rng.integers(0, 3, count), [whole, special, usual])
    return bits.astype(STORAGE[width]).view(DTYPES[kind])


def elements(kind: str) -> int:
    """How many elements a value of the type has in each lane."""
    return max(1, BITS[kind] // (8 * DTYPES[kind].itemsize))


def corners(kind: str) -> list[int]:
    width = BITS[kind]
    if kind not in FLOATS:
        top = 1 << (width - 1)
        return [0, 1, 2, top - 1, top, top + 1, 2 * top - 2, 2 * top - 1]
    exponent, mantissa = FLOATS[kind]
    one, infinity = ((1 << (exponent - 1)) - 1) << mantissa, ((1 << exponent) - 1) << mantissa
    tiny = 1 << mantissa
    positive = [0, 1, 2, tiny - 1, tiny, tiny + 1, one - 1, one, one + 1, infinity - 1, infinity,
                infinity + 1, infinity | tiny >> 1]  # fmt: skip
    return [*positive, *(p | 1 << (width - 1) for p in positive)]


def everyday(kind: str, rng: np.random.Generator, count: int) -> np.ndarray:
    """Small integers, or floats around one with either sign."""
    if kind not in FLOATS:
        return rng.integers(0, 72, count, dtype=np.uint64)
    exponent, mantissa = FLOATS[kind]
    bias = (1 << (exponent - 1)) - 1
    field = rng.integers(bias - 4, bias + 8, count, dtype=np.uint64)
    sign = rng.integers(0, 2, count, dtype=np.uint64) << np.uint64(exponent + mantissa)
    fraction = rng.integers(0, 1 << mantissa, count, dtype=np.uint64)
    coarse = rng.integers(0, 2, count).astype(bool)
    # Few significant bits make exact results and ties frequent.
    fraction = np.where(coarse, fraction & np.uint64(7 << (mantissa - 3)), fraction)
    return sign | field << np.uint64(mantissa) | fraction


# 2. Values


def lanes(slot: Slot, x: Any) -> list[Any]:
    """The Python values of a slot, lane by lane."""
    if slot.form == "vector":
        return list(
            zip(*(values(t, part) for t, part in zip(slot.types, x, strict=True)), strict=True)
        )
    return values(slot.types[0], x)


def values(kind: str, x: np.ndarray) -> list[Any]:
    """The Python values of one array; its dtype, size and layout must be those of its type."""
    assert x.dtype == DTYPES[kind], f"{kind} came as {x.dtype}"
    assert x.shape == (LANES * elements(kind),), f"{kind} has shape {x.shape}"
    assert x.flags.c_contiguous, "not c_contiguous"
    raw = x.view(f"u{x.itemsize}") if x.dtype.kind == "f" else x
    plain = raw.tolist()
    n = elements(kind)
    return plain if n == 1 else list(zip(*(plain[i::n] for i in range(n)), strict=True))


def normal(slot: Slot, value: Any) -> Any:
    """What an oracle gave, reduced to the range of its type."""
    if slot.form == "vector":
        return tuple(map(wrap, value, slot.types))
    return wrap(value, slot.types[0])


def wrap(value: Any, kind: str) -> Any:
    """``value`` modulo the type's width, as the type's Python value."""
    if kind == "pred":
        return bool(value)
    n = elements(kind)
    if n > 1:
        scalar = kind.removesuffix("x2") if kind != "b128" else "u64"
        return tuple(wrap(v, scalar) for v in value)
    value &= (1 << BITS[kind]) - 1
    negative = DTYPES[kind].kind == "i" and value >> (BITS[kind] - 1)
    return value - (1 << BITS[kind]) if negative else value
