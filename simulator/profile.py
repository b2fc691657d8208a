"""What one launch executed, counted: instructions by PTX line, special functions, bytes, MMA work.

Counting takes the interpreter. A wait counts once, when it ends: how often it was tried before is
the schedule's affair and stands in ``KernelRun.polls``. An unconditional branch is no instruction
here, as in ``KernelRun.warp_instructions``.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from simulator.program import Block, Branch, Exit, Program, Wait
from simulator.ptx import nodes
from simulator.traffic import SharedAccess, Traffic

LANES: Final = 32
SPECIAL_FUNCTIONS: Final = ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh")
"""Mnemonics that the special-function unit executes. PTX ISA 9.7.3, the ``.approx`` forms."""

CLASSES: Final = {
    "fp32": "additions, multiplications and fused ones of f32 and f32x2",
    "half": "the same of f16, bf16 and their pairs",
    "fp64": "the same of f64",
    "integer": "whole numbers, shifts, bits; comparisons, minima and selections of any type",
    "conversion": "cvt between number formats",
    "special": "approximate ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh",
    "move": "mov and cvta: packing and copying, which ptxas often removes",
    "predicate": "logic of predicates",
    "control": "branches and exits",
    "parameter": "loads of kernel parameters",
    "global": "loads, stores and atomics of global memory and generic addresses, prefetches",
    "shared": "loads, stores and atomics of shared memory, ldmatrix and stmatrix",
    "tmem": "tcgen05.ld, st, cp, shift, alloc and dealloc",
    "mma": "tcgen05.mma and wgmma.mma_async",
    "tma": "bulk copies",
    "cp.async": "cp.async",
    "synchronisation": "barriers, mbarriers, fences, commits, waits for groups, griddepcontrol",
    "warp": "shuffles, votes, matches, reductions and elections of a warp",
}
"""Classes of instructions, each with what is counted there."""

_SYNCHRONISATION: Final = (
    "mbarrier", "bar", "barrier", "fence", "membar", "griddepcontrol", "setmaxnreg", "nanosleep",
    "clusterlaunchcontrol",
)  # fmt: skip
_BY_OPCODE: Final = {
    "cvt": "conversion", "mov": "move", "cvta": "move", "mapa": "integer", "bra": "control",
    "exit": "control", "ret": "control", "trap": "control", "ldmatrix": "shared",
    "stmatrix": "shared", "prefetch": "global", "shfl": "warp", "vote": "warp", "match": "warp",
    "redux": "warp", "elect": "warp", "activemask": "warp", "setp": "integer", "set": "integer",
    "selp": "integer", "slct": "integer", "min": "integer", "max": "integer", "brkpt": "control",
    "popc": "integer", "getctarank": "integer", "isspacep": "integer",
} | dict.fromkeys(_SYNCHRONISATION, "synchronisation")  # fmt: skip
_BY_TYPE: Final = {
    "f32": "fp32",
    "f32x2": "fp32",
    "f64": "fp64",
    "pred": "predicate",
} | dict.fromkeys(("f16", "f16x2", "bf16", "bf16x2"), "half")


@functools.cache
def instruction_class(mnemonic: str) -> str:
    """Which of ``CLASSES`` an instruction counts as."""
    parts = mnemonic.split(".")
    opcode = parts[0]
    if opcode in SPECIAL_FUNCTIONS and "approx" in parts:
        return "special"
    if opcode == "tcgen05":
        return _tcgen05_class(parts[1])
    if opcode == "wgmma":
        return "mma" if parts[1] == "mma_async" else "synchronisation"
    if opcode == "cp":
        return _copy_class(parts)
    if opcode in ("ld", "st", "ldu", "atom", "red"):
        return _memory_class(parts)
    return _BY_OPCODE.get(opcode) or _BY_TYPE.get(parts[-1], "integer")


def _tcgen05_class(operation: str) -> str:
    if operation == "mma":
        return "mma"
    is_order = operation.startswith(("commit", "fence", "wait"))
    return "synchronisation" if is_order else "tmem"


def _copy_class(parts: list[str]) -> str:
    if any(part.endswith("_group") or part in ("wait_all", "arrive") for part in parts):
        return "synchronisation"
    return "tma" if "bulk" in parts else "cp.async"


def _memory_class(parts: list[str]) -> str:
    spaces = {part.split("::")[0] for part in parts}
    if "param" in spaces:
        return "parameter"
    return "shared" if "shared" in spaces else "global"


@dataclass(frozen=True)
class Line:
    """One PTX instruction and how many warps executed it; ``source`` is the kernel's, if known."""

    number: int
    text: str
    source: str | None
    mnemonic: str
    executed: int

    @property
    def kind(self) -> str:
        """Which of ``CLASSES`` it is counted as."""
        return instruction_class(self.mnemonic)

    @property
    def results(self) -> int:
        """Results of all 32 lanes, active or not: two a lane where a type is a pair."""
        return self.executed * LANES * (2 if self.mnemonic.endswith("x2") else 1)


@dataclass(frozen=True)
class Profile:
    """The counts of one launch.

    ``bytes`` are by memory, direction and the unit that moves them, none named for the lanes of
    warps; ``counts`` as in ``KernelRun.counts``. ``shared`` has the accesses of lanes to shared
    memory by PTX line, ``flop`` the work of MMAs by their kind, rows and columns of padding
    included, for an MMA computes whole tiles.
    """

    lines: tuple[Line, ...]
    bytes: Mapping[str, int]
    counts: Mapping[str, int]
    shared: Mapping[int, SharedAccess] = field(default_factory=dict)
    flop: Mapping[str, int] = field(default_factory=dict)

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
            if line.kind == "special"
        )

    @property
    def by_opcode(self) -> Counter[str]:
        """Instructions by opcode, the mnemonic up to its first dot."""
        return self._by(lambda line: line.mnemonic.split(".")[0])

    @property
    def by_class(self) -> Counter[str]:
        """Instructions by class, as in ``CLASSES``."""
        return self._by(lambda line: line.kind)

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
    program: Program,
    executed: list[int],
    global_bytes: Mapping[str, int],
    counts: Mapping[str, int],
    traffic: Traffic,
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
    moved = {
        name: counts[name] for name in ("tma_load_bytes", "tma_store_bytes") if counts.get(name)
    }
    shared: dict[int, SharedAccess] = {}
    for place, access in traffic.shared.items():
        node = program.instruction(*place)
        assert node is not None
        shared[node.line] = access
    return Profile(
        tuple(sorted(lines, key=lambda line: line.number)),
        {**global_bytes, **moved, **traffic.bytes},
        dict(counts),
        shared,
        dict(traffic.flop),
    )


def _instructions(block: Block) -> Iterator[nodes.Instruction]:
    """The instructions of a block, as ``Interpreter`` counts them, but for its exit."""
    for operation in block.operations:
        yield operation.node
    match block.terminator:
        case Wait(operation=operation):
            yield operation.node
        case Branch(node=node):
            yield node
