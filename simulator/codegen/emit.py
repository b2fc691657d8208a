"""Writes the machine-independent code (LLVM IR) of one instruction form.

A *form* is a table entry together with where its operands and results live. Its function gets the
warp's state and the instruction's record, whose words say which registers and immediates. It
returns ``OK``, or ``PYTHON`` before it has changed anything, for whatever it leaves to the table's
own function: a case that is rare, or an error, which that function then raises.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from llvmlite import ir

from simulator.codegen.state import HEADER_WORDS, CtaState, WarpState
from simulator.isa.table import TABLE, Entry, Kind, Slot
from simulator.isa.values import BITS, DTYPES
from simulator.machine.warp import LANES

OK, PYTHON, BLOCK = range(3)
"""What an instruction's function returns; ``BLOCK`` says that a wait has not completed."""

ADDRESS_LIMIT: Final = 1 << 32
"""Operand words below it are offsets in the warp's registers, those above are addresses."""

POINTER: Final = ir.PointerType()
I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
FUNCTION: Final = ir.FunctionType(I32, [POINTER, POINTER])
FULL: Final = ir.Constant(I32, 0xFFFFFFFF)

Value = Any
"""An LLVM value; llvmlite has no types for mypy."""


@dataclass(frozen=True)
class Form:
    """A table entry with the places of its operands.

    ``entry`` indexes the entries of the mnemonic. Of ``targets`` each is the register's width in
    bits or 0 for the sink, of ``sources`` (all leaves, in order) the width or 0 for an immediate.
    ``guard`` is "", "+" or "-" for a negated guard; its register is the last word of the record.
    """

    mnemonic: str
    entry: int
    targets: tuple[int, ...]
    sources: tuple[int, ...]
    guard: str

    @property
    def symbol(self) -> str:
        """The name of the form's function."""
        return "form_" + hashlib.sha256(repr(self).encode()).hexdigest()[:24]

    def find(self) -> Entry:
        """The table entry."""
        return TABLE[self.mnemonic][self.entry]


def lane_type(kind: str) -> Value:
    """The LLVM type over 32 lanes of a PTX type: floats as such, 16-bit floats as their bits."""
    if kind == "pred":
        return ir.VectorType(I1, LANES)
    if kind in ("f32", "f64"):
        return ir.VectorType(ir.FloatType() if kind == "f32" else ir.DoubleType(), LANES)
    if kind == "f32x2":
        return ir.VectorType(ir.FloatType(), 2 * LANES)
    if kind.endswith("x2"):
        return ir.VectorType(I16, 2 * LANES)
    return ints(BITS[kind])


def ints(bits: int, count: int = LANES) -> Value:
    """A vector of integers."""
    return ir.VectorType(ir.IntType(bits), count)


def splat(kind: Value, value: int | float) -> Value:
    """A vector constant."""
    return ir.Constant(kind, [value] * kind.count)


Step = Callable[[Value, list[Value]], list[Value]]
"""The body of a loop: from its index and the carried values to the next ones."""


def fold(b: Value, count: Value, initial: list[Value], step: Step) -> list[Value]:
    """What ``step`` carries through i = 0 .. count - 1 (64 bits), count at least 1."""
    before = b.block
    body, after = b.function.append_basic_block("fold"), b.function.append_basic_block("folded")
    b.branch(body)
    b.position_at_end(body)
    i = b.phi(I64)
    i.add_incoming(ir.Constant(I64, 0), before)
    carried = [b.phi(value.type) for value in initial]
    for phi, value in zip(carried, initial, strict=True):
        phi.add_incoming(value, before)
    results = step(i, carried)
    following = b.add(i, ir.Constant(I64, 1))
    for phi, value in zip([i, *carried], [following, *results], strict=True):
        phi.add_incoming(value, b.block)
    b.cbranch(b.icmp_unsigned("<", following, count), body, after)
    b.position_at_end(after)
    return results


class Writer:
    """A function under construction; it returns a status. ``b`` is the IR builder."""

    def __init__(self, function: Value) -> None:
        self.function = function
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        self._python: Value = None

    def load_at(self, pointer: Value, offset: int, kind: Value) -> Value:
        """A value at a constant offset from a pointer."""
        return self.b.load(self.offset(pointer, offset), typ=kind)

    def offset(self, pointer: Value, offset: int | Value) -> Value:
        """``pointer`` plus bytes."""
        by = ir.Constant(I64, offset) if isinstance(offset, int) else offset
        return self.b.gep(pointer, [by], source_etype=I8)

    def field(self, pointer: Value, structure: Any, name: str, kind: Value = I64) -> Value:
        """A field of a structure of ``simulator.codegen.state``."""
        return self.load_at(pointer, getattr(structure, name).offset, kind)

    def set_field(self, pointer: Value, structure: Any, name: str, value: Value | int) -> None:
        """Write a 64-bit field."""
        value = ir.Constant(I64, value) if isinstance(value, int) else value
        self.b.store(value, self.offset(pointer, getattr(structure, name).offset))

    def element(self, vector_place: Value, lane: Value, kind: Value) -> Value:
        """One lane of a register in memory, of scalar type ``kind``."""
        return self.b.load(self.b.gep(vector_place, [lane], source_etype=kind), typ=kind)

    def room(self, kind: Value) -> Value:
        """The address of room on the stack."""
        with self.b.goto_entry_block():
            place = self.b.alloca(kind)
            # llvmlite gives the pointer a type, which its stores then insist on.
            return self.b.inttoptr(self.b.ptrtoint(place, I64), POINTER)

    def splat_of(self, scalar: Value, count: int = LANES) -> Value:
        """A scalar in every lane."""
        kind = ir.VectorType(scalar.type, count)
        single = self.b.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
        return self.b.shuffle_vector(
            single, ir.Constant(kind, ir.Undefined), ir.Constant(ints(32, count), [0] * count)
        )

    def python_if(self, condition: Value) -> None:
        """Leave the instruction to its table function if ``condition`` holds."""
        if self._python is None:
            self._python = self.function.append_basic_block("python")
            ir.IRBuilder(self._python).ret(ir.Constant(I32, PYTHON))
        onwards = self.function.append_basic_block("on")
        self.b.cbranch(condition, self._python, onwards)
        self.b.position_at_end(onwards)

    @contextmanager
    def loop(self, count: int | Value) -> Iterator[Value]:
        """Repeat the body for i = 0 .. count - 1, count at least 1; gives i, 64 bits wide."""
        count = ir.Constant(I64, count) if isinstance(count, int) else count
        before = self.b.block
        body = self.function.append_basic_block("loop")
        after = self.function.append_basic_block("after")
        self.b.branch(body)
        self.b.position_at_end(body)
        i = self.b.phi(I64)
        i.add_incoming(ir.Constant(I64, 0), before)
        yield i
        following = self.b.add(i, ir.Constant(I64, 1))
        i.add_incoming(following, self.b.block)
        self.b.cbranch(self.b.icmp_unsigned("<", following, count), body, after)
        self.b.position_at_end(after)


class WarpWriter(Writer):
    """As ``Writer``, of a function whose first argument is a warp's state."""

    def __init__(self, function: Value) -> None:
        super().__init__(function)
        self.state = function.args[0]

    def warp(self, name: str, kind: Value = I64) -> Value:
        """A field of the warp's state."""
        return self.field(self.state, WarpState, name, kind)

    def set_warp(self, name: str, value: Value | int) -> None:
        """Write a field of the warp's state."""
        self.set_field(self.state, WarpState, name, value)

    @property
    def cta(self) -> Value:
        """The warp's ``CtaState``."""
        return self.b.inttoptr(self.warp("cta"), POINTER)

    def cta_of(self, address: Value) -> Value:
        """The ``CtaState`` that a shared address (32 bits, uniform) belongs to."""
        rank = self.b.zext(self.b.lshr(address, ir.Constant(I32, 24)), I64)
        cta = self.cta
        self.python_if(self.b.icmp_unsigned(">=", rank, self.field(cta, CtaState, "cta_count")))
        first = self.b.inttoptr(self.field(cta, CtaState, "ctas"), POINTER)
        return self.offset(first, self.b.mul(rank, ir.Constant(I64, ctypes_size(CtaState))))


class Emitter(WarpWriter):
    """The function of one form under construction. ``b`` is the IR builder."""

    def __init__(self, module: ir.Module, form: Form) -> None:
        self.form = form
        self.entry = form.find()
        super().__init__(ir.Function(module, FUNCTION, form.symbol))
        self.record = self.function.args[1]
        self.targets = self.target_types()
        self.mask = self._mask()

    # 1. The record and the structures

    def word(self, index: int) -> Value:
        """Operand word ``index`` of the record."""
        return self.load_at(self.record, 8 * (HEADER_WORDS + index), I64)

    # 2. Registers

    def target_types(self) -> list[str]:
        """The PTX types of the results, vectors flattened."""
        return [t for slot in self.entry.results for t in slot.types]

    def place(self, word: Value) -> Value:
        """The address that an operand word stands for."""
        base = self.b.select(self.is_local(word), ir.Constant(I64, 0), self.warp("registers"))
        return self.b.inttoptr(self.b.add(base, word), POINTER)

    def is_local(self, word: Value) -> Value:
        """Whether an operand word is the address of a register that lives in one block."""
        return self.b.icmp_unsigned(">=", word, ir.Constant(I64, ADDRESS_LIMIT))

    def target_place(self, index: int) -> Value:
        """The address of the register that result ``index`` goes to."""
        return self.place(self.word(index))

    def source_place(self, index: int) -> Value:
        """The address of the register of source leaf ``index``."""
        return self.place(self.word(len(self.form.targets) + index))

    def immediate(self, index: int) -> Value:
        """The 64-bit word of source leaf ``index``, an immediate."""
        return self.word(len(self.form.targets) + index)

    def source(self, index: int, kind: str) -> Value:
        """Source leaf ``index`` over the lanes, read as a PTX type."""
        width, bits = self.form.sources[index], BITS[kind]
        if kind == "pred":
            if not width:
                return self.splat_of(self.b.trunc(self.immediate(index), I1))
            return self.flags(self.source_place(index))
        if width:
            value = self.b.load(self.source_place(index), typ=ints(width), align=32)
            if width > bits:
                value = self.b.trunc(value, ints(bits))
        else:
            scalar = self.immediate(index)
            value = self.splat_of(self.b.trunc(scalar, ir.IntType(bits)) if bits < 64 else scalar)
        return self.b.bitcast(value, lane_type(kind)) if lane_type(kind) != value.type else value

    def flags(self, place: Value) -> Value:
        """A predicate register as <32 x i1>."""
        held = self.b.load(place, typ=ints(8), align=32)
        return self.b.icmp_unsigned("!=", held, splat(held.type, 0))

    def bits_of(self, flags: Value) -> Value:
        """<32 x i1> as 32 bits."""
        return self.b.bitcast(flags, I32)

    def flags_of(self, bits: Value) -> Value:
        """32 bits as <32 x i1>."""
        return self.b.bitcast(bits, ir.VectorType(I1, LANES))

    def _mask(self) -> Value:
        """The lanes in which the instruction acts, as 32 bits."""
        mask = self.b.trunc(self.warp("mask"), I32)
        if self.form.guard:
            held = self.flags(
                self.place(self.word(len(self.form.targets) + len(self.form.sources)))
            )
            bits = self.bits_of(held)
            mask = self.b.and_(mask, bits if self.form.guard == "+" else self.b.not_(bits))
            if self.entry.kind is not Kind.PURE:
                self.python_if(self.b.icmp_unsigned("==", mask, ir.Constant(I32, 0)))
        if self.entry.converged:
            self.python_if(self.b.icmp_unsigned("!=", mask, self.b.trunc(self.warp("alive"), I32)))
        return mask

    def store(self, index: int, value: Value, mask: Value | None = None) -> None:
        """Put a result into its register, in the lanes of ``mask`` (the active ones if None)."""
        width, kind = self.form.targets[index], self.targets[index]
        if not width:
            return
        mask = self.mask if mask is None else mask
        if kind == "pred":
            stored = self.b.zext(value, ints(8))
        else:
            bits = BITS[kind]
            stored = self.b.bitcast(value, ints(bits)) if value.type != ints(bits) else value
            if bits < width:
                extend = self.b.sext if DTYPES[kind].kind == "i" else self.b.zext
                stored = extend(stored, ints(width))
        place = self.target_place(index)
        with self.b.if_else(self.b.icmp_unsigned("==", mask, FULL), likely=True) as (full, some):
            with full:
                self.b.store(stored, place, align=32)
            with some:
                old = self.b.load(place, typ=stored.type, align=32)
                if not self.form.guard:
                    # Perhaps the first write to a shared place, which another register has used.
                    old = self.b.select(self.is_local(self.word(index)), splat(old.type, 0), old)
                self.b.store(self.b.select(self.flags_of(mask), stored, old), place, align=32)

    def intrinsic(self, name: str, *operands: Value) -> Value:
        """An LLVM intrinsic on vectors of one type, with the result of that type."""
        kind = operands[0].type
        scalar = {ir.FloatType(): "f32", ir.DoubleType(): "f64"}.get(
            kind.element
        ) or f"i{kind.element.width}"
        symbol = f"llvm.{name}.v{kind.count}{scalar}"
        module = self.function.module
        function = module.globals.get(symbol)
        if function is None:
            function = ir.Function(
                module, ir.FunctionType(kind, [o.type for o in operands]), symbol
            )
        return self.b.call(function, operands)

    # 3. Control

    def python_if_any(self, flags: Value, mask: Value | None = None) -> None:
        """Leave it to Python if a flag is set in an active lane."""
        hit = self.b.and_(self.bits_of(flags), self.mask if mask is None else mask)
        self.python_if(self.b.icmp_unsigned("!=", hit, ir.Constant(I32, 0)))

    @contextmanager
    def each_active(self) -> Iterator[Value]:
        """Repeat the body for each active lane, in order."""
        with self.loop(LANES) as lane, self.b.if_then(self.active(lane), likely=True):
            yield lane

    def active(self, lane: Value) -> Value:
        """Whether a lane is active."""
        return self.b.trunc(self.b.lshr(self.mask, self.b.trunc(lane, I32)), I1)

    def first_lane(self) -> Value:
        """The lowest active lane, 64 bits wide."""
        count = self.b.cttz(self.mask, ir.Constant(I1, 0))
        return self.b.zext(count, I64)

    def spill(self, vector: Value) -> Value:
        """The address of a copy of a vector."""
        place = self.room(vector.type)
        self.b.store(vector, place)
        return place

    def uniform(self, index: int, kind: str) -> Value:
        """Source leaf ``index`` as one scalar; left to Python unless all active lanes agree."""
        if not self.form.sources[index]:
            bits = BITS[kind]
            scalar = self.immediate(index)
            return scalar if bits == 64 else self.b.trunc(scalar, ir.IntType(bits))
        vector = self.source(index, kind)
        scalar = self.element(self.spill(vector), self.first_lane(), vector.type.element)
        self.python_if_any(self.b.icmp_unsigned("!=", vector, self.splat_of(scalar)))
        return scalar

    def finish(self) -> None:
        """End the function."""
        self.b.ret(ir.Constant(I32, OK))


def ctypes_size(structure: Any) -> int:
    """The size of a structure in bytes."""
    import ctypes

    return ctypes.sizeof(structure)


# 4. Assembling a form from its translation

Pure = Callable[..., Any]
"""From the emitter and the operands, as the table's function gets them, to the results."""

Effect = Callable[[Emitter], None]
"""Reads operands from and stores results through the emitter itself."""


def emit_pure(module: ir.Module, form: Form, translation: Pure) -> None:
    """Add the function of a pure form."""
    e = Emitter(module, form)
    leaf = iter(range(len(form.sources)))
    operands = [_operand(e, slot, leaf) for slot in e.entry.operands]
    results = translation(e, *operands)
    flat = results if isinstance(results, Sequence) else (results,)
    for index, value in enumerate(flat):
        e.store(index, value)
    e.finish()


def emit_effect(module: ir.Module, form: Form, translation: Effect) -> None:
    """Add the function of a form with an effect."""
    e = Emitter(module, form)
    translation(e)
    e.finish()


def _operand(e: Emitter, slot: Slot, leaf: Iterator[int]) -> Any:
    if slot.form == "vector":
        return tuple(e.source(next(leaf), t) for t in slot.types)
    return e.source(next(leaf), slot.types[0])
