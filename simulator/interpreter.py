"""The executor that serves as the specification: one warp, one basic block at a time.

Each block becomes a Python function on first use, one source line per instruction, in two variants:
all 32 lanes active, and under a mask. A line that raises is therefore the instruction that failed,
at no cost while nothing fails.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import numpy as np

from simulator.coverage import Counters
from simulator.errors import Location, SimulationError, SimulatorBug, Trap
from simulator.isa.table import BLOCKED, Kind
from simulator.isa.values import BITS, DTYPES, STORAGE
from simulator.machine.cluster import Cluster
from simulator.machine.warp import Warp
from simulator.program import (
    Block,
    Branch,
    Constant,
    FromAddress,
    FromRegister,
    FromVector,
    Goto,
    Operation,
    Program,
    Source,
    Target,
    Value,
    Wait,
)

LANES: Final = 32
_Run = Callable[..., Any]


@dataclass(frozen=True)
class Round:
    """A round: whether a warp did more than poll, and what was counted when it began.

    ``before`` are the cluster's events and its completed asynchronous operations.
    """

    advanced: bool
    before: tuple[int, int]


class Interpreter:
    """Runs warps of one program; compiled blocks are kept for the life of the object."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._counters: Counters | None = None
        self._writer = _Writer(program)
        self._full: list[_Run | None] = [None] * len(program.blocks)
        self._masked: list[_Run | None] = [None] * len(program.blocks)

    def begin(self, cluster: Cluster) -> None:
        """Give the warps of a cluster, in which nothing has run, their registers."""
        for warp in cluster.warps:
            warp.registers = cluster.launch.initial_registers.copy()

    def start_counting(self) -> None:
        """Count from zero what blocks and branches do."""
        self._counters = Counters.of(len(self.program.blocks))

    def stop_counting(self) -> Counters | None:
        """What was counted since `start_counting`, None without it; counting ends."""
        counters, self._counters = self._counters, None
        return counters

    def turn(self, warp: Warp, budget: int) -> None:
        """Run ``warp`` for at most ``budget`` blocks, until it waits or has exited.

        Sets ``warp.advanced`` and ``warp.blocked``. Raises what the program's errors are, located.
        """
        try:
            self._turn(warp, budget)
        except Exception as error:
            self._fail(error, warp)

    def rounds(self, live: list[Warp], *, idle: bool, budget: int, sleep: int) -> Round | None:
        """Run one round of ``live``, as the scheduler would, or several while warps advance.

        ``idle`` says that the round before it changed nothing; a warp sleeps for ``sleep`` rounds.

        Gives the last one; None leaves the round to the scheduler.
        """
        return None

    def bring_back(self, live: list[Warp]) -> None:
        """Bring all of the warps' state into ``live``, for a report; here it never left."""

    def _fail(self, error: Exception, warp: Warp) -> NoReturn:
        """Raise an error, located; what no one raises on purpose is a ``SimulatorBug``."""
        if isinstance(error, SimulationError):
            self._locate(error, warp)
            raise error
        bug = SimulatorBug(f"{type(error).__name__}: {error}")
        bug.__traceback__ = error.__traceback__
        self._locate(bug, warp)
        raise bug from error

    def _turn(self, warp: Warp, budget: int) -> None:
        blocks, registers = self.program.blocks, warp.registers
        executed = None if self._counters is None else self._counters.executed
        warp.advanced = warp.blocked = False
        while budget > 0:
            while warp.block == warp.reconverges:
                warp.pop()
            if warp.block == len(blocks):
                warp.exit_lanes()
                if warp.done:
                    return
                continue
            budget -= 1
            block = blocks[warp.block]
            mask = warp.mask
            end = block.terminator
            if type(end) is Wait:
                warp.polls += 1
                if not self._compiled(warp.block, mask is not None)(warp, registers, mask):
                    warp.blocked = True
                    return
                warp.instructions += 1
                if executed is not None:
                    executed[warp.block] += 1
                warp.block = end.target
                warp.advanced = warp.advanced or not warp.polling
                continue
            if executed is not None:
                executed[warp.block] += 1
            if block.operations:
                self._compiled(warp.block, mask is not None)(warp, registers, mask)
                warp.instructions += len(block.operations)
            if warp.polling:
                warp.polling -= 1
            else:
                warp.advanced = True
            if type(end) is Goto:
                warp.block = end.target
            elif type(end) is Branch:
                self._branch(warp, block, end)
            else:
                warp.block = len(blocks)
                warp.instructions += 1
                warp.exit_lanes()
                if warp.done:
                    return

    def _branch(self, warp: Warp, block: Block, end: Branch) -> None:
        """Follow a conditional branch, pushing the lanes that go the other way."""
        warp.instructions += 1
        taken = warp.registers[end.predicate.slot]
        if end.predicate.negated:
            taken = ~taken
        if warp.mask is not None:
            taken = taken & warp.mask
        # Comparing 32 bytes is several times quicker than a reduction over 32 booleans.
        chosen = taken.tobytes()
        if self._counters is not None:
            self._counters.taken[warp.block] += chosen != _NO_LANES
            self._counters.passed[warp.block] += chosen != (
                _ALL_LANES if warp.mask is None else warp.mask.tobytes()
            )
        if chosen == (_ALL_LANES if warp.mask is None else warp.mask.tobytes()):
            warp.block = end.taken
        elif chosen == _NO_LANES:
            warp.block = end.otherwise
        elif end.uniform:
            lanes = tuple(int(x) for x in np.flatnonzero(taken))
            raise Trap("bra.uni diverges", Location(lanes=lanes, ptx_line=end.node.line,
                                                    ptx_text=end.node.text()))  # fmt: skip
        else:
            warp.diverge(taken, end.taken, end.otherwise, block.reconverges)

    def _compiled(self, index: int, masked: bool) -> _Run:
        cache = self._masked if masked else self._full
        run = cache[index]
        if run is None:
            run = cache[index] = self._writer.compile(index, masked)
        return run

    def _locate(self, error: SimulationError, warp: Warp) -> None:
        """Tell an error where it happened: each line of a compiled block is an instruction."""
        known: dict[str, object] = {
            "kernel": self.program.kernel.name,
            "cta": warp.cta.index,
            "warp": warp.rank,
        }
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename.startswith(_FILE) and frame.lineno is not None:
                index = int(frame.filename[len(_FILE) :])
                node = self.program.instruction(index, frame.lineno - 2)
                if node is not None:
                    known["ptx_line"] = node.line
                    known["ptx_text"] = node.text()
                    known["source"] = node.source
        error.locate(**known)


_FILE: Final = "<ptx block "
_ALL_LANES: Final = bytes([1]) * LANES
_NO_LANES: Final = bytes(LANES)


class _Writer:
    """Writes and compiles the Python source of blocks."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._constants: list[Any] = []
        self._constant_index: dict[tuple[int, str], int] = {}
        self._functions: list[Callable[..., Any]] = []
        self._function_index: dict[int, int] = {}
        self._globals: dict[str, Any] = {
            "K": self._constants,
            "F": self._functions,
            "where": np.where,
            "BLOCKED": BLOCKED,
            "np": np,
        }

    def compile(self, index: int, masked: bool) -> _Run:
        """The function of a block, ``run(warp, registers, mask)``; a wait's says if it is over."""
        block = self._program.blocks[index]
        mask = "m" if masked else None
        if isinstance(block.terminator, Wait):
            lines = self._wait(block.terminator.operation, mask)
        else:
            lines = [self._line(i, op, mask) for i, op in enumerate(block.operations)]
        return self._function_of(index, lines)

    def compile_one(self, index: int, position: int, masked: bool) -> _Run:
        """The function of one operation of a block that is not a wait, on the line it has there."""
        operation = self._program.blocks[index].operations[position]
        return self._function_of(
            index, [""] * position + [self._line(position, operation, "m" if masked else None)]
        )

    def _function_of(self, index: int, lines: list[str]) -> _Run:
        source = "def run(w, R, m):\n" + "\n".join(" " + line for line in lines)
        scope: dict[str, Any] = {}
        exec(compile(source, f"{_FILE}{index}", "exec"), self._globals, scope)
        run: _Run = scope["run"]
        return run

    # 1. One instruction

    def _line(self, position: int, op: Operation, mask: str | None) -> str:
        """One line; what touches the machine is left out where a guard holds in no lane."""
        statements: list[str] = []
        prefix = ""
        if op.guard is not None:
            test = f"{'~' if op.guard.negated else ''}R[{op.guard.slot}]"
            guard = f"g := {test} & {mask}" if mask else f"g := {test}"
            mask = "g"
            if op.entry.kind is Kind.PURE:
                statements.append(f"({guard})")
            else:
                prefix = f"if ({guard}).any(): "
        if op.entry.converged and mask is not None:
            statements.append(f"w.require_converged({mask})")
        if op.entry.kind is not Kind.PURE:
            statements.append(f"w.position = {position}")
        return prefix + "; ".join(statements + self._store(op, self._call(op, mask), mask))

    def _wait(self, op: Operation, mask: str | None) -> list[str]:
        converged = [f"w.require_converged({mask})"] if op.entry.converged and mask else []
        results = "x" if op.targets else "None"
        return [
            "w.position = 0",
            *converged,
            f"x = {self._call(op, mask)}",
            "if x is BLOCKED: return False",
            *self._store(op, results, mask),
            "return True",
        ]

    def _call(self, op: Operation, mask: str | None) -> str:
        arguments = [self._source(s) for s in op.sources]
        if op.entry.kind is not Kind.PURE:
            arguments = ["w", mask or "None", *arguments]
        assert op.entry.function is not None
        return f"F[{self._function(op.entry.function)}]({', '.join(arguments)})"

    def _store(self, op: Operation, call: str, mask: str | None) -> list[str]:
        """Statements that evaluate ``call`` and put its results where they belong."""
        kept = [(i, t) for i, t in enumerate(op.targets) if t.slot is not None]
        if not kept:
            return [call]
        if len(op.targets) == 1:
            return [self._assign(kept[0][1], call, mask)]
        return [f"v = {call}", *(self._assign(t, f"v[{i}]", mask) for i, t in kept)]

    def _assign(self, target: Target, value: str, mask: str | None) -> str:
        value = _into_storage(value, target)
        register = f"R[{target.slot}]"
        return (
            f"{register} = {value}"
            if mask is None
            else f"{register} = where({mask}, {value}, {register})"
        )

    # 2. Operands

    def _source(self, source: Source) -> str:
        match source:
            case FromVector(elements=elements):
                return "(" + "".join(self._value(e) + ", " for e in elements) + ")"
            case FromAddress(base=base, offset=offset, coordinates=coordinates):
                address = self._value(base)
                if offset:
                    address = f"{address} + {self._value(Constant(offset, base.type))}"
                if coordinates is None:
                    return address
                return f"({address}, ({''.join(self._value(c) + ', ' for c in coordinates)}))"
            case _:
                return self._value(source)

    def _value(self, value: Value) -> str:
        match value:
            case FromRegister(slot=slot, storage=storage, type=kind):
                return _from_storage(f"R[{slot}]", storage, kind)
            case Constant(bits=bits, type=kind):
                return f"K[{self._constant(bits, kind)}]"
            case _:
                return f"w.special({value.name!r}, {value.type!r})"

    def _constant(self, bits: int, kind: str) -> int:
        key = (bits, kind)
        if key not in self._constant_index:
            self._constant_index[key] = len(self._constants)
            self._constants.append(constant(bits, kind))
        return self._constant_index[key]

    def _function(self, function: Callable[..., Any]) -> int:
        if id(function) not in self._function_index:
            self._function_index[id(function)] = len(self._functions)
            self._functions.append(function)
        return self._function_index[id(function)]


def constant(bits: int, kind: str) -> Any:
    """A literal over the 32 lanes in the dtype of its type; read-only."""
    if kind == "pred":
        array = np.full(LANES, bits != 0)
    else:
        width = BITS[kind]
        array = np.full(LANES, bits & ((1 << width) - 1), STORAGE[width]).view(DTYPES[kind])
    array.setflags(write=False)
    return array


def _from_storage(text: str, storage: str, kind: str) -> str:
    """The expression that reads a register declared ``storage`` as ``kind``."""
    held, wanted = STORAGE[BITS[storage]], DTYPES[kind]
    if BITS[kind] < BITS[storage]:
        narrow = STORAGE[BITS[kind]]
        text = f"{text}.astype(np.{narrow.name})"
        held = narrow
    return text if held == wanted else f"{text}.view(np.{wanted.name})"


def _into_storage(text: str, target: Target) -> str:
    """The expression that makes a result of the target's type fit its register."""
    given, held = DTYPES[target.type], STORAGE[BITS[target.storage]]
    if BITS[target.type] < BITS[target.storage]:
        if given.kind == "i":
            return f"{text}.astype(np.{np.dtype(f'i{held.itemsize}').name}).view(np.{held.name})"
        if given.kind == "f":
            text = f"{text}.view(np.{STORAGE[BITS[target.type]].name})"
        return f"{text}.astype(np.{held.name})"
    return text if given == held else f"{text}.view(np.{held.name})"
