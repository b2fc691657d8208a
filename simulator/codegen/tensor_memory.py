"""tcgen05.ld and tcgen05.st of the shape 32x32b: thread t holds lane t, register i column i."""

from __future__ import annotations

from llvmlite import ir

from simulator.codegen.emit import I32, I64, POINTER, Emitter, Value, splat
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


@effect("tcgen05.ld.sync.aligned.32x32b.x<n>.b32", n=_COUNTS)
def load(e: Emitter, *, n: str) -> None:
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
    with e.loop(LANES) as lane:
        row = e.b.gep(words, [_row(e, start, lane)], source_etype=I32)
        for i, place in enumerate(places):
            if place is not None:
                word = e.b.load(e.offset(row, 4 * i), typ=I32)
                e.b.store(word, e.b.gep(place, [lane], source_etype=I32))


@effect("tcgen05.st.sync.aligned.32x32b.x<n>.b32", n=_COUNTS)
def store(e: Emitter, *, n: str) -> None:
    count = int(n)
    start = _rectangle(e, count)
    words, valid = _base(e, "tensor"), _base(e, "tensor_valid")
    places = [
        e.source_place(2 + i) if width else e.spill(e.source(2 + i, "b32"))
        for i, width in enumerate(e.form.sources[2:])
    ]
    with e.loop(LANES) as lane:
        index = _row(e, start, lane)
        row = e.b.gep(words, [index], source_etype=I32)
        for i, place in enumerate(places):
            e.b.store(e.element(place, lane, I32), e.offset(row, 4 * i))
        flags = ir.VectorType(ir.IntType(8), count)
        e.b.store(splat(flags, 1), e.offset(valid, index), align=1)
