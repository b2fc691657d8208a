"""PTX nodes to a decoded program: table look-up, typed operands, basic blocks.

What the table does not hold is ``Unsupported``, and all of a kernel's unknown instructions are
named at once, with their lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from simulator.control_flow import immediate_post_dominators
from simulator.errors import Location, SimulatorBug, Unsupported
from simulator.isa import families
from simulator.isa.table import Entry, Kind, Slot
from simulator.isa.types import BITS
from simulator.machine.memory_map import PARAM_WINDOW, SHARED_BASE
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
    return Program(kernel, tuple(decoder.registers), blocks, offsets, dynamic)


def _place_shared(variables: Iterable[nodes.SharedVariable]) -> tuple[dict[str, int], int]:
    """Offsets of the shared variables: the static ones first, the dynamic one after them."""
    offsets: dict[str, int] = {}
    end = SHARED_BASE
    for variable in sorted(variables, key=lambda v: v.size is None):
        end = -(-end // variable.alignment) * variable.alignment
        offsets[variable.name] = end
        end += variable.size or 0
    return offsets, end


# 1. Blocks

@dataclass
class _Open:
    """A block under construction; its terminator still names labels."""

    operations: list[Operation] = field(default_factory=list)
    terminator: nodes.Instruction | Operation | Terminator | None = None
    line: int = 0


class _Decoder:
    """Turns the body of one kernel into open blocks, numbering registers as they appear."""

    def __init__(self, kernel: nodes.Kernel) -> None:
        self.kernel = kernel
        self.registers: list[str] = []
        self.starts: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._params = {p.name: p.offset for p in kernel.params}

    def check_supported(self) -> None:
        """Raise ``Unsupported`` naming every instruction that no table entry fits."""
        unknown: dict[str, list[int]] = {}
        for item in self.kernel.body:
            if isinstance(item, nodes.Instruction) and _find(item) is None:
                shape = "" if item.mnemonic in families.TABLE else " (not in the table)"
                unknown.setdefault(item.text() if not shape else item.mnemonic + shape, []).append(item.line)
        if unknown:
            first = min(lines[0] for lines in unknown.values())
            listing = "; ".join(f"{text} at PTX line {', '.join(map(str, lines[:3]))}"
                                for text, lines in unknown.items())  # fmt: skip
            raise Unsupported(
                f"{len(unknown)} instruction(s) the simulator does not implement: {listing}",
                Location(kernel=self.kernel.name, ptx_line=first),
            )

    def blocks(self) -> list[_Open]:
        """The body cut at labels, branches and waits."""
        done = [_Open()]
        for item in self.kernel.body:
            current = done[-1]
            if isinstance(item, nodes.LabelMark):
                if current.operations or current.terminator is not None:
                    current = _Open()
                    done.append(current)
                self.starts[item.name] = len(done) - 1
                continue
            if current.terminator is not None:
                current = _Open()
                done.append(current)
            current.line = current.line or item.line
            self._add(item, current, done)
        if done[-1].terminator is None:
            done[-1].terminator = Exit()
        return done

    def _add(self, item: nodes.Instruction, current: _Open, done: list[_Open]) -> None:
        entry = _find(item)
        assert entry is not None
        if entry.kind is Kind.BRANCH:
            current.terminator = item
        elif entry.kind is Kind.EXIT:
            if item.guard is not None:
                raise Unsupported(f"guarded {item.mnemonic}", Location(ptx_line=item.line))
            current.terminator = Exit()
        elif entry.kind is Kind.WAIT:
            if item.guard is not None:
                raise Unsupported(f"guarded {item.mnemonic}", Location(ptx_line=item.line))
            if current.operations:
                done.append(current := _Open(line=item.line))
            current.terminator = self._operation(item, entry)
        else:
            current.operations.append(self._operation(item, entry))

    # 2. Operands

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
        targets = [t for slot, node in zip(entry.results, flat, strict=False)
                   for t in self._targets(slot, node)]  # fmt: skip
        sources = [self._source(slot, node) for slot, node in zip(entry.operands, flat[count:], strict=True)]
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
            case nodes.Symbol(name=name) if name in self._params:
                return Constant(PARAM_WINDOW + self._params[name], kind)
            case nodes.Symbol(name=name):
                return FromSpecial(name, kind)
        raise SimulatorBug(f"operand {node} where a value of type {kind} belongs")


def _flatten(operands: Iterable[nodes.Operand]) -> list[nodes.Operand]:
    """The operands with each pair ``d|p`` as two."""
    return [o for item in operands
            for o in ((item.first, item.second) if isinstance(item, nodes.Pair) else (item,))]  # fmt: skip


# 3. Fitting

def _find(item: nodes.Instruction) -> Entry | None:
    """The first table entry whose signature fits the instruction."""
    flat = _flatten(item.operands)
    for entry in families.TABLE.get(item.mnemonic, ()):
        if entry.kind in (Kind.BRANCH, Kind.EXIT):
            return entry
        slots = entry.results + entry.operands
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
                and all(_fits_value(t, e, result) for t, e in zip(slot.types, elements, strict=True))
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
            return BITS[storage] >= BITS[kind]
        case nodes.Sink():
            return result
        case nodes.Immediate() | nodes.Special() | nodes.Symbol():
            return not result
    return False


# 4. Linking

def _link(opened: list[_Open], decoder: _Decoder) -> tuple[Block, ...]:
    """The blocks with labels resolved and reconvergence points computed."""
    ends = [_terminator(block, i + 1, decoder) for i, block in enumerate(opened)]
    meets = immediate_post_dominators([_successors(end, len(opened)) for end in ends])
    return tuple(
        Block(tuple(block.operations), end, meet, block.line)
        for block, end, meet in zip(opened, ends, meets, strict=True)
    )


def _terminator(block: _Open, following: int, decoder: _Decoder) -> Terminator:
    match block.terminator:
        case None:
            return Goto(following)
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
        case other:
            return other


def _successors(end: Terminator, exit_node: int) -> tuple[int, ...]:
    match end:
        case Goto(target=target) | Wait(target=target):
            return (target,)
        case Branch(taken=taken, otherwise=otherwise):
            return (taken, otherwise)
    return (exit_node,)
