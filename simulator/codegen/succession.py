"""From a cluster that has ended to the next of its grid, in native code.

It does what ``Cluster.start`` and ``NativeCluster.take`` do, for clusters of which Python has to
know nothing in between: those that end with neither mbarriers nor TMEM. A grid of short CTAs
spends most of its time between them otherwise.
"""

from __future__ import annotations

from llvmlite import ir

from simulator.codegen.emit import (
    I8,
    I32,
    I64,
    OK,
    POINTER,
    Value,
    Writer,
    ctypes_size,
)
from simulator.codegen.state import ClusterState, CtaState, WarpState
from simulator.machine.barriers import ClusterBarrier, NamedBarrier
from simulator.machine.shared_memory import POISON

_SUCCEED = "succeed"
_NAMED_BARRIERS = 16


def emit_succession(module: ir.Module) -> Value:
    """Add ``i32 succeed(ClusterState*)``, which begins the next cluster if this one has ended.

    It needs a successor. Where nothing is begun it has changed nothing; it always gives ``OK``.
    """
    function = ir.Function(module, ir.FunctionType(I32, [POINTER]), _SUCCEED)
    _Succession(function).build()
    return function


class _Succession(Writer):
    def __init__(self, function: Value) -> None:
        super().__init__(function)
        self._state = function.args[0]
        self._stay = function.append_basic_block("stay")
        ir.IRBuilder(self._stay).ret(ir.Constant(I32, OK))

    def build(self) -> None:
        self._stay_unless_ended()
        with self.loop(self._get("cta_total")) as rank:
            self._reset_cta(self._cta(rank))
        with self.loop(self._get("warp_total")) as index:
            self._reset_warp(self._warp(index))
        self._reset_barrier()
        self._set("special_rows", self._row(self._get("cta_total")))
        self._set("successors", self._plus(self._get("successors"), -1))
        self._set("begun", self._plus(self._get("begun"), 1))
        for name, value in (("warps", "all_warps"), ("count", "warp_total")):
            self._set(name, self._get(value))
        self._set("number", ir.Constant(I64, 0))
        self.b.ret(ir.Constant(I32, OK))

    # 1. Whether the cluster has ended

    def _stay_unless_ended(self) -> None:
        with self.loop(self._get("warp_total")) as index:
            done = self.field(self._warp(index), WarpState, "done")
            self._stay_if(self.b.icmp_unsigned("==", done, ir.Constant(I64, 0)))
        with self.loop(self._get("cta_total")) as rank:
            cta = self._cta(rank)
            held = self.b.or_(
                self.field(cta, CtaState, "mbarriers"), self.field(cta, CtaState, "tensor")
            )
            self._stay_if(self.b.icmp_unsigned("!=", held, ir.Constant(I64, 0)))

    def _stay_if(self, condition: Value) -> None:
        onwards = self.function.append_basic_block("on")
        self.b.cbranch(condition, self._stay, onwards)
        self.b.position_at_end(onwards)

    # 2. Making all like new

    def _reset_cta(self, cta: Value) -> None:
        size = self.field(cta, CtaState, "shared_size")
        for name, byte in (("shared", POISON), ("shared_valid", 0)):
            self._fill(self.field(cta, CtaState, name), byte, size)
        self.set_field(cta, CtaState, "threads", self.field(cta, CtaState, "thread_total"))
        slots = self.offset(cta, CtaState.named.offset)
        with self.loop(_NAMED_BARRIERS) as number:
            held = self.b.load(self.b.gep(slots, [number], source_etype=I64), typ=I64)
            with self.b.if_then(self.b.icmp_unsigned("!=", held, ir.Constant(I64, 0))):
                barrier = self.b.inttoptr(held, POINTER)
                for name in ("arrived", "generation", "everyone"):
                    self.set_field(barrier, NamedBarrier, name, 0)
                self.set_field(barrier, NamedBarrier, "awaiting", -1)

    def _reset_warp(self, warp: Value) -> None:
        """Add up what it did; registers to zero, special registers of the CTA, first state."""
        for name in ("instructions", "polls"):
            more = self.b.add(self._get(f"past_{name}"), self.field(warp, WarpState, name))
            self._set(f"past_{name}", more)
        registers = self.field(warp, WarpState, "registers")
        room = self._get("register_bytes")
        self._fill(registers, 0, room)
        cta = self.b.inttoptr(self.field(warp, WarpState, "cta"), POINTER)
        row = self._row(self.field(cta, CtaState, "rank"))
        self._copy(self.b.add(registers, room), row, self._get("special_bytes"))
        state = self.b.ptrtoint(warp, I64)
        first = ir.Constant(I64, WarpState.nothing.offset)
        self._copy(state, self.field(warp, WarpState, "initial"), first)

    def _reset_barrier(self) -> None:
        barrier = self.b.inttoptr(self._get("barrier"), POINTER)
        for name in ("arrived", "generation", "threads"):
            self.set_field(barrier, ClusterBarrier, name, 0)
        with self.loop(self._get("cta_total")) as rank:
            more = self.field(self._cta(rank), CtaState, "thread_total")
            total = self.b.add(self.field(barrier, ClusterBarrier, "threads"), more)
            self.set_field(barrier, ClusterBarrier, "threads", total)

    # 3. Tools

    def _get(self, name: str) -> Value:
        return self.field(self._state, ClusterState, name)

    def _set(self, name: str, value: Value) -> None:
        self.set_field(self._state, ClusterState, name, value)

    def _plus(self, value: Value, more: int) -> Value:
        return self.b.add(value, ir.Constant(I64, more))

    def _row(self, rank: Value) -> Value:
        """The address of the special registers of a CTA of the next cluster."""
        return self.b.add(self._get("special_rows"), self.b.mul(rank, self._get("special_bytes")))

    def _cta(self, rank: Value) -> Value:
        first = self.b.inttoptr(self._get("cta_list"), POINTER)
        return self.offset(first, self.b.mul(rank, ir.Constant(I64, ctypes_size(CtaState))))

    def _warp(self, index: Value) -> Value:
        table = self.b.inttoptr(self._get("all_warps"), POINTER)
        return self.b.inttoptr(
            self.b.load(self.b.gep(table, [index], source_etype=I64), typ=I64), POINTER
        )

    def _fill(self, address: Value, byte: int, size: Value) -> None:
        kind = ir.FunctionType(ir.VoidType(), [POINTER, I8, I64, ir.IntType(1)])
        where = self.b.inttoptr(address, POINTER)
        self._call("llvm.memset.p0.i64", kind, [where, ir.Constant(I8, byte), size])

    def _copy(self, target: Value, source: Value, size: Value) -> None:
        kind = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, I64, ir.IntType(1)])
        places = [self.b.inttoptr(a, POINTER) for a in (target, source)]
        self._call("llvm.memcpy.p0.p0.i64", kind, [*places, size])

    def _call(self, name: str, kind: Value, arguments: list[Value]) -> None:
        """An intrinsic of memory, not volatile."""
        function = self.function.module.globals.get(name)
        if function is None:
            function = ir.Function(self.function.module, kind, name)
        self.b.call(function, [*arguments, ir.Constant(ir.IntType(1), 0)])
