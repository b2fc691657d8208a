"""The table of translations, and how a family file enters them.

    @pure("add.<t>", t=("u32", "s32"))
    def add(e, a, b):
        return e.b.add(a, b)

The template expands as in the instruction table. A keyword-only parameter named like a variable
receives its value. What is not entered here runs through the table's own function; no instruction
needs a translation.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from llvmlite import ir

from simulator.codegen.emit import Form, emit_effect, emit_pure
from simulator.errors import SimulatorBug
from simulator.isa.table import Entry, parse_signature

Emit = Callable[[ir.Module, Form], None]

TRANSLATIONS: Final[dict[str, list[tuple[Any, Emit]]]] = {}
"""By mnemonic: signatures (None for any) and what writes the function of a form."""


def pure(
    template: str, signature: str | None = None, **variables: Iterable[str]
) -> Callable[[Any], Any]:
    """A decorator that enters a translation of pure instructions: IR operands to IR results."""
    return _enter(template, signature, variables, emit_pure)


def effect(
    template: str, signature: str | None = None, **variables: Iterable[str]
) -> Callable[[Any], Any]:
    """A decorator that enters a translation of instructions with an effect, or of waits."""
    return _enter(template, signature, variables, emit_effect)


def _enter(
    template: str,
    signature: str | None,
    variables: dict[str, Iterable[str]],
    emit: Callable[..., None],
) -> Callable[[Any], Any]:
    def declare(function: Any) -> Any:
        parameters = inspect.signature(function).parameters.values()
        wanted = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        if set(wanted) - variables.keys():
            raise SimulatorBug(
                f"{template}: no variable for {sorted(set(wanted) - variables.keys())}"
            )
        for choice in itertools.product(*variables.values()):
            values = dict(zip(variables, choice, strict=True))
            bound = functools.partial(function, **{name: values[name] for name in wanted})
            form = None if signature is None else parse_signature(_fill(signature, values))
            found = TRANSLATIONS.setdefault(_fill(template, values), [])
            found.append((form, functools.partial(_emit, emit, bound)))
        return function

    return declare


def _emit(emit: Callable[..., None], translation: Any, module: ir.Module, form: Form) -> None:
    emit(module, form, translation)


def _fill(text: str, values: dict[str, str]) -> str:
    return re.sub(r"<(\w+)>", lambda m: values[m[1]], text)


def translation(entry: Entry) -> Emit | None:
    """What writes the forms of a table entry, or None: then it runs in Python."""
    for form, emit in TRANSLATIONS.get(entry.mnemonic, ()):
        if form is None or form == (entry.results, entry.operands):
            return emit
    return None
