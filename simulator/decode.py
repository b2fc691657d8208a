"""PTX nodes to a decoded program: table look-up, typed operands, basic blocks.

What the table does not hold is ``Unsupported``, and all of a kernel's unknown instructions are
named at once, with their lines.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from simulator.control_flow import immediate_post_dominators
from simulator.errors import Location, SimulatorBug, Unsupported
from simulator.isa import families
from simulator.isa.table import Entry, Kind, Slot
from simulator.isa.values import BITS
from simulator.machine.cluster import is_special
from simulator.machine.memory_map import LOCAL_WINDOW, PARAM_WINDOW, SHARED_BASE
from simulator.program import (
    Block,
    Branch,
    Constant,
    Exit,
    FromAddress,
    FromRegister,
    FromSpecial,
    FromVector,
    Goto,
    Operation,
    Predicate,
    Program,
    Source,
    Target,
    Terminator,
    Value,
    Wait,
)
from simulator.ptx import nodes


def decode(kernel: nodes.Kernel) -> Program:
    """The program of a kernel; ``Unsupported`` lists every instruction that the table lacks."""
    decoder = _Decoder(kernel)
    decoder.check_supported()
    blocks = _link(decoder.blocks(), decoder)
    offsets, dynamic = _place_shared(kernel.shared)
    return Program(
        kernel,
        tuple(decoder.registers),
        blocks,
        offsets,
        dynamic,
        register_names=tuple(decoder.register_names),
        local_bytes=_place_local(kernel.local)[1],
    )


def _place_local(variables: Iterable[nodes.Variable]) -> tuple[dict[str, int], int]:
    """Offsets of the local variables, and the bytes that they take of each thread."""
    offsets: dict[str, int] = {}
    end = 0
    for variable in variables:
        offsets[variable.name] = -(-end // variable.alignment) * variable.alignment
        end = offsets[variable.name] + (variable.size or 0)
    return offsets, end


def _place_shared(variables: Iterable[nodes.Variable]) -> tuple[dict[str, int], int]:
    """Offsets of the shared variables: the static ones first, the dynamic one after them."""
    offsets: dict[str, int] = {}
    end = SHARED_BASE
    for variable in sorted(variables, key=lambda v: v.size is None):
        end = -(-end // variable.alignment) * variable.alignment
        offsets[variable.name] = end
        end += variable.size or 0
    return offsets, end


# 1. Blocks

_END: Final = "@end"
"""The label of the exit, which no label of a PTX text can be."""


@dataclass
class _Open:
    """A block under construction. Its terminator may be a ``bra``, which still names a label."""

    operations: list[Operation] = field(default_factory=list)
    terminator: nodes.Instruction | Operation | Exit | None = None
    line: int = 0


def _unfinished(done: list[_Open], line: int) -> list[_Open]:
    """``done`` with a last block that has no terminator and, if it is empty, begins at ``line``."""
    if done[-1].terminator is not None:
        done.append(_Open())
    done[-1].line = done[-1].line or line
    return done


def _empty(done: list[_Open]) -> list[_Open]:
    """``done`` with a last block that has nothing in it."""
    if done[-1].operations or done[-1].terminator is not None:
        done.append(_Open())
    return done


def _branch(item: nodes.Instruction, label: str) -> nodes.Instruction:
    return replace(item, mnemonic="bra", operands=(nodes.Label(label),))


class _Decoder:
    """Turns the body of one kernel into open blocks, numbering registers as they appear."""

    def __init__(self, kernel: nodes.Kernel) -> None:
        self.kernel = kernel
        self.registers: list[str] = []
        self.starts: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._fixed = {p.name: PARAM_WINDOW + p.offset for p in kernel.params}
        for name, offset in _place_local(kernel.local)[0].items():
            self._fixed[name] = LOCAL_WINDOW + offset

    def check_supported(self) -> None:
        """Raise ``Unsupported`` naming what no table entry fits, and unknown special registers."""
        unknown: dict[str, list[int]] = {}
        for item in self.kernel.body:
            if isinstance(item, nodes.Instruction) and (what := _not_known(item)):
                unknown.setdefault(what, []).append(item.line)
        if unknown:
            raise Unsupported(
                f"{len(unknown)} instruction(s) that the simulator does not implement:\n"
                + "\n".join(
                    f"  {what} at PTX line {', '.join(map(str, lines))}"
                    for what, lines in unknown.items()
                ),
                Location(kernel=self.kernel.name, ptx_line=min(map(min, unknown.values()))),
            )

    def blocks(self) -> list[_Open]:
        """The body cut at labels that are branched to, branches and waits.

        Line information adds labels that nothing branches to: they must not change the blocks.
        """
        done, targets = [_Open()], self._branch_targets()
        for item in self.kernel.body:
            if isinstance(item, nodes.LabelMark):
                if item.name not in targets:
                    continue
                self.starts[item.name] = len(_empty(done)) - 1
            else:
                self._add(item, _unfinished(done, item.line))
        if done[-1].terminator is None:
            done[-1].terminator = Exit()
        self.starts[_END] = len(done)
        return done

    def _branch_targets(self) -> set[str]:
        """The labels that instructions name."""
        return {
            operand.name
            for item in self.kernel.body
            if isinstance(item, nodes.Instruction)
            for operand in item.operands
            if isinstance(operand, nodes.Label)
        }

    def _add(self, item: nodes.Instruction, done: list[_Open]) -> None:
        """Add an instruction to the last block. A guarded exit is a branch to the end."""
        entry = _find(item)
        assert entry is not None
        if entry.kind is Kind.BRANCH:
            done[-1].terminator = item
        elif entry.kind is Kind.EXIT:
            done[-1].terminator = Exit() if item.guard is None else _branch(item, _END)
        elif entry.kind is Kind.WAIT:
            self._add_wait(self._operation(item, entry), done)
        else:
            done[-1].operations.append(self._operation(item, entry))

    def _add_wait(self, operation: Operation, done: list[_Open]) -> None:
        """Add a block that waits; the lanes that a guard excludes branch around it."""
        item = operation.node
        if item.guard is not None:
            around = f"@around {len(done)}"
            inverse = nodes.Guard(item.guard.register, not item.guard.negated)
            done[-1].terminator = _branch(replace(item, guard=inverse), around)
        _unfinished(_empty(done), item.line)[-1].terminator = replace(operation, guard=None)
        if item.guard is not None:
            self.starts[around] = len(done)

    # 2. Operands

    @property
    def register_names(self) -> Iterable[str]:
        """The names of the registers, by slot."""
        return self._slots  # in the order in which they were numbered

    def slot(self, register: nodes.Register) -> int:
        """The number of a register."""
        if register.name not in self._slots:
            self._slots[register.name] = len(self.registers)
            self.registers.append(register.type)
        return self._slots[register.name]

    def predicate(self, guard: nodes.Guard | None) -> Predicate | None:
        return None if guard is None else Predicate(self.slot(guard.register), guard.negated)

    def _operation(self, item: nodes.Instruction, entry: Entry) -> Operation:
        flat = _flatten(item.operands)
        count = len(entry.results)
        targets: list[Target] = []
        for slot, node in zip(entry.results, flat[:count], strict=True):
            targets.extend(self._targets(slot, node))
        operands = (flat[:1] if entry.updates else []) + flat[count:]
        sources = map(self._source, entry.operands, operands)
        return Operation(entry, tuple(targets), tuple(sources), self.predicate(item.guard), item)

    def _targets(self, slot: Slot, node: nodes.Operand) -> Iterable[Target]:
        elements = node.elements if isinstance(node, nodes.Vector) else (node,)
        for kind, element in zip(slot.types, elements, strict=True):
            if isinstance(element, nodes.Sink):
                yield Target(None, kind, kind)
            else:
                assert isinstance(element, nodes.Register)
                yield Target(self.slot(element), element.type, kind)

    def _source(self, slot: Slot, node: nodes.Operand) -> Source:
        if isinstance(node, nodes.Vector):
            return FromVector(tuple(map(self._value, slot.types, node.elements)))
        if not isinstance(node, nodes.Address):
            return self._value(slot.types[0], node)
        coordinates = None
        if node.coordinates is not None:
            coordinates = tuple(map(self._value, slot.types[1:], node.coordinates.elements))
        return FromAddress(self._value(slot.types[0], node.base), node.offset, coordinates)

    def _value(self, kind: str, node: nodes.Operand) -> Value:
        match node:
            case nodes.Register(type=storage):
                return FromRegister(self.slot(node), storage, kind)
            case nodes.Immediate(value=value):
                return Constant(value, kind)
            case nodes.Special(name=name):
                return FromSpecial(name, kind)
            case nodes.Symbol(name=name) if name in self._fixed:
                return Constant(self._fixed[name], kind)
            case nodes.Symbol(name=name):
                return FromSpecial(name, kind)
        raise SimulatorBug(f"operand {node} where a value of type {kind} belongs")


def _flatten(operands: Iterable[nodes.Operand]) -> list[nodes.Operand]:
    """The operands with each pair ``d|p`` as two."""
    flat: list[nodes.Operand] = []
    for item in operands:
        flat.extend((item.first, item.second) if isinstance(item, nodes.Pair) else (item,))
    return flat


# 3. Fitting


def _not_known(item: nodes.Instruction) -> str:
    """What of an instruction is not implemented; empty if all is."""
    if _find(item) is None:
        return f"operands of {item.text()}" if item.mnemonic in families.TABLE else item.mnemonic
    for operand in item.operands:
        if isinstance(operand, nodes.Special) and not is_special(operand.name):
            return f"special register {operand.name}"
    return ""


def _find(item: nodes.Instruction) -> Entry | None:
    """The first table entry whose signature fits the instruction."""
    flat = _flatten(item.operands)
    for entry in families.TABLE.get(item.mnemonic, ()):
        if entry.kind in (Kind.BRANCH, Kind.EXIT):
            return entry
        slots = entry.written
        if len(slots) == len(flat) and all(
            _fits(slot, node, result=i < len(entry.results))
            for i, (slot, node) in enumerate(zip(slots, flat, strict=True))
        ):
            return entry
    return None


def _fits(slot: Slot, node: nodes.Operand, *, result: bool) -> bool:
    match node:
        case nodes.Vector(elements=elements):
            return (
                slot.form == "vector"
                and len(elements) == len(slot.types)
                and all(map(_fits_value, slot.types, elements, itertools.repeat(result)))
            )
        case nodes.Address(base=base, coordinates=coordinates):
            expected = len(slot.types) - 1
            return (
                slot.form == "address"
                and _fits_value(slot.types[0], base, False)
                and expected == (0 if coordinates is None else len(coordinates.elements))
            )
    return slot.form == "value" and _fits_value(slot.types[0], node, result)


def _fits_value(kind: str, node: nodes.Operand, result: bool) -> bool:
    match node:
        case nodes.Register(type=storage):
            if "pred" in (kind, storage):
                return kind == storage
            return BITS.get(storage, 0) >= BITS[kind]
        case nodes.Sink():
            return result
        case nodes.Immediate() | nodes.Special() | nodes.Symbol():
            return not result
    return False


# 4. Linking


def _link(opened: list[_Open], decoder: _Decoder) -> tuple[Block, ...]:
    """The blocks with labels resolved and reconvergence points computed."""
    ends = [_terminator(block, i + 1, decoder) for i, block in enumerate(opened)]
    return tuple(
        Block(tuple(block.operations), end, meet, block.line)
        for block, end, meet in zip(opened, ends, _meeting_points(opened, ends), strict=True)
    )


def _meeting_points(opened: list[_Open], ends: list[Terminator]) -> list[int]:
    """For each block the one at which lanes that diverge at its end meet.

    Where a branch leads straight out of the kernel on one side, nobody comes back from there, so
    that side does not count: else one lane's early exit would keep the others of its warp apart.
    """
    exit_node = len(opened)
    successors = [_successors(end, exit_node) for end in ends]
    bare = zip(range(exit_node), opened, ends, strict=True)
    out = {exit_node} | {i for i, b, end in bare if isinstance(end, Exit) and not b.operations}
    staying = [tuple(t for t in targets if t not in out) or targets for targets in successors]
    return [
        near if near != exit_node else far
        for near, far in zip(
            immediate_post_dominators(staying), immediate_post_dominators(successors), strict=True
        )
    ]


def _terminator(block: _Open, following: int, decoder: _Decoder) -> Terminator:
    match block.terminator:
        case None:
            return Goto(following)
        case Exit():
            return Exit()
        case Operation() as operation:
            return Wait(operation, following)
        case nodes.Instruction() as item:
            (label,) = item.operands
            assert isinstance(label, nodes.Label)
            target = decoder.starts[label.name]
            predicate = decoder.predicate(item.guard)
            if predicate is None:
                return Goto(target)
            return Branch(predicate, target, following, item.mnemonic == "bra.uni", item)


def _successors(end: Terminator, exit_node: int) -> tuple[int, ...]:
    match end:
        case Goto(target=target) | Wait(target=target):
            return (target,)
        case Branch(taken=taken, otherwise=otherwise):
            return (taken, otherwise)
    return (exit_node,)
