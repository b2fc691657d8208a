"""The decoded program: what every executor runs, with nothing left to look up in the PTX text.

Registers are numbered slots, operands are typed, mnemonics are table entries, and control flow is a
graph of basic blocks, each with the block where diverged lanes meet again.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TypeAlias

from simulator.errors import Location
from simulator.isa.table import Entry
from simulator.ptx import nodes


@dataclass(frozen=True, slots=True)
class FromRegister:
    """The register in ``slot``, declared as ``storage``, read as ``type``."""

    slot: int
    storage: str
    type: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal: its bits, read as ``type``."""

    bits: int
    type: str


@dataclass(frozen=True, slots=True)
class FromSpecial:
    """A special register or the address of a shared variable, read as ``type``."""

    name: str
    type: str


Value: TypeAlias = FromRegister | Constant | FromSpecial


@dataclass(frozen=True, slots=True)
class FromVector:
    """The elements of ``{...}``."""

    elements: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class FromAddress:
    """``base + offset``, with a tensor map's coordinates if ``coordinates`` is not None."""

    base: Value
    offset: int
    coordinates: tuple[Value, ...] | None = None


Source: TypeAlias = Value | FromVector | FromAddress


@dataclass(frozen=True, slots=True)
class Target:
    """Where a result of ``type`` goes; ``slot`` is None for the sink."""

    slot: int | None
    storage: str
    type: str


@dataclass(frozen=True, slots=True)
class Predicate:
    """A guard: the predicate register in ``slot``, negated or not."""

    slot: int
    negated: bool


@dataclass(frozen=True, slots=True)
class Operation:
    """One decoded instruction. ``node`` is what it came from, for messages."""

    entry: Entry
    targets: tuple[Target, ...]
    sources: tuple[Source, ...]
    guard: Predicate | None
    node: nodes.Instruction


@dataclass(frozen=True, slots=True)
class Goto:
    """Continue at block ``target``."""

    target: int


@dataclass(frozen=True, slots=True)
class Branch:
    """To ``taken`` where the predicate holds, else to ``otherwise``.

    ``uniform`` forbids that lanes diverge.
    """

    predicate: Predicate
    taken: int
    otherwise: int
    uniform: bool
    node: nodes.Instruction


@dataclass(frozen=True, slots=True)
class Wait:
    """Try ``operation`` until it completes, then continue at ``target``."""

    operation: Operation
    target: int


@dataclass(frozen=True, slots=True)
class Exit:
    """The active lanes leave the kernel."""


Terminator: TypeAlias = Goto | Branch | Wait | Exit


@dataclass(frozen=True, slots=True)
class Block:
    """A basic block. Lanes that diverge at its end meet again at block ``reconverges``.

    A block that ends in ``Wait`` has no operations, so that waiting repeats nothing.
    """

    operations: tuple[Operation, ...]
    terminator: Terminator
    reconverges: int
    line: int


@dataclass(frozen=True)
class Program:
    """A decoded kernel. ``registers`` holds the declared type of each slot, ``register_names`` the
    PTX's names.

    Block ``len(blocks)`` stands for the exit. ``shared_offsets`` places the shared variables;
    the dynamic one starts at ``dynamic_shared_offset``. ``local_bytes`` is what each thread has.
    """

    kernel: nodes.Kernel
    registers: tuple[str, ...]
    blocks: tuple[Block, ...]
    shared_offsets: dict[str, int]
    dynamic_shared_offset: int
    register_names: tuple[str, ...] = ()
    local_bytes: int = 0

    @functools.cached_property
    def _places(self) -> dict[tuple[int, int], Location]:
        return {}

    def place(self, block: int, position: int) -> Location:
        """Where in the program the ``instruction`` there is."""
        found = self._places.get((block, position))
        if found is None:
            node, kernel = self.instruction(block, position), self.kernel.name
            found = (
                Location(kernel, node.line, node.text(), node.source) if node else Location(kernel)
            )
            self._places[block, position] = found
        return found

    def instruction(self, block: int, position: int) -> nodes.Instruction | None:
        """The instruction at a position in a block; at its end the last one that it has.

        None in an empty block and at the exit.
        """
        if block == len(self.blocks):
            return None
        operations, end = self.blocks[block].operations, self.blocks[block].terminator
        if position < len(operations):
            return operations[position].node
        match end:
            case Wait(operation=operation):
                return operation.node
            case Branch(node=node):
                return node
        return operations[-1].node if operations else None
