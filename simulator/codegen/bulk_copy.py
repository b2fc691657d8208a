"""Bulk tensor loads in native code: boxes of whole 16-byte chunks out of tiled tensors.

``machine.tensor_map`` says in words what a tensor map holds and where the bytes of a box go.
Everything else, such as a box that begins outside its tensor, is left to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir

from simulator.codegen.barriers import mbarrier_of, settle
from simulator.codegen.emit import I8, I32, I64, OK, POINTER, Value, WarpWriter, ints, splat
from simulator.codegen.memory import find_region
from simulator.codegen.state import ClusterState, CtaState, RegionState
from simulator.machine import tensor_map
from simulator.machine.barriers import MAX_COUNT, Mbarrier
from simulator.machine.memory_map import OFFSET_MASK, PARAM_WINDOW

TMA_LOAD: Final = "tma_load"
"""The function ``i32 (WarpState*, i64 map, i64 target, i64 barrier, i64* coordinates, i64
dimensions, i64 asked)``. There are five coordinates, those beyond the dimensions 0. If ``asked`` is
not 0, nothing is done yet: the answer is whether so many boxes like this one can be loaded."""

RANKS: Final = 5
_CHUNK: Final = 16
_LINE: Final = 128
_SIZES: Final = {code: size for code, (_, size) in tensor_map._ELEMENTS.items()}
_UNHANDLED_FLAGS: Final = ~tensor_map._KNOWN_FLAGS & 0xFFFFFFFF | 1 << 15 | 1 << 16 | 1 << 19
_TILE = ints(8, _CHUNK)


def _c(value: int) -> Value:
    return ir.Constant(I64, value)


class _Load(WarpWriter):
    """The function ``TMA_LOAD``."""

    def __init__(self, module: ir.Module) -> None:
        signature = ir.FunctionType(I32, [POINTER, I64, I64, I64, POINTER, I64, I64])
        super().__init__(ir.Function(module, signature, TMA_LOAD))

    def build(self) -> None:
        _, place, target, barrier, coordinates, dimensions, asked = self.function.args
        self._read_map(place, dimensions)
        self._clip(coordinates)
        region = self._region()
        self._destination(target)
        held = self._barrier(barrier, asked)
        valid = self.field(region, RegionState, "valid")
        shifted = self.b.sub(valid, self.field(region, RegionState, "base"))
        with self.b.if_then(self.b.icmp_unsigned("!=", valid, _c(0)), likely=False):
            self._each_row(lambda row: self._require_written(row, shifted))
        with self.b.if_then(self.b.icmp_unsigned("==", asked, _c(0))):
            self._each_row(self._copy)
            self._finish(held)
        self.b.ret(ir.Constant(I32, OK))

    # 1. What the map says

    def _read_map(self, place: Value, dimensions: Value) -> None:
        b = self.b
        start = b.sub(place, _c(PARAM_WINDOW))
        room = b.sub(self.field(self.cta, CtaState, "parameter_bytes"),
                     _c(tensor_map.MEANINGFUL_BYTES))  # fmt: skip
        self.python_if(b.icmp_signed("<", room, _c(0)))
        self.python_if(b.icmp_unsigned(">", start, room))
        base = self.offset(b.inttoptr(self.field(self.cta, CtaState, "parameters"), POINTER), start)

        def word(at: int, kind: Value = I32) -> Value:
            held = b.load(self.offset(base, at), typ=kind, align=1)
            return held if kind == I64 else b.zext(held, I64)

        self.address, flags, high = word(0, I64), word(8), word(28)
        self.python_if(b.icmp_unsigned("!=", b.and_(flags, _c(_UNHANDLED_FLAGS)), _c(0)))
        self.python_if(b.icmp_unsigned("!=", b.and_(word(52), _c(0xFFFFFF)), _c(0)))
        rank = b.add(b.and_(b.lshr(flags, _c(4)), _c(7)), _c(1))
        self.python_if(b.icmp_unsigned("!=", rank, dimensions))
        size = self._element_bytes(b.and_(b.lshr(flags, _c(7)), _c(15)))
        code = b.and_(b.lshr(flags, _c(13)), _c(3))
        self.pattern = b.sub(b.shl(_c(1), code), _c(1))
        self.dims: list[Value] = []
        self.box: list[Value] = []
        self.strides = [size]
        for d in range(RANKS):
            has = b.icmp_unsigned("<", _c(d), rank)
            for found, value in ((self.dims, word(32 + 4 * d)), (self.box, word(55 + d, I8))):
                found.append(b.select(has, b.add(value, _c(1)), _c(1)))
            if d:
                upper = b.shl(b.and_(b.lshr(high, _c(4 * (d - 1))), _c(15)), _c(32))
                stride = b.shl(b.or_(word(12 + 4 * (d - 1)), upper), _c(4))
                self.strides.append(b.select(has, stride, _c(0)))
        self.row_bytes = b.mul(self.box[0], size)
        self.python_if(b.icmp_unsigned("!=", b.and_(self.row_bytes, _c(_CHUNK - 1)), _c(0)))
        too_long = b.icmp_unsigned(">", self.row_bytes, b.shl(_c(_CHUNK), code))
        self.python_if(b.and_(too_long, b.icmp_unsigned("!=", code, _c(0))))
        self.box_bytes = self.row_bytes
        for count in self.box[1:]:
            self.box_bytes = b.mul(self.box_bytes, count)

    def _element_bytes(self, code: Value) -> Value:
        known, packed = 0, 0
        for number, size in _SIZES.items():
            known |= 1 << number
            packed |= (size.bit_length() - 1) << 4 * number
        b = self.b
        self.python_if(b.icmp_unsigned("==", b.and_(b.lshr(_c(known), code), _c(1)), _c(0)))
        exponent = b.and_(b.lshr(_c(packed), b.shl(code, _c(2))), _c(15))
        return b.shl(_c(1), exponent)

    # 2. Where the box is and goes

    def _clip(self, coordinates: Value) -> None:
        """How much of the box lies inside, rows in whole chunks; where it begins and ends."""
        b = self.b
        self.inside = []
        self.start, self.stop = self.address, self.address
        for d in range(RANKS):
            c = self.element(coordinates, _c(d), I64)
            self.python_if(b.icmp_unsigned(">=", c, self.dims[d]))
            left = b.sub(self.dims[d], c)
            inside = b.select(b.icmp_unsigned("<", left, self.box[d]), left, self.box[d])
            self.inside.append(inside)
            first = b.mul(c, self.strides[d])
            self.start, self.stop = b.add(self.start, first), b.add(self.stop, first)
            if d:
                more = b.mul(b.sub(inside, _c(1)), self.strides[d])
                self.stop = b.add(self.stop, more)
        self.inner_bytes = b.mul(self.inside[0], self.strides[0])
        self.python_if(b.icmp_unsigned("!=", b.and_(self.inner_bytes, _c(_CHUNK - 1)), _c(0)))
        self.stop = b.add(self.stop, self.inner_bytes)

    def _region(self) -> Value:
        b = self.b
        region, start, end = find_region(self, self.address)
        self.python_if(b.icmp_unsigned("<", self.start, start))
        self.python_if(b.icmp_unsigned(">", self.stop, end))
        return region

    def _destination(self, target: Value) -> None:
        b = self.b
        self.target = self.cta_of(b.trunc(target, I32))
        self.to = b.and_(target, _c(OFFSET_MASK))
        self.python_if(b.icmp_unsigned("!=", b.and_(self.to, _c(_LINE - 1)), _c(0)))
        beyond = b.icmp_unsigned(
            ">", b.add(self.to, self.box_bytes), self.field(self.target, CtaState, "shared_size")
        )
        self.python_if(beyond)

    def _barrier(self, address: Value, asked: Value) -> Value:
        """The mbarrier, which can take the bytes of all boxes."""
        b = self.b
        cta = self.cta_of(b.trunc(address, I32))
        offset = b.and_(address, _c(OFFSET_MASK))
        self.python_if(b.icmp_unsigned("!=", b.and_(offset, _c(7)), _c(0)))
        held = mbarrier_of(self, cta, offset)
        tx = self.field(held, Mbarrier, "tx")
        least = b.sub(tx, b.mul(self.box_bytes, asked))
        self.python_if(b.icmp_signed("<", least, _c(-MAX_COUNT)))
        self.python_if(b.icmp_signed(">", tx, _c(MAX_COUNT)))
        return held

    # 3. The copy

    def _each_row(self, body: Callable[[dict[str, Any]], None]) -> None:
        """Do something for each row of the box, in the order of shared memory."""
        b = self.b

        def nest(d: int, index: Value, source: Value, inside: Value) -> None:
            if d == 0:
                body({"index": index, "source": source, "inside": inside})
                return
            with self.loop(self.box[d]) as i:
                nest(
                    d - 1,
                    b.add(b.mul(index, self.box[d]), i),
                    b.add(source, b.mul(i, self.strides[d])),
                    b.and_(inside, b.icmp_unsigned("<", i, self.inside[d])),
                )

        nest(RANKS - 1, _c(0), self.start, ir.Constant(ir.IntType(1), 1))

    def _require_written(self, row: dict[str, Any], valid: Value) -> None:
        b = self.b
        with b.if_then(row["inside"]), self.loop(b.lshr(self.inner_bytes, _c(4))) as chunk:
            at = b.add(b.add(valid, row["source"]), b.shl(chunk, _c(4)))
            flags = b.load(b.inttoptr(at, POINTER), typ=ir.IntType(128), align=1)
            whole = int.from_bytes(b"\1" * _CHUNK, "little")
            self.python_if(b.icmp_unsigned("!=", flags, ir.Constant(flags.type, whole)))

    def _copy(self, row: dict[str, Any]) -> None:
        b = self.b
        shared = self.field(self.target, CtaState, "shared")
        valid = self.field(self.target, CtaState, "shared_valid")
        first = b.add(self.to, b.mul(row["index"], self.row_bytes))
        nothing = self.room(_TILE)
        b.store(splat(_TILE, 0), nothing)
        zeros = b.ptrtoint(nothing, I64)
        with self.loop(b.lshr(self.row_bytes, _c(4))) as chunk:
            skipped = b.shl(chunk, _c(4))
            dense = b.add(first, skipped)
            moved = b.shl(b.and_(b.lshr(dense, _c(7)), self.pattern), _c(4))
            place = b.xor(dense, moved)
            inside = b.and_(row["inside"], b.icmp_unsigned("<", skipped, self.inner_bytes))
            source = b.select(inside, b.add(row["source"], skipped), zeros)
            data = b.load(b.inttoptr(source, POINTER), typ=_TILE, align=1)
            b.store(data, b.inttoptr(b.add(shared, place), POINTER), align=1)
            b.store(splat(_TILE, 1), b.inttoptr(b.add(valid, place), POINTER), align=1)

    def _finish(self, barrier: Value) -> None:
        b = self.b
        tx = b.sub(self.field(barrier, Mbarrier, "tx"), self.box_bytes)
        self.set_field(barrier, Mbarrier, "tx", tx)
        settle(self, barrier, self.field(barrier, Mbarrier, "pending"))
        cluster = b.inttoptr(self.warp("cluster"), POINTER)
        more = {"tma_loads": _c(1), "tma_load_bytes": self.box_bytes, "completed": _c(1)}
        for name, value in more.items():
            held = self.field(cluster, ClusterState, name)
            self.set_field(cluster, ClusterState, name, b.add(held, value))


def emit_bulk_copy(module: ir.Module) -> None:
    """Add the function ``TMA_LOAD``."""
    _Load(module).build()
