"""The tensor core's fused sums in native code: the same bits as ``numerics.accumulate.fused``.

Products of 8- and 16-bit numbers are exact in float32. A product is scaled so that the last bit
that is kept has the weight one, cut by a conversion to an integer, and added as an integer: four
instructions for eight products. Integers of 32 bits hold the sum of sixteen.

That holds while no product, scaled or not, leaves float32's range. Where one could (``bf16`` at
exponents that hardly occur), or an operand is infinite or NaN, eight elements at once are done in
float64, which has room for everything.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

from llvmlite import ir

from simulator.codegen.emit import I32, I64, POINTER, Value, fold, ints, splat

EXPONENTS, SUMS = "exponents", "sums"
ZERO_EXPONENT, NONFINITE_EXPONENT = -1000, 5000
"""Exponents, in the working arrays, of what has none; two of them fit into 16 bits."""

_NO_PRODUCT: Final = -600
_HIGHEST, _LOWEST = 126, -100
_CLAMP = 300
_EXACT_SUM: Final = 16
_DOUBLE, _FLOAT = ir.DoubleType(), ir.FloatType()
_F32_MIN_EXPONENT = -126


class DotCall(ctypes.Structure):
    """d [m, n] = a [m, k] b [k, n] + c [m, n]; k at most 32, n a multiple of 8, m and k at least 1.

    All are float32 at addresses, with row strides in elements; ``a``'s is k. ``a_exponents`` and
    ``b_exponents`` are room for 16-bit integers that lie as a and b do; the function ``exponents``
    fills it, and ``sums``, which may be called for parts, reads it. ``min_a`` and ``min_b``
    are the least exponents of the operands' formats, ``fraction`` counts the bits kept below the
    largest exponent, and ``mask`` is what is kept of a float64 result.
    """

    _fields_ = tuple((name, ctypes.c_int64) for name in (
        "a", "b", "c", "d", "b_stride", "c_stride", "d_stride", "m", "n", "k",
        "a_exponents", "b_exponents", "min_a", "min_b", "fraction", "mask",
    ))  # fmt: skip


class _Dot:
    """One function of a ``DotCall`` under construction."""

    def __init__(self, function: Value) -> None:
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        self.call = function.args[0]
        names = [field[0] for field in DotCall._fields_]
        held = {name: self.b.load(self._at(self.call, i, I64), typ=I64)
                for i, name in enumerate(names)}  # fmt: skip
        self.number = held
        self.pointer = {
            name: self.b.inttoptr(held[name], POINTER)
            for name in ("a", "b", "c", "d", "a_exponents", "b_exponents")
        }
        self.halves = self._halves()

    def _halves(self) -> tuple[Value, Value]:
        """How many products go to the first and to the second integer sum."""
        most = ir.Constant(I64, _EXACT_SUM)
        first = self.smaller(self.number["k"], most)
        return first, self.b.sub(self.number["k"], first)

    def smaller(self, x: Value, y: Value) -> Value:
        return self.b.select(self.b.icmp_signed("<", x, y), x, y)

    def larger(self, x: Value, y: Value) -> Value:
        return self.b.select(self.b.icmp_signed(">", x, y), x, y)

    def _at(self, pointer: Value, index: Value | int, kind: Value) -> Value:
        index = ir.Constant(I64, index) if isinstance(index, int) else index
        return self.b.gep(pointer, [index], source_etype=kind)

    def splat(self, scalar: Value, width: int) -> Value:
        kind = ir.VectorType(scalar.type, width)
        undefined = ir.Constant(kind, ir.Undefined)
        single = self.b.insert_element(undefined, scalar, ir.Constant(I32, 0))
        return self.b.shuffle_vector(single, undefined, ir.Constant(ints(32, width), [0] * width))

    def row(self, name: str, kind: Value, row: Value, stride: Value, column: Value) -> Value:
        """The address of an element."""
        place = self.b.add(self.b.mul(row, stride), column)
        return self._at(self.pointer[name], place, kind)

    def vector(
        self, name: str, kind: Value, place: tuple[Value, Value, Value], width: int
    ) -> Value:
        align = 2 if isinstance(kind, ir.IntType) else 4
        at = self.row(name, kind, *place)
        return self.b.load(at, typ=ir.VectorType(kind, width), align=align)

    def element_of_a(self, i: Value, k: Value) -> Value:
        return self.b.load(self.row("a", _FLOAT, i, self.number["k"], k), typ=_FLOAT)

    def largest_product(self, i: Value, j: Value, width: int) -> Value:
        """The largest exponent among the products, as integers of 32 bits."""
        kind = ints(16, width)

        def step(k: Value, best: list[Value]) -> list[Value]:
            row = self.vector("b_exponents", ir.IntType(16), (k, self.number["b_stride"], j), width)
            at = self.row("a_exponents", ir.IntType(16), i, self.number["k"], k)
            mine = self.b.load(at, typ=ir.IntType(16))
            return [self.larger(best[0], self.b.add(row, self.splat(mine, width)))]

        best = fold(self.b, self.number["k"], [splat(kind, 2 * ZERO_EXPONENT)], step)[0]
        return self.b.sext(best, ints(32, width))

    def addend(self, i: Value, j: Value, width: int) -> tuple[Value, Value]:
        """c, and the exponents of its elements."""
        c = self.vector("c", _FLOAT, (i, self.number["c_stride"], j), width)
        field = self.b.lshr(self.b.bitcast(c, ints(32, width)), splat(ints(32, width), 23))
        field = self.b.and_(field, splat(ints(32, width), 255))
        lowest = splat(ints(32, width), _F32_MIN_EXPONENT)
        return c, self.larger(self.b.sub(field, splat(ints(32, width), 127)), lowest)

    def power(self, exponent: Value, width: int) -> Value:
        """2 to ``exponent`` (32 bits) as float64."""
        biased = self.b.add(exponent, splat(ints(32, width), 1023))
        wide = self.b.zext(biased, ints(64, width))
        bits = self.b.shl(wide, splat(ints(64, width), 52))
        return self.b.bitcast(bits, ir.VectorType(_DOUBLE, width))

    def fraction(self, width: int) -> Value:
        return self.splat(self.b.trunc(self.number["fraction"], I32), width)

    def kept(self, total: Value, width: int) -> Value:
        """A float64 sum less the bits that are cut."""
        bits = self.b.bitcast(total, ints(64, width))
        cut = self.b.and_(bits, self.splat(self.number["mask"], width))
        return self.b.bitcast(cut, total.type)

    def store(self, i: Value, j: Value, value: Value) -> None:
        at = self.row("d", _FLOAT, i, self.number["d_stride"], j)
        self.b.store(value, at, align=4)

    def each(self, count: Value, body: Callable[[Value], None]) -> None:
        """Repeat ``body``; count at least 1."""

        def step(i: Value, _: list[Value]) -> list[Value]:
            body(i)
            return []

        fold(self.b, count, [], step)


class _Exponents(_Dot):
    """The function ``exponents``."""

    def __init__(self, module: ir.Module) -> None:
        self.function = ir.Function(module, ir.FunctionType(I32, [POINTER]), EXPONENTS)
        super().__init__(self.function)

    def build(self) -> None:
        self._fill("a", self.number["m"], self.number["k"], "k", "min_a")
        self._fill("b", self.number["k"], self.number["n"], "b_stride", "min_b")
        self.b.ret(ir.Constant(I32, 0))

    def _fill(
        self, name: str, rows: Value, columns: Value, stride: str, floor: str, width: int = 8
    ) -> None:
        """Fill a working array of exponents."""
        kind, narrow = ints(32, width), ints(16, width)
        least = self.splat(self.b.trunc(self.number[floor], I32), width)

        def chunk(row: Value, index: Value) -> None:
            column = self.b.mul(index, ir.Constant(I64, width))
            value = self.vector(name, _FLOAT, (row, self.number[stride], column), width)
            bits = self.b.and_(self.b.bitcast(value, kind), splat(kind, 0x7FFFFFFF))
            field = self.b.lshr(bits, splat(kind, 23))
            exponent = self.larger(self.b.sub(field, splat(kind, 127)), least)
            odd = self.b.icmp_unsigned("==", field, splat(kind, 255))
            exponent = self.b.select(odd, splat(kind, NONFINITE_EXPONENT), exponent)
            zero = self.b.icmp_unsigned("==", bits, splat(kind, 0))
            exponent = self.b.select(zero, splat(kind, ZERO_EXPONENT), exponent)
            at = self.row(f"{name}_exponents", ir.IntType(16), row, self.number[stride], column)
            self.b.store(self.b.trunc(exponent, narrow), at, align=2)

        chunks = self.b.lshr(columns, ir.Constant(I64, 3))
        self.each(rows, lambda row: self.each(chunks, lambda index: chunk(row, index)))


class _Sums(_Dot):
    """The function ``sums``."""

    def __init__(self, module: ir.Module, wide: Value) -> None:
        self.function = ir.Function(module, ir.FunctionType(I32, [POINTER]), SUMS)
        super().__init__(self.function)
        self._wide = wide

    def build(self) -> None:
        whole = self.b.and_(self.number["n"], ir.Constant(I64, -32))
        self._columns(ir.Constant(I64, 0), whole, 32)
        self._columns(whole, self.number["n"], 8)
        self.b.ret(ir.Constant(I32, 0))

    def _columns(self, start: Value, stop: Value, width: int) -> None:
        """All rows of the columns from ``start`` to ``stop``, ``width`` at once."""
        count = self.b.udiv(self.b.sub(stop, start), ir.Constant(I64, width))
        with self.b.if_then(self.b.icmp_signed(">", count, ir.Constant(I64, 0))):

            def block(index: Value) -> None:
                j = self.b.add(start, self.b.mul(index, ir.Constant(I64, width)))
                self.each(self.number["m"], lambda i: self._group(i, j, width))

            self.each(count, block)

    def _group(self, i: Value, j: Value, width: int) -> None:
        """``width`` elements of a row."""
        kind = ints(32, width)
        best = self.largest_product(i, j, width)
        c, exponent = self.addend(i, j, width)
        largest = self.larger(best, exponent)
        present = self.b.icmp_signed(">", best, splat(kind, _NO_PRODUCT))
        low = self.b.and_(present, self.b.icmp_signed("<", largest, splat(kind, _LOWEST)))
        high = self.b.icmp_signed(">", best, splat(kind, _HIGHEST))
        odd = self.b.icmp_signed(">", exponent, splat(kind, 127))
        refused = self.b.bitcast(self.b.or_(self.b.or_(low, high), odd), ir.IntType(width))
        outside = self.b.icmp_unsigned("!=", refused, ir.Constant(refused.type, 0))
        with self.b.if_else(outside, likely=False) as (slow, fast):
            with slow:
                for part in range(0, width, 8):
                    at = self.b.add(j, ir.Constant(I64, part))
                    self.b.call(self._wide, [self.call, i, at])
            with fast:
                total = self._sum(i, j, c, largest, width)
                # Without a product the sum is c, and a zero is positive.
                alone = self.b.fadd(c, splat(c.type, 0.0))
                self.store(i, j, self.b.select(present, total, alone))

    def _sum(self, i: Value, j: Value, c: Value, largest: Value, width: int) -> Value:
        kind, doubles = ints(32, width), ir.VectorType(_DOUBLE, width)
        shift = self.b.sub(self.fraction(width), largest)
        biased = self.b.add(shift, splat(kind, 127))
        scale = self.b.bitcast(self.b.shl(biased, splat(kind, 23)), c.type)
        start = ir.Constant(I64, 0)
        total = self.b.sitofp(self.b.fptosi(self.b.fmul(c, scale), kind), doubles)
        first, second = self.halves
        total = self._add_part(total, (i, j, start, first), scale, width)
        before = self.b.block
        with self.b.if_then(self.b.icmp_signed(">", second, ir.Constant(I64, 0))):
            more = self._add_part(total, (i, j, first, second), scale, width)
            after = self.b.block
        joined = self.b.phi(doubles)
        joined.add_incoming(total, before)
        joined.add_incoming(more, after)
        unscaled = self.b.fmul(joined, self.power(self.b.neg(shift), width))
        return self.b.fptrunc(self.kept(unscaled, width), c.type)

    def _add_part(
        self, total: Value, part: tuple[Value, Value, Value, Value], scale: Value, width: int
    ) -> Value:
        """``total`` and ``count`` products from ``first`` on, summed as integers."""
        i, j, first, count = part

        def step(index: Value, sums: list[Value]) -> list[Value]:
            k = self.b.add(first, index)
            row = self.vector("b", _FLOAT, (k, self.number["b_stride"], j), width)
            product = self.b.fmul(row, self.splat(self.element_of_a(i, k), width))
            term = self.b.fptosi(self.b.fmul(product, scale), ints(32, width))
            return [self.b.add(sums[0], term)]

        part_sum = fold(self.b, count, [splat(ints(32, width), 0)], step)[0]
        return self.b.fadd(total, self.b.sitofp(part_sum, total.type))


class _Wide(_Dot):
    """``dot_wide(call, i, j)``: eight elements of row i from column j on, in float64."""

    WIDTH = 8

    def __init__(self, module: ir.Module) -> None:
        signature = ir.FunctionType(ir.VoidType(), [POINTER, I64, I64])
        self.function = ir.Function(module, signature, "dot_wide")
        self.function.attributes.add("noinline")
        super().__init__(self.function)
        self._module = module

    def build(self) -> None:
        width = self.WIDTH
        _, i, j = self.function.args
        kind, doubles = ints(32, width), ir.VectorType(_DOUBLE, width)
        c, exponent = self.addend(i, j, width)
        largest = self.larger(self.largest_product(i, j, width), exponent)
        largest = self.smaller(largest, splat(kind, _CLAMP))
        shift = self.b.sub(self.fraction(width), largest)
        scale = self.power(shift, width)

        def step(k: Value, sums: list[Value]) -> list[Value]:
            row = self.vector("b", _FLOAT, (k, self.number["b_stride"], j), width)
            mine = self.splat(self.element_of_a(i, k), width)
            product = self.b.fmul(self.b.fpext(row, doubles), self.b.fpext(mine, doubles))
            return [self.b.fadd(sums[0], self._trunc(self.b.fmul(product, scale)))]

        first = self._trunc(self.b.fmul(self.b.fpext(c, doubles), scale))
        total = fold(self.b, self.number["k"], [first], step)[0]
        total = self.b.fadd(total, splat(doubles, 0.0))
        self.store(i, j, self._rounded(self.b.fmul(total, self.power(self.b.neg(shift), width))))
        self.b.ret_void()

    def _trunc(self, value: Value) -> Value:
        name = f"llvm.trunc.v{self.WIDTH}f64"
        function = self._module.globals.get(name)
        if function is None:
            function = ir.Function(self._module, ir.FunctionType(value.type, [value.type]), name)
        return self.b.call(function, [value])

    def _rounded(self, total: Value) -> Value:
        """Cut toward zero to float32, also below its normal numbers; one NaN."""
        width = self.WIDTH
        kept = self.kept(total, width)
        unit = 2.0**-149
        tiny = self.b.fmul(
            self._trunc(self.b.fmul(total, splat(total.type, 1 / unit))), splat(total.type, unit)
        )
        bits = self.b.and_(
            self.b.bitcast(total, ints(64, width)), splat(ints(64, width), (1 << 63) - 1)
        )
        small = self.b.icmp_unsigned("<", bits, splat(ints(64, width), (1023 - 126) << 52))
        value = self.b.fptrunc(self.b.select(small, tiny, kept), ir.VectorType(_FLOAT, width))
        nan = self.b.bitcast(splat(ints(32, width), 0x7FFFFFFF), value.type)
        return self.b.select(self.b.fcmp_unordered("uno", total, total), nan, value)


def emit_dot(module: ir.Module) -> None:
    """Add the functions ``i32 exponents(DotCall*)`` and ``i32 sums(DotCall*)``."""
    wide = _Wide(module)
    wide.build()
    _Exponents(module).build()
    _Sums(module, wide.function).build()
