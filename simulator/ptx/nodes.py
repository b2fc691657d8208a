"""The nodes that a PTX module parses into.

Names are resolved: a register declared inside ``{ }`` has a name of its own (``P1@3``), a label is
unique in its kernel, and a parameter or shared variable is a ``Symbol``. Nothing here knows what an
instruction means.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Register:
    """A virtual register; ``type`` is its declared type without the dot, such as ``b32``."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal: ``value`` is the integer, or the bit pattern of a floating-point literal."""

    value: int
    is_float: bool = False


@dataclass(frozen=True, slots=True)
class Special:
    """A special register such as ``%tid.x``."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of a kernel parameter or of a variable, used as its address."""

    name: str


@dataclass(frozen=True, slots=True)
class Label:
    """A branch target."""

    name: str


@dataclass(frozen=True, slots=True)
class Sink:
    """The operand ``_``: a result that is thrown away."""


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b, ...}``."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """``d|p``: two results of one instruction."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``, or ``[base, {coordinates}]`` for a tensor map."""

    base: Operand
    offset: int = 0
    coordinates: Vector | None = None


Operand: TypeAlias = (
    Register | Immediate | Special | Symbol | Label | Sink | Vector | Pair | Address
)


@dataclass(frozen=True, slots=True)
class Guard:
    """``@p`` or ``@!p`` in front of an instruction."""

    register: Register
    negated: bool


@dataclass(frozen=True, slots=True)
class Instruction:
    """One statement. ``mnemonic`` is the opcode with all its modifiers, as written."""

    mnemonic: str
    operands: tuple[Operand, ...]
    guard: Guard | None
    line: int
    source: str | None = None

    def text(self) -> str:
        """The statement in one normalised line, for messages."""
        operands = ", ".join(map(operand_text, self.operands))
        text = f"{self.mnemonic} {operands}".rstrip() + ";"
        if self.guard is None:
            return text
        return f"@{'!' if self.guard.negated else ''}{operand_text(self.guard.register)} {text}"


@dataclass(frozen=True, slots=True)
class LabelMark:
    """The place in the body that a ``Label`` names."""

    name: str
    line: int


@dataclass(frozen=True, slots=True)
class Param:
    """A kernel parameter: ``offset`` and ``size`` in bytes in the parameter space."""

    name: str
    offset: int
    size: int
    alignment: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A ``.shared`` or ``.local`` variable; ``size`` is None for the dynamic ``.extern`` one."""

    name: str
    alignment: int
    size: int | None


@dataclass(frozen=True)
class Kernel:
    """An ``.entry`` function: parameters in order, body as instructions and label marks."""

    name: str
    params: tuple[Param, ...]
    body: tuple[Instruction | LabelMark, ...]
    shared: tuple[Variable, ...]
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    local: tuple[Variable, ...] = ()

    @property
    def param_bytes(self) -> int:
        """Size of the parameter space in bytes."""
        return max((p.offset + p.size for p in self.params), default=0)


@dataclass(frozen=True)
class Module:
    """A PTX module: ``.version``, ``.target`` and its kernels by name."""

    version: str
    target: str
    kernels: dict[str, Kernel]


def operand_text(operand: Operand) -> str:
    """The operand as PTX writes it, for messages."""
    match operand:
        case Register(name=name) | Special(name=name) | Symbol(name=name) | Label(name=name):
            return name.split("@")[0]
        case Immediate(value=value, is_float=is_float):
            return f"0f{value:08X}" if is_float else str(value)
        case Vector(elements=elements):
            return "{" + ", ".join(map(operand_text, elements)) + "}"
        case Pair(first=first, second=second):
            return f"{operand_text(first)}|{operand_text(second)}"
        case Address(base=base, offset=offset, coordinates=coordinates):
            inner = operand_text(base) + (f"{offset:+d}" if offset else "")
            return f"[{inner}{', ' + operand_text(coordinates) if coordinates else ''}]"
        case Sink():
            return "_"
