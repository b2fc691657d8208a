"""Mutants of any statement of a compiled kernel, made by rules: one PTX line changed in each.

`mutation.ptx` has the changes of synchronisation; here are those of everything else: comparisons,
constants, the choice of an operation, the order of operands, what is dropped, addresses, guards,
shuffles and conversions. A mutant is for one text: its id begins with a digest of the compilation
it was made of, and every other compilation of the kernel stays as it is.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from mutation import ptx
from mutation.ptx import Mutant

_STATEMENT = re.compile(
    r"^(?P<indent>\s*)(?P<guard>@!?%?\w+\s+)?(?P<opcode>[a-z][\w.:]*)\s+(?P<operands>.*);"
)
_SOURCE_FILE = re.compile(r"\s*\.file\b")
_INTEGER = re.compile(r"^-?\d+$|^0x[0-9a-fA-F]+$")
_FLOAT = re.compile(r"^0[fF][0-9a-fA-F]{8}$")
_ADDRESS = re.compile(r"^\[(?P<base>%?\w+)(?P<offset>\+-?\d+)?\]$")

_COMPARISONS = {
    "lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq",
    "ltu": "leu", "leu": "ltu", "gtu": "geu", "geu": "gtu", "equ": "neu", "neu": "equ",
}  # fmt: skip
_OTHER_OPERATION = {
    "add": "sub", "sub": "add", "min": "max", "max": "min", "and": "or", "or": "and", "xor": "or",
    "shl": "shr", "shr": "shl", "mul": "add", "div": "mul.lo", "rem": "div",
}  # fmt: skip
_ORDERED = {"sub", "div", "rem", "shl", "shr", "selp", "lop3", "bfe", "prmt", "mad", "fma"}
_EFFECTS = ("st.", "red.", "atom.", "cp.", "tcgen05.", "prefetch")
_ROUNDINGS = {".rn.": ".rz.", ".rz.": ".rn.", ".rni.": ".rzi."}
_LARGEST_EXPONENT = 0xFE

Operands = Sequence[str]
Operator = Callable[[str, Operands], Iterator[tuple[str, Operands]]]


@dataclass(frozen=True)
class TextMutation:
    """The change called ``id``, for the one compilation that it was made of: text to text."""

    id: str

    def __call__(self, text: str) -> str:
        """The text with the change; another compilation's text as it is."""
        if not self.id.startswith(digest(text)):
            return text
        lines = text.split("\n")
        for mutant in mutants(text):
            if mutant.id == self.id:
                lines[mutant.line - 1] = mutant.after
                return "\n".join(lines)
        raise ValueError(f"mutant {self.id}: the compilation has no such statement")


def change(mutant_id: str) -> Callable[[str], str]:
    """The change of that id, of those here or of `mutation.ptx`: from a PTX text to another."""
    here = re.match(r"[0-9a-f]{8}-L\d+-", mutant_id)
    return TextMutation(mutant_id) if here else ptx.Mutation(mutant_id)


def digest(text: str) -> str:
    """The first eight hex digits of the SHA-256 of a PTX text, whatever files it comes from."""
    code = "\n".join(line for line in text.split("\n") if not _SOURCE_FILE.match(line))
    return hashlib.sha256(code.encode()).hexdigest()[:8]


def mutants(text: str) -> Iterator[Mutant]:
    """Yield every mutant of a text, those of synchronisation among them, in no particular order."""
    own = digest(text)
    for mutant in ptx.mutants(text):
        yield replace(mutant, id=f"{own}-L{mutant.line}-{mutant.id}")
    for number, line in enumerate(text.split("\n"), start=1):
        for kind, name, after in _changes_of(line.partition("//")[0].rstrip()):
            yield Mutant(f"{own}-L{number}-{kind}-{name}", kind, number, line, after)


def sample(found: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """``count`` mutants, as many of each kind as of any other while there are some; seeded.

    Unrolled code has hundreds of multiplications and a dozen comparisons; a plain sample would
    hardly see the comparisons.
    """
    choice = random.Random(seed)
    kinds: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in found:
        kinds[mutant.kind].append(mutant)
    for waiting in kinds.values():
        choice.shuffle(waiting)
    chosen: list[Mutant] = []
    while len(chosen) < min(count, len(found)):
        for kind in sorted(kinds):
            if kinds[kind] and len(chosen) < count:
                chosen.append(kinds[kind].pop())
    return chosen


def _changes_of(line: str) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, name, line) for each change of a line; nothing where it is no statement."""
    match = _STATEMENT.match(line)
    if match is None or line.lstrip().startswith("."):
        return
    indent, guard, opcode = match["indent"], match["guard"] or "", match["opcode"]
    operands = _split(match["operands"])
    if guard:
        other = guard.replace("@!", "@") if guard.startswith("@!") else guard.replace("@", "@!")
        yield "guard", "negate", f"{indent}{other}{line[len(indent) + len(guard) :]}"
    for kind, operator in _RULES.items():
        for name, statement, changed in _named(operator(opcode, operands)):
            yield kind, name, f"{indent}{guard}{statement} {', '.join(changed)};"
    if opcode.startswith(_EFFECTS) and not ptx.is_synchronisation(opcode):
        yield "drop", "remove", ""


def _named(changes: Iterator[tuple[str, Operands]]) -> Iterator[tuple[str, str, Operands]]:
    for number, (statement, operands) in enumerate(changes):
        yield f"{number}", statement, operands


def _split(text: str) -> list[str]:
    """Operands, split at the commas outside brackets and braces."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "[{(") - (character in "]})")
        if character == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [part for part in [*parts, text[start:].strip()] if part]


def _comparison(opcode: str, operands: Operands) -> Iterator[tuple[str, Operands]]:
    """A strict comparison made loose, and the other way; equal made unequal."""
    head, *rest = opcode.split(".")
    if head in ("setp", "set") and rest and rest[0] in _COMPARISONS:
        yield ".".join((head, _COMPARISONS[rest[0]], *rest[1:])), operands


def _constant(opcode: str, operands: Operands) -> Iterator[tuple[str, Operands]]:
    """An integer one more, a floating-point number twice as large, zero made one."""
    if opcode.startswith(("bra", "ld", "st", "cp.", "tcgen05.", "mbarrier", "bar", "fence")):
        return
    for at, operand in enumerate(operands):
        if at == 0:
            continue
        if _FLOAT.match(operand):
            yield opcode, _with(operands, at, _doubled(operand))
        elif _INTEGER.match(operand):
            yield opcode, _with(operands, at, str(int(operand, 0) + 1))


def _operation(opcode: str, operands: Operands) -> Iterator[tuple[str, Operands]]:
    """Another operation of the same form."""
    head, dot, rest = opcode.partition(".")
    if head in _OTHER_OPERATION and len(operands) == 3 and not rest.startswith(("pred", "wide")):
        if head == "mul":
            rest = rest.removeprefix("lo.")
        yield f"{_OTHER_OPERATION[head]}{dot}{rest}", operands


def _order(opcode: str, operands: Operands) -> Iterator[tuple[str, Operands]]:
    """Two sources exchanged, where it matters which is first."""
    head = opcode.partition(".")[0]
    packs = opcode.startswith("cvt") and len(operands) == 3
    if head in ("mad", "fma") and len(operands) == 4:
        yield opcode, [operands[0], operands[1], operands[3], operands[2]]
    elif (head in _ORDERED or packs) and len(operands) >= 3 and operands[1] != operands[2]:
        yield opcode, [operands[0], operands[2], operands[1], *operands[3:]]


def _passed(opcode: str, operands: Operands) -> Iterator[tuple[str, Operands]]:
    """The operation left out: its result is its first source, or its addend."""
    head = opcode.partition(".")[0]
    width = re.search(r"\.[bsuf](32|64)(x2)?$", opcode)
    if width is None or head not in {*_OTHER_OPERATION, "mad", "fma"} or ".wide." in opcode:
        return
    size = "64" if width[1] == "64" or width[2] else "32"
    source = operands[3] if head in ("mad", "fma") and len(operands) == 4 else operands[1]
    yield f"mov.b{size}", [operands[0], source]


def _address(opcode: str, operands: Operands) -> Iterator[tuple[str, Operands]]:
    """An address one element of 16 bytes further, which keeps its alignment."""
    if not opcode.startswith(("ld.global", "ld.shared", "st.global", "st.shared")):
        return
    for at, operand in enumerate(operands):
        match = _ADDRESS.match(operand)
        if match:
            offset = int(match["offset"] or "0") + 16
            yield opcode, _with(operands, at, f"[{match['base']}+{offset}]")


def _parameter(opcode: str, operands: Operands) -> Iterator[tuple[str, Operands]]:
    """A kernel parameter read as zero."""
    if opcode.startswith("ld.param") and ".v" not in opcode:
        yield f"mov.b{opcode[-2:]}", [operands[0], "0"]


def _shuffle(opcode: str, operands: Operands) -> Iterator[tuple[str, Operands]]:
    """Lanes exchanged otherwise."""
    if opcode.startswith("shfl.sync.bfly"):
        yield opcode.replace(".bfly.", ".down."), operands
        yield f"mov.{opcode.rsplit('.', 1)[1]}", [operands[0], operands[1]]


def _conversion(opcode: str, operands: Operands) -> Iterator[tuple[str, Operands]]:
    """Another rounding; no saturation; flushed subnormals."""
    for rounding, other in _ROUNDINGS.items():
        if rounding in opcode and opcode.startswith(("cvt", "add", "mul", "fma", "rcp")):
            yield opcode.replace(rounding, other), operands


_RULES: dict[str, Operator] = {
    "compare": _comparison,
    "constant": _constant,
    "operation": _operation,
    "order": _order,
    "pass": _passed,
    "address": _address,
    "parameter": _parameter,
    "shuffle": _shuffle,
    "convert": _conversion,
}

OPERATORS = frozenset((*_RULES, "guard", "drop"))
"""The kinds of the mutants here; all others change synchronisation."""


def _with(operands: Operands, at: int, operand: str) -> Operands:
    return [*operands[:at], operand, *operands[at + 1 :]]


def _doubled(operand: str) -> str:
    """A float literal with its exponent one more; zero becomes one, infinity zero."""
    bits = int(operand[2:], 16)
    exponent = (bits >> 23) & 0xFF
    if bits & 0x7FFFFFFF == 0:
        changed = bits | 0x3F800000
    elif exponent >= _LARGEST_EXPONENT:
        changed = bits & 0x80000000
    else:
        changed = bits + (1 << 23)
    return f"0f{changed:08X}"
