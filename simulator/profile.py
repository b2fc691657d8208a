"""What one launch executed, counted: instructions by PTX line, special functions, bytes, MMA work.

Counting takes the interpreter. A wait counts once, when it ends: how often it was tried before is
the schedule's affair and stands in ``KernelRun.polls``. An unconditional branch is no instruction
here, as in ``KernelRun.warp_instructions``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from simulator.program import Block, Branch, Exit, Program, Wait
from simulator.ptx import nodes

LANES: Final = 32
SPECIAL_FUNCTIONS: Final = ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh")
"""Mnemonics that the special-function unit executes. PTX ISA 9.7.3, the ``.approx`` forms."""


@dataclass(frozen=True)
class Line:
    """One PTX instruction and how many warps executed it; ``source`` is the kernel's, if known."""

    number: int
    text: str
    source: str | None
    mnemonic: str
    executed: int


@dataclass(frozen=True)
class Profile:
    """The counts of one launch; ``bytes`` by direction, ``counts`` as in ``KernelRun.counts``."""

    lines: tuple[Line, ...]
    bytes: Mapping[str, int]
    counts: Mapping[str, int]

    @property
    def warp_instructions(self) -> int:
        """All instructions, failed waits left out."""
        return sum(line.executed for line in self.lines)

    @property
    def special_functions(self) -> int:
        """Operations that the special-function unit issues: for all 32 lanes, active or not."""
        return sum(
            line.executed * LANES * (2 if "f16x2" in line.mnemonic else 1)
            for line in self.lines
            if line.mnemonic.split(".")[0] in SPECIAL_FUNCTIONS and "approx" in line.mnemonic
        )

    @property
    def by_opcode(self) -> Counter[str]:
        """Instructions by opcode, the mnemonic up to its first dot."""
        return self._by(lambda line: line.mnemonic.split(".")[0])

    @property
    def by_source(self) -> Counter[str]:
        """Instructions by the line of the kernel's source that they come from."""
        return self._by(lambda line: line.source or "unknown")

    def _by(self, key: Callable[[Line], str]) -> Counter[str]:
        counted: Counter[str] = Counter()
        for line in self.lines:
            counted[key(line)] += line.executed
        return counted


def profile(
    program: Program, executed: list[int], bytes: Mapping[str, int], counts: Mapping[str, int]
) -> Profile:
    """The profile of a launch whose blocks were ``executed`` so often each."""
    lines = [
        Line(node.line, node.text(), node.source, node.mnemonic, times)
        for index, times in enumerate(executed)
        for node in _instructions(program.blocks[index])
    ]
    exits = sum(
        times
        for block, times in zip(program.blocks, executed, strict=True)
        if isinstance(block.terminator, Exit)
    )
    last = max(block.line for block in program.blocks) + 1
    lines.append(Line(last, "exit, wherever it stands", None, "exit", exits))
    return Profile(tuple(sorted(lines, key=lambda line: line.number)), dict(bytes), dict(counts))


def _instructions(block: Block) -> Iterator[nodes.Instruction]:
    """The instructions of a block, as ``Interpreter`` counts them, but for its exit."""
    for operation in block.operations:
        yield operation.node
    match block.terminator:
        case Wait(operation=operation):
            yield operation.node
        case Branch(node=node):
            yield node
