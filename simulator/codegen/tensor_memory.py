"""tcgen05.ld and tcgen05.st of the shape 32x32b: thread t holds lane t, register i column i."""

from __future__ import annotations

from llvmlite import ir

from simulator.codegen.emit import I32, I64, POINTER, Emitter, Value, ints, splat
from simulator.codegen.state import CtaState
from simulator.codegen.translations import effect
from simulator.machine.tensor_memory import COLUMNS
from simulator.machine.warp import LANES

_COUNTS = tuple(str(1 << power) for power in range(8))


def _rectangle(e: Emitter, count: int) -> Value:
    """The index of the first word: of the warp's lane quarter, within one allocation."""
    e.python_if(e.b.icmp_unsigned("!=", e.mask, ir.Constant(I32, 0xFFFFFFFF)))
    address = e.b.zext(e.b.add(e.uniform(0, "b32"), e.b.trunc(e.immediate(1), I32)), I64)
    lane = e.b.lshr(address, ir.Constant(I64, 16))
    column = e.b.and_(address, ir.Constant(I64, 0xFFFF))
    quarter = e.b.and_(e.warp("rank"), ir.Constant(I64, 3))
    own = e.b.mul(quarter, ir.Constant(I64, LANES))
    e.python_if(e.b.icmp_unsigned("!=", lane, own))
    e.python_if(e.b.icmp_unsigned(">", column, ir.Constant(I64, COLUMNS - count)))
    owners = _base(e, "tensor_owner")
    e.python_if(e.b.icmp_unsigned("==", e.field(e.cta, CtaState, "tensor"), ir.Constant(I64, 0)))
    first = e.element(owners, column, I32)
    last = e.element(owners, e.b.add(column, ir.Constant(I64, count - 1)), I32)
    e.python_if(e.b.icmp_unsigned("==", first, ir.Constant(I32, 0)))
    e.python_if(e.b.icmp_unsigned("!=", first, last))
    return e.b.add(e.b.mul(lane, ir.Constant(I64, COLUMNS)), column)


def _base(e: Emitter, name: str) -> Value:
    return e.b.inttoptr(e.field(e.cta, CtaState, name), POINTER)


def _row(e: Emitter, start: Value, lane: Value) -> Value:
    """The index of the first word of a lane's row."""
    return e.b.add(start, e.b.mul(lane, ir.Constant(I64, COLUMNS)))


_SIDE = 8
"""Words of a square that is transposed at once, as many as a vector register of the host holds."""


def _plus(e: Emitter, lane: Value, more: int) -> Value:
    return e.b.add(lane, ir.Constant(I64, more))


def _chunk(e: Emitter, words: Value, row: Value, column: int) -> Value:
    """The address of a word: ``column`` from the start of a row."""
    return e.offset(e.b.gep(words, [row], source_etype=I32), 4 * column)


def _transposed(e: Emitter, rows: list[Value]) -> list[Value]:
    """A square of words given by rows, by columns: halves are exchanged, then quarters, ..."""
    rows, side = list(rows), len(rows)
    distance = side // 2
    while distance:
        for i in range(side):
            if not i & distance:
                a, b = rows[i], rows[i | distance]
                low = [j if not j & distance else side + j - distance for j in range(side)]
                high = [j + distance if not j & distance else side + j for j in range(side)]
                rows[i] = e.b.shuffle_vector(a, b, ir.Constant(ints(32, side), low))
                rows[i | distance] = e.b.shuffle_vector(a, b, ir.Constant(ints(32, side), high))
        distance //= 2
    return rows


@effect("tcgen05.ld.sync.aligned.32x32b.x<n>.b32", n=_COUNTS)
def _load(e: Emitter, *, n: str) -> None:
    count = int(n)
    start = _rectangle(e, count)
    words, valid = _base(e, "tensor"), _base(e, "tensor_valid")
    checked = e.b.icmp_unsigned("!=", e.field(e.cta, CtaState, "check_tensor"), ir.Constant(I64, 0))
    with e.b.if_then(checked, likely=True), e.loop(LANES) as lane:
        row = e.offset(valid, _row(e, start, lane))
        part = min(count, 8)
        whole = ir.Constant(ir.IntType(8 * part), int.from_bytes(b"\1" * part, "little"))
        for i in range(0, count, part):
            flags = e.b.load(e.offset(row, i), typ=whole.type, align=1)
            e.python_if(e.b.icmp_unsigned("!=", flags, whole))
    places = [e.target_place(i) if width else None for i, width in enumerate(e.form.targets)]
    side = min(count, _SIDE)
    with e.loop(LANES // side) as block:
        lane = e.b.mul(block, ir.Constant(I64, side))
        for column in range(0, count, side):
            rows = [
                _chunk(e, words, _row(e, start, _plus(e, lane, i)), column) for i in range(side)
            ]
            chunks = _transposed(e, [e.b.load(row, typ=ints(32, side), align=4) for row in rows])
            for chunk, place in zip(chunks, places[column : column + side], strict=True):
                if place is not None:
                    e.b.store(chunk, e.b.gep(place, [lane], source_etype=I32), align=4)


@effect("tcgen05.st.sync.aligned.32x32b.x<n>.b32", n=_COUNTS)
def _store(e: Emitter, *, n: str) -> None:
    count = int(n)
    start = _rectangle(e, count)
    words, valid = _base(e, "tensor"), _base(e, "tensor_valid")
    places = [
        e.source_place(2 + i) if width else e.spill(e.source(2 + i, "b32"))
        for i, width in enumerate(e.form.sources[2:])
    ]
    side = min(count, _SIDE)
    with e.loop(LANES // side) as block:
        lane = e.b.mul(block, ir.Constant(I64, side))
        for column in range(0, count, side):
            held = [
                e.b.gep(place, [lane], source_etype=I32) for place in places[column : column + side]
            ]
            rows = _transposed(e, [e.b.load(place, typ=ints(32, side), align=4) for place in held])
            for i, row in enumerate(rows):
                at = _chunk(e, words, _row(e, start, _plus(e, lane, i)), column)
                e.b.store(row, at, align=4)
    with e.loop(LANES) as lane:
        flags = ir.VectorType(ir.IntType(8), count)
        e.b.store(splat(flags, 1), e.offset(valid, _row(e, start, lane)), align=1)
