"""A decoded program as native code sees it: instruction records, blocks, and places for registers.

Registers that live in one block only share a small area that all warps use in turn, so that it
stays in the nearest cache; the others have places of their own in each warp.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.codegen.emit import ADDRESS_LIMIT, Form
from simulator.codegen.families import translation
from simulator.codegen.state import BRANCH, EXIT, GOTO, HEADER_WORDS, WAIT, BlockState
from simulator.codegen.watched import tells
from simulator.isa.table import TABLE
from simulator.isa.values import BITS, STORAGE
from simulator.machine.cluster import Dim3
from simulator.machine.warp import LANES, is_of_warp
from simulator.program import (
    Block,
    Branch,
    Constant,
    FromAddress,
    FromRegister,
    FromSpecial,
    FromVector,
    Goto,
    Operation,
    Program,
    Source,
    Value,
    Wait,
)

_ALIGN: Final = 64
_SPECIAL = tuple[str, str]
_TAKES_OVER: Final = "clusterlaunchcontrol.try_cancel"


def register_bytes(bits: int) -> int:
    """The room of a register: a predicate takes a byte a lane."""
    return LANES * max(bits, 8) // 8


def operations(block: Block) -> tuple[Operation, ...]:
    """The operations of a block, that of its wait included."""
    end = block.terminator
    return (end.operation,) if isinstance(end, Wait) else block.operations


def leaves(source: Source) -> Iterator[Value]:
    """The values that a source is made of, an address's offset as a constant after its base."""
    match source:
        case FromVector(elements=elements):
            yield from elements
        case FromAddress(base=base, offset=offset, coordinates=coordinates):
            yield base
            yield Constant(offset, base.type)
            yield from coordinates or ()
        case _:
            yield source


def form_of(operation: Operation) -> Form | None:
    """The form of an operation that has a translation; None for one that runs in Python."""
    if translation(operation.entry) is None:
        return None
    return Form(
        operation.entry.mnemonic,
        TABLE[operation.entry.mnemonic].index(operation.entry),
        tuple(0 if t.slot is None else BITS[t.storage] for t in operation.targets),
        tuple(_width(v) for s in operation.sources for v in leaves(s)),
        "" if operation.guard is None else "-" if operation.guard.negated else "+",
    )


def _width(value: Value) -> int:
    match value:
        case FromRegister(storage=storage):
            return BITS[storage]
        case FromSpecial(type=kind):
            return BITS[kind]
    return 0


@dataclass
class Layout:
    """Where registers live: ``words`` is what an instruction record says for each slot.

    In a warp's room of ``size`` bytes come first ``register_bytes`` of registers, then the special
    registers that a CTA shares, ``cta_special_bytes``, then those that differ between lanes or
    warps; both give the offset for a name and the type it is wanted in. ``shared`` is the area of
    the registers that live in one block.
    """

    words: list[int]
    register_bytes: int
    cta_specials: dict[_SPECIAL, int]
    cta_special_bytes: int
    lane_specials: dict[_SPECIAL, int]
    size: int
    shared: npt.NDArray[np.uint8] = field(repr=False)

    def move_specials(
        self, rows: npt.NDArray[np.uint8], indices: npt.NDArray[np.int64], cluster: Dim3
    ) -> None:
        """Put the special registers that tell CTAs apart into ``rows``, for each cluster and CTA.

        ``rows`` [clusters, CTAs, cta_special_bytes] hold those of any cluster of the grid,
        ``indices`` [clusters, CTAs, 3] are the CTAs' places in it.
        """
        places = {"%ctaid": indices, "%clusterid": indices // np.array(cluster)}
        for (name, kind), offset in self.cta_specials.items():
            base, _, axis = name.partition(".")
            if base in places:
                start, bits = offset - self.register_bytes, BITS[kind]
                lanes = rows[..., start : start + register_bytes(bits)].view(STORAGE[bits])
                lanes[...] = places[base][..., "xyz".index(axis), None]


def lay_out(program: Program) -> Layout:
    """Places for all registers of a program."""
    local = _local_registers(program)
    words = [0] * len(program.registers)
    size = area = cta_end = 0
    for slots in local.values():
        used = 0
        for slot in slots:
            words[slot] = used
            used += _room(BITS[program.registers[slot]])
        area = max(area, used)
    # Memory of its own pages: an allocator may give what lies below the limit, as it does in a
    # Python whose executable has a fixed place, and an address could not be told from an offset.
    shared = np.frombuffer(mmap.mmap(-1, area + _ALIGN), np.uint8)
    start = shared.ctypes.data
    assert start >= ADDRESS_LIMIT
    locals_ = {slot for slots in local.values() for slot in slots}
    for slot, kind in enumerate(program.registers):
        if slot in locals_:
            words[slot] += start
        else:
            words[slot], size = size, size + _room(BITS[kind])
    registers = size
    cta_specials: dict[_SPECIAL, int] = {}
    lane_specials: dict[_SPECIAL, int] = {}
    for found, own in ((cta_specials, False), (lane_specials, True)):
        for special in _specials(program):
            if is_of_warp(special[0]) == own:
                found[special], size = size, size + _room(BITS[special[1]])
        cta_end = size if not own else cta_end
    return Layout(words, registers, cta_specials, cta_end - registers, lane_specials, size, shared)


def _room(bits: int) -> int:
    """The bytes of a register, aligned."""
    return -(-register_bytes(bits) // _ALIGN) * _ALIGN


def _specials(program: Program) -> Iterator[_SPECIAL]:
    seen = set()
    for block in program.blocks:
        for operation in operations(block):
            for source in operation.sources:
                for value in leaves(source):
                    if isinstance(value, FromSpecial) and (value.name, value.type) not in seen:
                        seen.add((value.name, value.type))
                        yield value.name, value.type


def _local_registers(program: Program) -> dict[int, list[int]]:
    """By block: the registers that occur in it alone and are written, unguarded, before use."""
    home: dict[int, int] = {}
    shared: set[int] = set()
    for index, block in enumerate(program.blocks):
        written: set[int] = set()
        for slot, writes in _occurrences(block):
            if home.setdefault(slot, index) != index or not (writes or slot in written):
                shared.add(slot)
            written.add(slot)
    found: dict[int, list[int]] = {}
    for slot, index in home.items():
        if slot not in shared:
            found.setdefault(index, []).append(slot)
    return found


def _occurrences(block: Block) -> Iterator[tuple[int, bool]]:
    """Registers in the order of their use in a block, and whether the use is an unguarded write."""
    for operation in operations(block):
        if operation.guard is not None:
            yield operation.guard.slot, False
        for source in operation.sources:
            yield from ((v.slot, False) for v in leaves(source) if isinstance(v, FromRegister))
        for target in operation.targets:
            if target.slot is not None:
                yield target.slot, operation.guard is None
    if isinstance(block.terminator, Branch):
        yield block.terminator.predicate.slot, False


@dataclass(frozen=True)
class Place:
    """An instruction: its block and its position there, and the record that follows it."""

    block: int
    position: int
    following: int


class Image:
    """Records and blocks of a program, with the addresses of their functions filled in.

    ``places`` finds an instruction by the address of its record; ``named_barriers`` are the numbers
    of the barriers that the program names. ``grid_is_fixed`` says that no cluster takes over the
    work of another, ``has_mbarriers`` that the program makes some.
    """

    def __init__(
        self,
        program: Program,
        layout: Layout,
        functions: Mapping[Form, int],
        python: int,
        *,
        watched: bool = False,
    ) -> None:
        """``functions`` holds the address of each form, ``python`` that of a function that asks for
        Python; that is for all that an observer is told of, if the image is to be ``watched``."""
        self.layout, self.watched = layout, watched
        self.named_barriers = _named_barriers(program)
        names = {o.entry.mnemonic for block in program.blocks for o in operations(block)}
        self.grid_is_fixed = not any(name.startswith(_TAKES_OVER) for name in names)
        self.has_mbarriers = any(name.startswith("mbarrier.init") for name in names)
        words: list[int] = []
        starts: list[tuple[int, int]] = []
        marks: list[tuple[int, int, int]] = []
        for index, block in enumerate(program.blocks):
            begin = len(words)
            for position, operation in enumerate(operations(block)):
                marks.append((len(words), index, position))
                words += self._record(operation, position, functions, python)
            starts.append((begin, len(words)))
        self.code = np.array(words, np.uint64).view(np.int64)
        base = self.code.ctypes.data
        self.places = {
            base + 8 * at: Place(block, position, base + 8 * (at + words[at + 1] // 8))
            for at, block, position in marks
        }
        self.blocks = (BlockState * max(len(program.blocks), 1))()
        for state, block, (begin, end) in zip(self.blocks, program.blocks, starts, strict=False):
            state.code, state.end = base + 8 * begin, base + 8 * end
            state.count, state.reconverges = len(block.operations), block.reconverges
            self._terminator(state, block)
        self.blocks_address = ctypes.addressof(self.blocks)

    def _record(
        self, operation: Operation, position: int, functions: Mapping[Form, int], python: int
    ) -> list[int]:
        form = form_of(operation)
        if form is None or (self.watched and tells(operation.entry)):
            return [python, 8 * HEADER_WORDS, position]
        operands = [0 if t.slot is None else self.layout.words[t.slot] for t in operation.targets]
        operands += [self._word(v) for s in operation.sources for v in leaves(s)]
        if operation.guard is not None:
            operands.append(self.layout.words[operation.guard.slot])
        return [functions[form], 8 * (HEADER_WORDS + len(operands)), position, *operands]

    def _word(self, value: Value) -> int:
        match value:
            case FromRegister(slot=slot):
                return self.layout.words[slot]
            case FromSpecial(name=name, type=kind):
                return (self.layout.cta_specials | self.layout.lane_specials)[name, kind]
            case Constant(bits=bits, type="pred"):
                return int(bits != 0)
            case Constant(bits=bits, type=kind):
                return bits & ((1 << min(BITS[kind], 64)) - 1)
        raise AssertionError(value)

    def _terminator(self, state: BlockState, block: Block) -> None:
        match block.terminator:
            case Goto(target=target):
                state.kind, state.target = GOTO, target
            case Wait(target=target):
                state.kind, state.target = WAIT, target
            case Branch(predicate=predicate, taken=taken, otherwise=otherwise, uniform=uniform):
                state.kind, state.target, state.otherwise = BRANCH, taken, otherwise
                state.predicate = self.layout.words[predicate.slot]
                state.negated, state.uniform = int(predicate.negated), int(uniform)
            case _:
                state.kind = EXIT


def _named_barriers(program: Program) -> set[int]:
    """The numbers of the CTA's barriers, where they are literals."""
    return {
        operation.sources[0].bits & 15
        for block in program.blocks
        for operation in operations(block)
        if operation.entry.mnemonic.startswith(("bar.", "barrier."))
        and operation.sources
        and isinstance(operation.sources[0], Constant)
        and not operation.entry.mnemonic.startswith("bar.warp")
    }


def forms(program: Program) -> set[Form]:
    """Every form that a program uses."""
    found: Iterable[Any] = (form_of(o) for block in program.blocks for o in operations(block))
    return {form for form in found if form is not None}
