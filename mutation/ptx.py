"""Mutants of a compiled kernel's synchronisation: one PTX statement removed or altered in each.

Works on the text, line by line, so that a mutant is three readable things: line, before, after. No
line moves, and what a mutant is reported for can be compared with the kernel line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_STATEMENT = re.compile(
    r"(?P<guard>@!?%?\w+\s+)?"
    r"(?P<opcode>(?:mbarrier\.(?:init|arrive|expect_tx|try_wait|test_wait)|fence|membar"
    r"|bar\.sync|bar\.arrive|barrier\.(?:cta\.)?(?:sync|arrive)|barrier\.cluster|griddepcontrol"
    r"|tcgen05\.(?:commit|wait|fence)|cp\.async\.(?:mbarrier|wait|bulk\.wait))[\w.:]*)"
    r"(?P<operands>[^;]*);"
)
_SCRATCH = "mutant_scratch"


@dataclass(frozen=True)
class Mutant:
    """One change. ``id`` is the kind, its number in the text, and what is done to it.

    ``line`` counts from 1; ``before`` and ``after`` are the whole line.
    """

    id: str
    kind: str
    line: int
    before: str
    after: str


@dataclass(frozen=True)
class Mutation:
    """The change called ``id``, for any compilation of a kernel: text to text.

    A compilation that has no such statement stays as it is.
    """

    id: str

    def __call__(self, ptx: str) -> str:
        """The text with the change."""
        lines = ptx.split("\n")
        for mutant in mutants(ptx):
            if mutant.id == self.id:
                lines[mutant.line - 1] = mutant.after
        return "\n".join(lines)


def is_synchronisation(opcode: str) -> bool:
    """Whether statements of this opcode are those that `mutants` changes."""
    return _STATEMENT.match(f"{opcode};") is not None


def mutants(ptx: str) -> Iterator[Mutant]:
    """Yield every mutant of the synchronisation in a text, in order."""
    counts: dict[str, int] = {}
    for number, line in enumerate(ptx.split("\n"), start=1):
        code = line.partition("//")[0]
        for found in _STATEMENT.finditer(code):
            kind = _kind(found["opcode"])
            counts[kind] = counts.get(kind, 0) + 1
            operands = _operands(found["operands"])
            for name, statement in _changes(kind, found["opcode"], operands):
                guard = found["guard"] or ""
                after = code[: found.start()] + _guarded(guard, statement) + code[found.end() :]
                yield Mutant(f"{kind}-{counts[kind]}-{name}", kind, number, line, after.rstrip())


def _kind(opcode: str) -> str:
    """What the statement is for, in a word."""
    for start, kind in (
        ("mbarrier.init", "init"),
        ("mbarrier.try_wait", "wait"),
        ("mbarrier.test_wait", "wait"),
        ("mbarrier.arrive.expect_tx", "expect_tx"),
        ("mbarrier.expect_tx", "expect_tx"),
        ("mbarrier.arrive", "arrive"),
        ("tcgen05.commit", "commit"),
        ("tcgen05.wait", "tmem_wait"),
        ("tcgen05.fence", "tmem_fence"),
        ("barrier.cluster.arrive", "cluster_arrive"),
        ("barrier.cluster.wait", "cluster_wait"),
        ("bar", "bar"),
        ("griddepcontrol.launch", "pdl_launch"),
        ("griddepcontrol", "pdl_wait"),
        ("cp.async.mbarrier", "copy_arrive"),
        ("cp.async", "copy_wait"),
    ):
        if opcode.startswith(start):
            return kind
    return "fence"


def _operands(text: str) -> list[str]:
    """The operands, split at the commas outside brackets."""
    return [part.strip() for part in re.split(r",(?![^\[{]*[\]}])", text) if part.strip()]


def _changes(kind: str, opcode: str, operands: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each change as its name and the statement that takes the place."""
    if kind == "wait":
        yield "remove", f"setp.eq.u32 {operands[0]}, 0, 0;"
        yield "parity", _with_scratch("xor.b32", operands[2], 1, opcode, operands, 2)
        return
    if kind == "init":
        yield "count", _with_scratch("add.s32", operands[1], 1, opcode, operands, 1)
        return
    yield "remove", ""
    whole = f"{opcode} {', '.join(operands)};"
    if kind == "expect_tx":
        last = len(operands) - 1
        yield "bytes", _with_scratch("add.s32", operands[last], 16, opcode, operands, last)
        if ".arrive." in opcode:
            plain = opcode.replace(".expect_tx", "")
            yield "no_tx", f"{plain} {', '.join(operands[:-1])};"
    elif kind in ("arrive", "commit", "copy_arrive"):
        yield "twice", f"{whole} {whole}"
    elif kind == "bar" and len(operands) == 2:
        yield "count", _with_scratch("add.s32", operands[1], 32, opcode, operands, 1)


def _with_scratch(
    change: str, operand: str, amount: int, opcode: str, operands: list[str], position: int
) -> str:
    """The statement with one operand changed by way of a register of its own."""
    changed = [*operands[:position], _SCRATCH, *operands[position + 1 :]]
    return (
        f"{{ .reg .b32 {_SCRATCH}; {change} {_SCRATCH}, {operand}, {amount}; "
        f"{opcode} {', '.join(changed)}; }}"
    )


def _guarded(guard: str, statement: str) -> str:
    """The statement under the guard of the one it replaces; of several, each instruction."""
    if not guard or not statement:
        return statement
    if statement.startswith("{"):
        declaration, change, main = statement.strip("{} ").split("; ", 2)
        return f"{{ {declaration}; {change}; {guard}{main} }}"
    return " ".join(f"{guard}{part.strip()};" for part in statement.split(";") if part.strip())
