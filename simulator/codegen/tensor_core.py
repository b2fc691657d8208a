"""tcgen05.mma in native code: operands out of shared memory, fused sums, the result into TMEM.

It knows what descriptors and layouts kernels commonly use (``machine.tensor_core`` has the layouts
in words) and leaves everything else, and every error, to the array code. Nothing is changed before
it is certain that the operation can be done.
"""

from __future__ import annotations

import ctypes
from typing import Final

from llvmlite import ir

from simulator.codegen.dot_product import DotCall, emit_dot
from simulator.codegen.emit import I8, I32, I64, OK, POINTER, Value, Writer, ints, splat
from simulator.codegen.state import ClusterState, CtaState, WarpState
from simulator.machine.tensor_core import K_BYTES
from simulator.machine.tensor_memory import COLUMNS
from simulator.numerics.formats import BF16, E4M3, E5M2, F16, Format

MMA: Final = {"f16": "mma_f16", "f8f6f4": "mma_f8f6f4"}
"""The functions ``i32 (WarpState*, i64 d, i64 a, i64 b, i64 idesc, i64 enabled, i64 form)``, where
``form`` is the sum of the following."""

FORM_PAIR, FORM_WEIGHT_STATIONARY = 1, 2

_FORMATS: Final[dict[str, tuple[Format, Format]]] = {"f16": (F16, BF16), "f8f6f4": (E4M3, E5M2)}
_MAX_SIDE: Final = 256
_MAX_DEPTH: Final = 32
_CHUNK: Final = 16
_FLOAT = ir.FloatType()
_ONES = int.from_bytes(b"\1" * _CHUNK, "little")

# What must stand in a shared memory descriptor beside addresses and swizzle mode: version 1.
_SHARED_FIXED, _SHARED_VALUE = 3 << 14 | 3 << 30 | 0x7FFF << 46, 1 << 46
# Of an instruction descriptor: no sparsity, saturation or shift, a float32 accumulator.
_INSTRUCTION_FIXED, _INSTRUCTION_VALUE = 0x7F | 1 << 23 | 7 << 29 | 6 << 7 | 6 << 10, 1 << 4


class Scratch(ctypes.Structure):
    """Working room of one MMA: operands as float32, their exponents, and a row of zeros."""

    _fields_ = (
        ("a", ctypes.c_float * (_MAX_SIDE * _MAX_DEPTH)),
        ("b", ctypes.c_float * (_MAX_SIDE * _MAX_DEPTH)),
        ("a_exponents", ctypes.c_int16 * (_MAX_SIDE * _MAX_DEPTH)),
        ("b_exponents", ctypes.c_int16 * (_MAX_SIDE * _MAX_DEPTH)),
        ("zeros", ctypes.c_float * _MAX_SIDE),
    )


def _c(value: int) -> Value:
    return ir.Constant(I64, value)


class _Code(Writer):
    """Small tools for 64-bit arithmetic."""

    def bits(self, value: Value, first: int, count: int) -> Value:
        """A bit field."""
        return self.b.and_(self.b.lshr(value, _c(first)), _c((1 << count) - 1))

    def is_set(self, value: Value, bit: int) -> Value:
        return self.b.icmp_unsigned("!=", self.bits(value, bit, 1), _c(0))

    def unless(self, condition: Value) -> None:
        """Leave it to Python unless ``condition`` holds."""
        self.python_if(self.b.not_(condition))

    def equal(self, x: Value, y: int) -> Value:
        return self.b.icmp_unsigned("==", x, ir.Constant(x.type, y))

    def at(self, address: Value) -> Value:
        return self.b.inttoptr(address, POINTER)

    def plus(self, *terms: Value) -> Value:
        total = terms[0]
        for term in terms[1:]:
            total = self.b.add(total, term)
        return total


class _Gather(_Code):
    """``gather(CtaState*, descriptor, rows, mn_major, shape, sign, code, room)`` of one kind.

    The operand's values [rows, k] as float32 at ``room``, whose strides of a row and of k in
    elements are the two halves of ``shape``; ``sign`` is what bit 31 is xor-ed with, ``code`` the
    format.
    """

    def __init__(self, module: ir.Module, kind: str) -> None:
        signature = ir.FunctionType(I32, [POINTER, *[I64] * 6, POINTER])
        super().__init__(ir.Function(module, signature, f"gather_{kind}"))
        self.function.attributes.add("noinline")
        self._formats = _FORMATS[kind]
        self._bytes = self._formats[0].storage_bits // 8

    def build(self) -> None:
        cta, descriptor, rows, mn_major, shape, sign, code, room = self.function.args
        b = self.b
        self.unless(self.equal(b.and_(descriptor, _c(_SHARED_FIXED)), _SHARED_VALUE))
        mode = b.lshr(descriptor, _c(61))
        self.unless(b.or_(self.equal(mode, 2), self.equal(mode, 4)))
        span = b.select(self.equal(mode, 2), _c(128), _c(64))
        pattern = b.sub(b.lshr(span, _c(4)), _c(1))
        start, leading, stride = (
            b.shl(self.bits(descriptor, first, 14), _c(4)) for first in (0, 16, 32)
        )
        is_major = b.icmp_unsigned("!=", mn_major, _c(0))
        width = b.mul(rows, _c(self._bytes))
        self.python_if(b.and_(is_major, b.icmp_unsigned("!=", b.and_(width, _c(15)), _c(0))))
        outer = b.select(is_major, _c(K_BYTES // self._bytes), rows)
        chunks = b.lshr(b.select(is_major, width, _c(K_BYTES)), _c(4))
        row_step, k_step = b.lshr(shape, _c(32)), b.and_(shape, _c(0xFFFFFFFF))
        major, minor = b.select(is_major, row_step, k_step), b.select(is_major, k_step, row_step)
        shared = self.field(cta, CtaState, "shared")
        valid = self.field(cta, CtaState, "shared_valid")
        last = b.sub(self.field(cta, CtaState, "shared_size"), _c(_CHUNK))
        checked = self.field(cta, CtaState, "check_shared")
        with self.loop(outer) as o, self.loop(chunks) as index:
            byte = b.shl(index, _c(4))
            dense = self.plus(
                b.mul(b.and_(o, _c(7)), span),
                b.mul(b.lshr(o, _c(3)), stride),
                b.and_(byte, b.sub(span, _c(1))),
                b.mul(b.udiv(byte, span), leading),
            )
            address = b.add(start, dense)
            moved = b.shl(b.and_(b.lshr(address, _c(7)), pattern), _c(4))
            address = b.xor(address, moved)
            self.python_if(b.icmp_signed(">", address, last))
            flags = b.load(self.at(b.add(valid, address)), typ=ir.IntType(128), align=1)
            unwritten = b.icmp_unsigned("!=", flags, ir.Constant(ir.IntType(128), _ONES))
            self.python_if(b.and_(unwritten, b.icmp_unsigned("!=", checked, _c(0))))
            count = _CHUNK // self._bytes
            kind = ints(8 * self._bytes, count)
            codes = b.load(self.at(b.add(shared, address)), typ=kind, align=1)
            values = self._decoded(codes, sign, code, count)
            element = b.mul(index, _c(count))
            first = self.plus(b.mul(o, minor), b.mul(element, major))
            self._store(values, room, first, major)
        b.ret(ir.Constant(I32, OK))

    def _store(self, values: Value, room: Value, first: Value, step: Value) -> None:
        """Put values ``step`` elements apart."""
        b = self.b
        place = b.gep(room, [first], source_etype=_FLOAT)
        with b.if_else(self.equal(step, 1)) as (dense, sparse):
            with dense:
                b.store(values, place, align=4)
            with sparse:
                for i in range(values.type.count):
                    value = b.extract_element(values, ir.Constant(I32, i))
                    b.store(value, b.gep(place, [b.mul(step, _c(i))], source_etype=_FLOAT))

    def _decoded(self, codes: Value, sign: Value, code: Value, count: int) -> Value:
        """The float32 values of codes, exactly; NaNs stay NaNs."""
        b, kind = self.b, ints(32, count)
        second = self.equal(code, 1)

        def chosen(of: object, scalar: Value) -> Value:
            one, other = (ir.Constant(scalar, of(f)) for f in self._formats)  # type: ignore[operator]
            return self.splat_of(b.select(second, other, one), count)

        magnitude_bits = self._formats[0].magnitude_bits
        wide = b.zext(codes, kind)
        magnitude = b.and_(wide, splat(kind, (1 << magnitude_bits) - 1))
        negative = b.shl(b.lshr(wide, splat(kind, magnitude_bits)), splat(kind, 31))
        shifted = b.shl(magnitude, chosen(lambda f: 23 - f.mantissa_bits, I32))
        scale = chosen(lambda f: 2.0 ** (127 - f.bias), _FLOAT)
        value = b.bitcast(b.fmul(b.bitcast(shifted, scale.type), scale), kind)
        largest = chosen(lambda f: f.max_finite, I32)
        infinity = chosen(lambda f: f.infinity, I32)
        special = b.select(
            b.icmp_unsigned("==", magnitude, infinity),
            splat(kind, 0x7F800000),
            splat(kind, 0x7FFFFFFF),
        )
        value = b.select(b.icmp_unsigned(">", magnitude, largest), special, value)
        flipped = b.xor(negative, self.splat_of(b.trunc(sign, I32), count))
        return b.bitcast(b.or_(value, flipped), scale.type)


class _Mma(_Code):
    """The function of one kind of MMA."""

    def __init__(self, module: ir.Module, kind: str, gather: Value) -> None:
        signature = ir.FunctionType(I32, [POINTER, *[I64] * 6])
        super().__init__(ir.Function(module, signature, MMA[kind]))
        self._module, self._gather, self._formats = module, gather, _FORMATS[kind]
        self._depth = K_BYTES * 8 // self._formats[0].storage_bits
        self._kind = kind

    def build(self) -> None:
        b = self.b
        warp, d, a, bdesc, idesc, enabled, form = self.function.args
        self.cluster = self.at(self.field(warp, WarpState, "cluster"))
        self.cta = self.at(self.field(warp, WarpState, "cta"))
        self.is_pair = self.is_set(form, 0)
        self.is_stationary = self.is_set(form, 1)
        self.group = b.select(self.is_pair, _c(2), _c(1))
        self._fraction = self.field(self.cluster, ClusterState, f"fraction_{self._kind}")
        self.python_if(b.icmp_signed("<", self._fraction, _c(0)))
        self.unless(self.equal(b.and_(idesc, _c(_INSTRUCTION_FIXED)), _INSTRUCTION_VALUE))
        self.m = b.shl(self.bits(idesc, 24, 5), _c(4))
        self.n = b.shl(self.bits(idesc, 17, 6), _c(3))
        self._require_shape()
        self._blocks()
        self.column = b.and_(d, _c(0xFFFF))
        self.python_if(b.icmp_unsigned("!=", b.lshr(d, _c(16)), _c(0)))
        adds = b.icmp_unsigned("!=", enabled, _c(0))
        self._require_accumulator(adds)
        self._read_operands(idesc, a, bdesc)
        self._add(adds, idesc)
        self._count()
        b.ret(ir.Constant(I32, OK))

    def _require_shape(self) -> None:
        b = self.b
        pair = self.is_pair
        rank = self.field(self.cta, CtaState, "rank")
        odd = b.icmp_unsigned("!=", b.and_(rank, _c(1)), _c(0))
        alone = b.icmp_unsigned(
            ">", b.add(rank, self.group), self.field(self.cta, CtaState, "cta_count")
        )
        self.python_if(b.or_(b.and_(pair, odd), alone))
        rows = b.udiv(self.m, self.group)
        self.rows = rows
        self.is_tall = self.equal(rows, 128)
        self.unless(b.or_(self.is_tall, self.equal(rows, 64)))
        self.python_if(b.and_(self.is_stationary, self.is_tall))
        step = b.select(self.is_stationary, _c(64), b.shl(self.group, _c(3)))
        self.python_if(b.icmp_unsigned("!=", b.urem(self.n, step), _c(0)))
        self.python_if(self.equal(self.n, 0))
        self.python_if(b.icmp_unsigned(">", self.n, _c(_MAX_SIDE)))
        # Weight stationary forms have the widths 64, 128 and 256.
        self.python_if(b.and_(self.is_stationary, self.equal(self.n, 192)))

    def _blocks(self) -> None:
        """How D lies in one CTA: as a whole, in two halves of columns, or in quarters of rows."""
        b = self.b
        halved = b.and_(b.not_(self.is_tall), b.or_(self.is_pair, self.is_stationary))
        quartered = b.and_(b.not_(self.is_tall), b.not_(halved))
        self.count = b.select(halved, _c(2), b.select(quartered, _c(4), _c(1)))
        self.height = b.select(quartered, _c(16), self.rows)
        self.width = b.select(halved, b.lshr(self.n, _c(1)), self.n)
        self.row_step = b.select(quartered, _c(16), _c(0))
        self.column_step = b.select(halved, self.width, _c(0))
        self.lane_step = b.select(halved, self.rows, _c(32))

    def cta_at(self, index: Value) -> Value:
        return self.offset(self.cta, self.b.mul(index, _c(ctypes.sizeof(CtaState))))

    def _require_accumulator(self, adds: Value) -> None:
        """The columns are of one allocation and, if they are read, written."""
        b = self.b
        beyond = b.icmp_unsigned(">", b.add(self.column, self.width), _c(COLUMNS))
        self.python_if(beyond)
        with self.loop(self.group) as index:
            cta = self.cta_at(index)
            owners = self.field(cta, CtaState, "tensor_owner")
            self.python_if(self.equal(self.field(cta, CtaState, "tensor"), 0))
            first = self.element(self.at(owners), self.column, I32)
            end = b.sub(b.add(self.column, self.width), _c(1))
            self.python_if(self.equal(first, 0))
            self.python_if(b.icmp_unsigned("!=", first, self.element(self.at(owners), end, I32)))
            checked = b.icmp_unsigned("!=", self.field(cta, CtaState, "check_tensor"), _c(0))
            with b.if_then(b.and_(adds, checked)):
                self._require_written(cta)

    def _require_written(self, cta: Value) -> None:
        b = self.b
        valid = self.field(cta, CtaState, "tensor_valid")
        ones = ir.Constant(I64, _ONES & (1 << 64) - 1)
        with self.loop(self.count) as part, self.loop(self.height) as row:
            place = self._place(part, row)
            with self.loop(b.lshr(self.width, _c(3))) as chunk:
                at = self.plus(valid, place, b.shl(chunk, _c(3)))
                flags = b.load(self.at(at), typ=I64, align=1)
                self.python_if(b.icmp_unsigned("!=", flags, ones))

    def _place(self, part: Value, row: Value) -> Value:
        """The index of the first word of a row of a block."""
        lane = self.b.add(self.b.mul(part, self.lane_step), row)
        return self.b.add(self.b.mul(lane, _c(COLUMNS)), self.column)

    def _read_operands(self, idesc: Value, a: Value, b_descriptor: Value) -> None:
        b = self.b
        scratch = self.at(self.field(self.cluster, ClusterState, "scratch"))
        self.scratch = {
            name: self.offset(scratch, getattr(Scratch, name).offset)
            for name in ("a", "b", "a_exponents", "b_exponents", "zeros")
        }
        depth = _c(self._depth)
        steps = {"a": (depth, _c(1)), "b": (_c(1), self.n)}
        for name, descriptor, side, sign, major, code in (
            ("a", a, self.m, 13, 15, 7), ("b", b_descriptor, self.n, 14, 16, 10),
        ):  # fmt: skip
            rows = b.udiv(side, self.group)
            row_step, k_step = steps[name]
            shape = b.or_(b.shl(row_step, _c(32)), k_step)
            flip = b.shl(self.bits(idesc, sign, 1), _c(31))
            with self.loop(self.group) as index:
                skipped = self.plus(b.mul(b.mul(index, rows), row_step))
                room = b.gep(self.scratch[name], [skipped], source_etype=_FLOAT)
                status = b.call(self._gather, [
                    self.cta_at(index), descriptor, rows, self.bits(idesc, major, 1),
                    shape, flip, self.bits(idesc, code, 3), room,
                ])  # fmt: skip
                self.python_if(b.icmp_unsigned("!=", status, ir.Constant(I32, OK)))

    def _add(self, adds: Value, idesc: Value) -> None:
        b = self.b
        call = self.room(ir.ArrayType(I64, ctypes.sizeof(DotCall) // 8))

        def put(name: str, value: Value) -> None:
            value = b.ptrtoint(value, I64) if isinstance(value.type, ir.PointerType) else value
            self.set_field(call, DotCall, name, value)

        for name in ("a", "b", "a_exponents", "b_exponents"):
            put(name, self.scratch[name])
        for name, first in (("a", 7), ("b", 10)):
            least = [_c(f.min_exponent) for f in self._formats]
            put(f"min_{name}", b.select(self.is_set(idesc, first), least[1], least[0]))
        put("m", self.m)
        put("n", self.n)
        put("k", _c(self._depth))
        put("b_stride", self.n)
        put("d_stride", _c(COLUMNS))
        put("c_stride", b.select(adds, _c(COLUMNS), _c(0)))
        put("fraction", self._fraction)
        put("mask", _c(-1 << 29))
        b.call(self._module.globals["exponents"], [call])
        put("m", self.height)
        put("n", self.width)
        with self.loop(self.group) as index:
            cta = self.cta_at(index)
            words = self.field(cta, CtaState, "tensor")
            valid = self.field(cta, CtaState, "tensor_valid")
            top = b.mul(index, self.rows)
            with self.loop(self.count) as part:
                row = b.add(top, b.mul(part, self.row_step))
                column = b.mul(part, self.column_step)
                place = self._place(part, _c(0))
                d = b.add(words, b.shl(place, _c(2)))
                skipped = b.mul(row, _c(self._depth))
                for name, kind in (("a", _FLOAT), ("a_exponents", ir.IntType(16))):
                    put(name, b.gep(self.scratch[name], [skipped], source_etype=kind))
                for name, kind in (("b", _FLOAT), ("b_exponents", ir.IntType(16))):
                    put(name, b.gep(self.scratch[name], [column], source_etype=kind))
                put("d", d)
                put("c", b.select(adds, d, b.ptrtoint(self.scratch["zeros"], I64)))
                b.call(self._module.globals["sums"], [call])
                self._mark_written(b.add(valid, place))

    def _mark_written(self, first: Value) -> None:
        b = self.b
        flags = splat(ir.VectorType(I8, 8), 1)
        with self.loop(self.height) as row, self.loop(b.lshr(self.width, _c(3))) as chunk:
            at = self.plus(first, b.mul(row, _c(COLUMNS)), b.shl(chunk, _c(3)))
            b.store(flags, self.at(at), align=1)

    def _count(self) -> None:
        b = self.b
        flop = b.mul(b.mul(self.m, self.n), _c(2 * self._depth))
        for name, more in (("mma", _c(1)), ("mma_flop", flop), ("completed", _c(1))):
            held = self.field(self.cluster, ClusterState, name)
            self.set_field(self.cluster, ClusterState, name, b.add(held, more))


def emit_tensor_core(module: ir.Module) -> None:
    """Add the functions of ``MMA``, and those of ``dot_product``."""
    emit_dot(module)
    for kind in MMA:
        gather = _Gather(module, kind)
        gather.build()
        _Mma(module, kind, gather.function).build()
