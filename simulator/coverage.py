"""Which basic blocks and branch edges of a kernel a launch executed, at next to no cost.

Each block counts how often it ran and, where it ends in a conditional branch, how often a warp went
each way. Every other edge follows from its block. Both executors count; docs/simulator/native.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.program import Branch, Exit, Goto, Program, Wait

Edge = tuple[int, int]


@dataclass(frozen=True)
class Counters:
    """How often each block ran, and how often its branch was ``taken`` and ``passed``."""

    executed: list[int]
    taken: list[int]
    passed: list[int]

    @classmethod
    def of(cls, num_blocks: int) -> Counters:
        """Counters at zero."""
        return cls([0] * num_blocks, [0] * num_blocks, [0] * num_blocks)


@dataclass(frozen=True)
class Coverage:
    """What of a kernel ran in one launch.

    A block is its number in the decoded program, ``num_blocks`` the exit. An edge leads from block
    to block; a warp whose lanes go both ways has taken both.
    """

    kernel: str
    blocks: frozenset[int]
    edges: frozenset[Edge]
    num_blocks: int
    num_edges: int


def coverage_of(program: Program, counters: Counters) -> Coverage:
    """What the counters say of a program."""
    num_blocks = len(program.blocks)
    ran = frozenset(number for number, times in enumerate(counters.executed) if times)
    edges = list(_edges(program, counters))
    return Coverage(
        program.kernel.name,
        ran,
        frozenset(edge for edge, times in edges if times),
        num_blocks,
        len({edge for edge, _ in edges}),
    )


def _edges(program: Program, counters: Counters) -> Iterator[tuple[Edge, int]]:
    """Every edge with how often it was followed."""
    for number, block in enumerate(program.blocks):
        match block.terminator:
            case Branch(taken=taken, otherwise=otherwise):
                yield (number, taken), counters.taken[number]
                yield (number, otherwise), counters.passed[number]
            case Goto(target=target) | Wait(target=target):
                yield (number, target), counters.executed[number]
            case Exit():
                yield (number, len(program.blocks)), counters.executed[number]
