"""Stops at lines of the PTX or of the kernel's source, and shows registers, TMEM and shared memory.

The interpreter runs the blocks that hold a break instruction by instruction, so that one stops
before the instruction acts; all other blocks run as ever.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.interpreter import Interpreter
from simulator.isa.values import BITS, DTYPES
from simulator.launch import LoadedProgram
from simulator.machine.warp import Warp
from simulator.program import Branch, Program, Wait
from simulator.ptx import nodes

Words = npt.NDArray[Any]
SHARED_TYPES: Final = {
    "u8": "u1", "u16": "u2", "u32": "u4", "s32": "i4", "f16": "f2", "f32": "f4",
}  # fmt: skip
"""Types that shared memory can be shown as, and numpy's names for them."""


@dataclass(frozen=True)
class Break:
    """Where to stop: a line of the PTX (``file`` None), or of a source file by the path's end."""

    file: str | None
    line: int

    @classmethod
    def parse(cls, text: str) -> Break:
        """The break that ``ptx:LINE`` or ``FILE:LINE`` means; ``ValueError`` for anything else."""
        file, separator, line = text.rpartition(":")
        if not separator or not file or not line.isdecimal() or int(line) < 1:
            raise ValueError(f"--break: {text!r} is neither ptx:LINE nor FILE:LINE")
        return cls(None if file == "ptx" else file, int(line))

    def hits(self, node: nodes.Instruction) -> bool:
        """Whether it stands on an instruction's line."""
        if self.file is None:
            return node.line == self.line
        source, _, line = (node.source or "").rpartition(":")
        return line == str(self.line) and f"/{source}".endswith(f"/{self.file.lstrip('/')}")

    def __str__(self) -> str:
        return f"{self.file or 'ptx'}:{self.line}"


@dataclass(frozen=True)
class Stop:
    """A warp before an instruction at a break."""

    warp: Warp
    node: nodes.Instruction
    program: Program

    def __str__(self) -> str:
        place = f", source {self.node.source}" if self.node.source else ""
        lanes = "all lanes" if self.warp.mask is None else f"{int(self.warp.mask.sum())} lanes"
        return (
            f"CTA {self.warp.cta.index}, warp {self.warp.rank}, {lanes}: PTX line "
            f"{self.node.line}{place}\n  {self.node.text()}"
        )

    def register(self, name: str, kind: str | None = None) -> Words:
        """What a register holds in the 32 lanes, read as ``kind``, by default as declared.

        ``ValueError`` for a register that the kernel has not, and for a type of another size.
        """
        slots = _slots(self.program)
        if name not in slots:
            raise ValueError(f"register {name!r}: the kernel has no such register")
        slot, declared = slots[name]
        kind = kind or declared
        if kind != declared and BITS.get(kind) != BITS[declared]:
            raise ValueError(f"register {name}: type {kind!r} for a register of type {declared}")
        held = np.asarray(self.warp.registers[slot])
        return held if kind == "pred" else held.view(DTYPES[kind])

    def operands(self) -> dict[str, Words]:
        """The registers that the instruction names, by name."""
        guard = [] if self.node.guard is None else [self.node.guard.register]
        names = dict.fromkeys(_registers([*self.node.operands, *guard]))
        return {name: self.register(name) for name in names}

    def tensor_memory(self, lanes: slice, columns: slice) -> Words:
        """A rectangle of the CTA's TMEM as float32; what nothing wrote is NaN."""
        memory = self.warp.cta.tensor_memory
        shown = memory.words[lanes, columns].view(np.float32).copy()
        shown[~memory.valid[lanes, columns]] = np.nan
        return shown

    def shared(self, offset: int, kind: str, shape: tuple[int, ...]) -> Words:
        """Dynamic shared memory of the CTA from a byte ``offset`` on, as an array.

        ``ValueError`` for an unknown type, and for an array beyond the end.
        """
        if kind not in SHARED_TYPES:
            raise ValueError(f"type {kind!r} is none of {', '.join(SHARED_TYPES)}")
        memory, dtype = self.warp.cta.shared, np.dtype(SHARED_TYPES[kind])
        start = self.program.dynamic_shared_offset + offset
        end = start + int(np.prod(shape)) * dtype.itemsize
        if offset < 0 or end > memory.size:
            room = memory.size - self.program.dynamic_shared_offset
            raise ValueError(f"shared: {end - start} bytes from {offset} on, of {room}")
        return memory.bytes[start:end].view(dtype).reshape(shape).copy()


def _slots(program: Program) -> dict[str, tuple[int, str]]:
    """Slot and declared type of each register; one declared in ``{ }`` is ``NAME@SCOPE``."""
    names, types = program.register_names, program.registers
    return {name: (slot, types[slot]) for slot, name in enumerate(names)}


def _registers(operands: Iterable[nodes.Operand]) -> Iterator[str]:
    """The names of the registers in operands."""
    for operand in operands:
        match operand:
            case nodes.Register(name=name):
                yield name
            case nodes.Vector(elements=elements):
                yield from _registers(elements)
            case nodes.Pair(first=first, second=second):
                yield from _registers((first, second))
            case nodes.Address(base=base, coordinates=coordinates):
                yield from _registers((base,) if coordinates is None else (base, coordinates))


class Debugger(Interpreter):
    """Runs warps as the interpreter does, and calls ``on_stop`` before instructions at breaks."""

    def __init__(
        self, program: Program, breaks: tuple[Break, ...], on_stop: Callable[[Stop], None]
    ) -> None:
        super().__init__(program)
        self._on_stop = on_stop
        self._stops = _stops(program, breaks)
        self._waiting: set[Warp] = set()

    def _compiled(self, index: int, masked: bool) -> Callable[..., Any]:
        if index not in self._stops:
            return super()._compiled(index, masked)
        return functools.partial(self._stepped, index, masked)

    def _stepped(self, index: int, masked: bool, warp: Warp, registers: Any, mask: Any) -> Any:
        """A block one operation at a time; a wait stops at its first attempt only."""
        block, stops = self.program.blocks[index], self._stops[index]
        if isinstance(block.terminator, Wait):
            if warp not in self._waiting:
                self._stop(warp, block.terminator.operation.node)
                self._waiting.add(warp)
            done = super()._compiled(index, masked)(warp, registers, mask)
            if done:
                self._waiting.discard(warp)
            return done
        for position, operation in enumerate(block.operations):
            if position in stops:
                self._stop(warp, operation.node)
            self._writer.compile_one(index, position, masked)(warp, registers, mask)
        return None

    def _branch(self, warp: Warp, block: Any, end: Branch) -> None:
        if len(block.operations) in self._stops.get(warp.block, ()):
            self._stop(warp, end.node)
        super()._branch(warp, block, end)

    def _stop(self, warp: Warp, node: nodes.Instruction) -> None:
        self._on_stop(Stop(warp, node, self.program))


def _stops(program: Program, breaks: tuple[Break, ...]) -> dict[int, frozenset[int]]:
    """The positions in each block before which one stops.

    A source line is many instructions: one stops at the first of each run of them in a block.
    """
    found: dict[int, frozenset[int]] = {}
    for index, block in enumerate(program.blocks):
        held = [operation.node for operation in block.operations]
        match block.terminator:
            case Branch(node=node):
                held.append(node)
            case Wait(operation=operation):
                held.append(operation.node)
        positions = set[int]()
        for one in breaks:
            hit = [one.hits(node) for node in held]
            positions.update(n for n, is_hit in enumerate(hit) if is_hit and not (n and hit[n - 1]))
        if positions:
            found[index] = frozenset(positions)
    return found


def debugged(
    program: LoadedProgram, breaks: tuple[Break, ...], on_stop: Callable[[Stop], None]
) -> LoadedProgram:
    """The program with its kernels run by a ``Debugger``.

    ``ValueError`` for a break that stands on no instruction of any kernel.
    """
    for one in breaks:
        if not any(_stops(i.program, (one,)) for i in program.kernels.values()):
            raise ValueError(f"--break: {one} is the line of no instruction")
    kernels: dict[str, Interpreter] = {
        name: Debugger(interpreter.program, breaks, on_stop)
        for name, interpreter in program.kernels.items()
    }
    return LoadedProgram(program.host, kernels, program.ptx)
