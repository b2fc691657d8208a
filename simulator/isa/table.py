"""The instruction table: from an exact mnemonic to its meaning.

An instruction is declared where its function stands:

    @instruction("add.<t>", "<t> = <t> <t>", t=("u32", "u64"), section="9.7.1.1 add")
    def add(a, b):
        return a + b

The template expands over its variables into exact mnemonics, so the table can be listed, and an
unknown modifier is simply not in it. A keyword-only parameter of the function named like a variable
receives that variable's value.

**Signatures.** ``results = operands``, or operands alone. A token is a type (``u32``, ``pred``,
``f32x2``), ``(u32*4)`` or ``(b32 b32)`` for a PTX vector, ``[b32]`` for an address whose base has
that width, ``[b64 s32*3]`` for a tensor-map address with coordinates, and ``a|b`` for a pair of
results. ``&`` before the first result says that its old value is read too: the function
receives it as its first operand, the text names it once. Several declarations may share a mnemonic:
the first whose signature fits is taken.

**Functions.** Values are numpy arrays over the 32 lanes, in the dtype of their type; a packed type
such as ``f32x2`` has 64 elements, lane-major. A vector operand arrives as a tuple, an address as
the array of its values (with coordinates: a pair of that array and the tuple of coordinates).

* PURE ``f(*operands)``: depends on nothing else. Never writes into its arguments.
* EFFECT ``f(warp, mask, *operands)``: touches the machine; ``mask`` is None when all 32 lanes are
  active, else a boolean array.
* WAIT: like EFFECT, but may return ``BLOCKED``; it is then tried again at the warp's next turn.
* BRANCH and EXIT have no function: the executor knows them.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

from simulator.errors import SimulatorBug

Function = TypeVar("Function", bound=Callable[..., Any])


class Kind(Enum):
    """How the executor treats an instruction; see the module's text."""

    PURE = "pure"
    EFFECT = "effect"
    WAIT = "wait"
    BRANCH = "branch"
    EXIT = "exit"


class _Blocked:
    """The type of ``BLOCKED``."""


BLOCKED: Final = _Blocked()
"""What a WAIT function returns while it can't complete."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One result or operand of a signature.

    ``form`` is ``value``, ``vector`` or ``address``. ``types`` holds the type of a value, the types
    of a vector's elements, or the base's type followed by the coordinates' types of an address.
    """

    form: str
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One exact mnemonic with one signature."""

    mnemonic: str
    template: str
    section: str
    kind: Kind
    results: tuple[Slot, ...]
    operands: tuple[Slot, ...]
    function: Callable[..., Any] | None
    converged: bool
    updates: bool = False
    """Whether the first result is also the first operand, which the text doesn't repeat."""

    @property
    def written(self) -> tuple[Slot, ...]:
        """The slots in the order in which a PTX text writes them."""
        return self.results + self.operands[self.updates :]


TABLE: Final[dict[str, list[Entry]]] = {}
"""Every instruction that the simulator executes, by exact mnemonic."""


def instruction(
    template: str,
    signature: str = "",
    *,
    section: str,
    kind: Kind = Kind.PURE,
    converged: bool = False,
    **variables: Iterable[str],
) -> Callable[[Function], Function]:
    """A decorator that enters its function into ``TABLE`` for each expansion of the template.

    ``section`` names the PTX ISA section. ``converged`` says that all lanes of the warp that have
    not exited must be active (``.sync`` and ``.aligned`` forms). In template and signature
    ``<name>`` stands for a variable.
    """

    def declare(function: Function) -> Function:
        for mnemonic, entry in _expand(template, signature, variables, function):
            results, operands = parse_signature(entry.signature)
            TABLE.setdefault(mnemonic, []).append(
                Entry(
                    mnemonic, template, section, kind, results, operands, entry.bound, converged,
                    updates=entry.signature.startswith("&"),
                )
            )  # fmt: skip
        return function

    return declare


@dataclass(frozen=True)
class _Expansion:
    signature: str
    bound: Callable[..., Any]


def _expand(
    template: str,
    signature: str,
    variables: dict[str, Iterable[str]],
    function: Callable[..., Any],
) -> Iterable[tuple[str, _Expansion]]:
    """Each choice of the variables as (mnemonic, expansion)."""
    wanted = {
        p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY
    }
    if wanted - variables.keys():
        raise SimulatorBug(f"{template}: no variable for {sorted(wanted - variables.keys())}")
    for choice in itertools.product(*variables.values()):
        values = dict(zip(variables, choice, strict=True))
        chosen = {name: values[name] for name in wanted}
        bound = functools.partial(function, **chosen) if chosen else function
        yield _fill(template, values), _Expansion(_fill(signature, values), bound)


def _fill(text: str, values: dict[str, str]) -> str:
    return re.sub(r"<(\w+)>", lambda m: values[m[1]], text)


_SLOT = re.compile(r"\(([^)]*)\)|\[([^\]]*)\]|([\w]+)")


@functools.cache
def parse_signature(signature: str) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
    """The results and the operands of a signature text."""
    left, equals, right = signature.partition("=")
    if not equals:
        left, right = "", signature
    results, operands = _slots(left.replace("|", " ")), _slots(right)
    return results, (results[:1] if left.startswith("&") else ()) + operands


def _slots(text: str) -> tuple[Slot, ...]:
    out = []
    for vector, address, value in _SLOT.findall(text):
        if value:
            out.append(Slot("value", (value,)))
        else:
            out.append(Slot("vector" if vector else "address", tuple(_types(vector or address))))
    return tuple(out)


def _types(text: str) -> Iterable[str]:
    for item in text.split():
        name, star, count = item.partition("*")
        yield from [name] * (int(count) if star else 1)
