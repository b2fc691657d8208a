"""Which basic blocks and branch edges of a kernel a launch executed, at next to no cost.

Each block counts how often it ran and, where it ends in a conditional branch, how often a warp went
each way. Every other edge follows from its block. Both executors count; docs/simulator/native.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from simulator.program import Block, Branch, Exit, Goto, Program, Wait
from simulator.ptx import nodes

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
class Region:
    """The instructions of one basic block: PTX lines, what they say first, and their sources."""

    block: int
    ptx_lines: tuple[int, int]
    text: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class OneWay:
    """A branch that every warp which came to it left by one side: ``never`` is the other."""

    ptx_line: int
    text: str
    source: str | None
    never: str


@dataclass(frozen=True)
class Coverage:
    """What of a kernel ran in one launch, or in several.

    A block is its number in the decoded program, ``num_blocks`` the exit. An edge leads from block
    to block; a warp whose lanes go both ways has taken both.
    """

    kernel: str
    blocks: frozenset[int]
    edges: frozenset[Edge]
    num_blocks: int
    num_edges: int
    program: Program = field(repr=False, compare=False)

    @property
    def uncovered(self) -> tuple[Region, ...]:
        """The blocks with instructions that never ran, in the order of the PTX."""
        missing = (n for n in range(self.num_blocks) if n not in self.blocks)
        found = (_region(n, self.program.blocks[n]) for n in missing)
        return tuple(sorted(filter(None, found), key=lambda region: region.ptx_lines))

    @property
    def one_way(self) -> tuple[OneWay, ...]:
        """The branches that ran and never went one way though that leads to code that did run.

        A side that leads to a block of ``uncovered`` is told there.
        """
        return tuple(filter(None, map(self._one_way, sorted(self.blocks))))

    def _one_way(self, number: int) -> OneWay | None:
        end = self.program.blocks[number].terminator
        if not isinstance(end, Branch) or end.taken == end.otherwise:
            return None
        for target, never in ((end.taken, "taken"), (end.otherwise, "passed")):
            ran = target in self.blocks or target == self.num_blocks
            if ran and (number, target) not in self.edges:
                return OneWay(end.node.line, end.node.text(), end.node.source, never)
        return None

    @property
    def sources(self) -> frozenset[str]:
        """The source lines that instructions which ran come from."""
        return frozenset(s for n in self.blocks for s in _sources(self.program.blocks[n]))

    @property
    def ptx_lines(self) -> frozenset[int]:
        """The PTX lines of the blocks that ran; a guard may have held in no lane."""
        return frozenset(node.line for n in self.blocks for node in _nodes(self.program.blocks[n]))

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "kernel": self.kernel,
            "blocks": self.num_blocks,
            "executed": len(self.blocks),
            "edges": self.num_edges,
            "edges_followed": len(self.edges),
            "uncovered": [
                {
                    "block": region.block,
                    "ptx_lines": list(region.ptx_lines),
                    "text": region.text,
                    "sources": list(region.sources),
                }
                for region in self.uncovered
            ],
            "one_way": [vars(branch).copy() for branch in self.one_way],
        }


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
        program,
    )


def merged(one: Coverage, other: Coverage) -> Coverage:
    """What ran in either; ``ValueError`` unless both are of one program."""
    if (one.kernel, one.num_blocks) != (other.kernel, other.num_blocks):
        raise ValueError(
            f"coverage of {other.kernel}, {other.num_blocks} blocks, cannot be added to that of "
            f"{one.kernel}, {one.num_blocks} blocks"
        )
    return replace(one, blocks=one.blocks | other.blocks, edges=one.edges | other.edges)


def never_executed(coverages: Iterable[Coverage]) -> tuple[str, ...]:
    """The source lines that some instruction comes from and none that ran, in order."""
    known, ran = set[str](), set[str]()
    for coverage in coverages:
        known.update(s for block in coverage.program.blocks for s in _sources(block))
        ran |= coverage.sources
    return tuple(sorted(known - ran, key=_place))


def _place(source: str) -> tuple[str, int]:
    file, _, line = source.rpartition(":")
    return file, int(line) if line.isdecimal() else 0


def _nodes(block: Block) -> Iterator[nodes.Instruction]:
    for operation in block.operations:
        yield operation.node
    match block.terminator:
        case Wait(operation=operation):
            yield operation.node
        case Branch(node=node):
            yield node


def _sources(block: Block) -> Iterator[str]:
    return (node.source for node in _nodes(block) if node.source is not None)


def _region(number: int, block: Block) -> Region | None:
    held = list(_nodes(block))
    if not held:
        return None
    lines = [node.line for node in held]
    sources = tuple(dict.fromkeys(_sources(block)))
    return Region(number, (min(lines), max(lines)), held[0].text(), sources)


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
