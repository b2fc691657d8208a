"""A warp outside any launch, to run a few instructions with each executor and compare registers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from simulator.interpreter import Interpreter
from simulator.isa.table import TABLE, Entry, Slot
from simulator.isa.values import BITS, STORAGE
from simulator.machine.cluster import Cluster, Launch
from simulator.machine.global_memory import GlobalMemory
from simulator.machine.warp import Warp
from simulator.native import NativeExecutor
from simulator.program import (
    Block,
    Constant,
    Exit,
    FromAddress,
    FromRegister,
    FromVector,
    Goto,
    Operation,
    Predicate,
    Program,
    Target,
)
from simulator.ptx import nodes

STORED = {1: "pred", 8: "b8", 16: "b16", 32: "b32", 64: "b64", 128: "b128"}


class Bench:
    """Collects operations with registers of their own, and runs them under a mask.

    ``live`` keeps the targets in the warp's own registers, as if a later block read them.
    """

    def __init__(self, *, live: bool) -> None:
        self.registers: list[str] = []
        self.operations: list[Operation] = []
        self.values: dict[int, Any] = {}
        self.targets: list[tuple[Operation, Target]] = []
        self._live = live

    def register(self, kind: str, value: Any = None) -> int:
        self.registers.append(kind)
        if value is not None:
            self.values[len(self.registers) - 1] = value
        return len(self.registers) - 1

    def add(
        self,
        entry: Entry,
        operands: Sequence[Any],
        *,
        immediate: int = -1,
        wider: bool = False,
        guard: tuple[Any, bool] | None = None,
    ) -> None:
        """One instruction on values, one for each slot (a tuple for a vector).

        Source leaf ``immediate`` becomes a literal, its lane 0; with ``wider`` registers are twice
        as wide as their types; ``guard`` is a predicate's value and whether it is negated.
        """
        leaf = iter(range(1000))
        sources = [
            self._source(s, v, leaf, immediate, wider)
            for s, v in zip(entry.operands, operands, strict=True)
        ]
        predicate = None if guard is None else Predicate(self.register("pred", guard[0]), guard[1])
        targets = tuple(self._target(t, wider) for slot in entry.results for t in slot.types)
        node = nodes.Instruction(entry.mnemonic, (), None, len(self.operations) + 1)
        operation = Operation(entry, targets, tuple(sources), predicate, node)
        self.operations.append(operation)
        self.targets += [(operation, t) for t in targets]

    def _target(self, kind: str, wider: bool) -> Target:
        storage = _storage(kind, wider)
        return Target(self.register(storage), storage, kind)

    def _source(self, slot: Slot, value: Any, leaf: Any, immediate: int, wider: bool) -> Any:
        if slot.form == "vector":
            return FromVector(tuple(self._leaf(t, v, next(leaf) == immediate, wider)
                                    for t, v in zip(slot.types, value, strict=True)))  # fmt: skip
        taken = self._leaf(slot.types[0], value, next(leaf) == immediate, wider)
        return FromAddress(taken, 0) if slot.form == "address" else taken

    def _leaf(self, kind: str, value: Any, literal: bool, wider: bool) -> Any:
        storage = _storage(kind, wider)
        held = value.view(STORAGE[BITS[kind]])
        if literal and kind != "b128":
            return Constant(int(held[0]), kind)
        return FromRegister(
            self.register(storage, held.astype(STORAGE[BITS[storage]])), storage, kind
        )

    def program(self) -> Program:
        reads = [FromRegister(t.slot, t.storage, t.type) for _, t in self.targets if self._live]
        node = nodes.Instruction("trap", (), None, 0)
        readers = (Operation(TABLE["trap"][0], (), tuple(reads), None, node),)
        blocks = (Block(tuple(self.operations), Goto(2), 2, 1), Block(readers, Exit(), 2, 1))
        kernel = nodes.Kernel("bench", (), (), ())
        return Program(kernel, tuple(self.registers), blocks, {}, 1024)

    def run(self, executor: type[Interpreter], mask: Any = None) -> tuple[Any, list[Any]]:
        """The executor, and what every target register holds after the operations."""
        program = self.program()
        runner = executor(program)
        warp = fresh_warp(program)
        if isinstance(runner, NativeExecutor):
            native = runner._attached(warp.cta.cluster).warps[warp]
        for slot, value in self.values.items():
            warp.registers[slot] = value
        for slot in (t.slot for _, t in self.targets):
            width = STORAGE[BITS[self.registers[slot]]]
            filler = np.arange(64 if self.registers[slot] == "b128" else 32) * 0x9E3779B1 % 251
            if self._live:
                warp.registers[slot] = filler.astype(width)
        if mask is not None:
            warp.mask = mask
            if isinstance(runner, NativeExecutor):
                native.read_from(warp)
        with np.errstate(all="ignore"):
            runner.turn(warp, 1)
        return runner, [np.array(warp.registers[t.slot]) for _, t in self.targets]


def _storage(kind: str, wider: bool) -> str:
    width = BITS[kind]
    return STORED[2 * width if wider and width in (8, 16, 32) else width]


def fresh_warp(program: Program) -> Warp:
    launch = Launch(program, (1, 1, 1), (32, 1, 1), (1, 1, 1), 0, b"",
                    GlobalMemory([], check_initialised=False))  # fmt: skip
    return Cluster(launch, [(0, 0, 0)], random.Random(0)).warps[0]
