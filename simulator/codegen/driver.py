"""The loop that runs a warp: basic blocks, divergence and turns, in native code.

It does what ``Interpreter._turn`` does. Each instruction is a record (see ``state.HEADER_WORDS``)
whose function is called; Python is asked for what native code leaves to it.
"""

from __future__ import annotations

import ctypes
from typing import Any

from llvmlite import ir

from simulator.codegen.emit import ADDRESS_LIMIT, FUNCTION, I32, I64, OK, POINTER, PYTHON, Value
from simulator.codegen.state import (
    AT_BRANCH,
    AT_EXIT,
    BEGIN_TURN,
    BLOCKED,
    BRANCH,
    CONTINUE_TURN,
    DONE_ROUND,
    DONE_TURN,
    EXITED,
    GOTO,
    NEEDS_PYTHON,
    WAIT,
    BlockState,
    ClusterState,
    CtaState,
    StackEntry,
    WarpState,
)
from simulator.codegen.succession import emit_succession
from simulator.machine.barriers import ClusterBarrier, NamedBarrier
from simulator.machine.warp import LANES

RUN_WARP, RUN_ROUNDS = "run_warp", "run_rounds"
_SIGNATURE = ir.FunctionType(I32, [POINTER])


class _Builder:
    """A function of one structure's address, and small tools to write it."""

    def __init__(self, module: ir.Module, symbol: str, names: tuple[str, ...]) -> None:
        self.function = ir.Function(module, _SIGNATURE, symbol)
        self.state = self.function.args[0]
        self.blocks = {name: self.function.append_basic_block(name) for name in names}
        self.b = ir.IRBuilder(self.blocks[names[0]])

    def at(self, name: str) -> None:
        self.b.position_at_end(self.blocks[name])

    def go(self, name: str) -> None:
        self.b.branch(self.blocks[name])

    def choose(self, condition: Value, yes: str, no: str) -> None:
        self.b.cbranch(condition, self.blocks[yes], self.blocks[no])

    def field(self, pointer: Value, structure: Any, name: str) -> Value:
        offset = ir.Constant(I64, getattr(structure, name).offset)
        return self.b.load(self.b.gep(pointer, [offset], source_etype=ir.IntType(8)), typ=I64)

    def set_field(self, pointer: Value, structure: Any, name: str, value: Value | int) -> None:
        value = ir.Constant(I64, value) if isinstance(value, int) else value
        offset = ir.Constant(I64, getattr(structure, name).offset)
        self.b.store(value, self.b.gep(pointer, [offset], source_etype=ir.IntType(8)))

    def equal(self, a: Value, b: Value | int) -> Value:
        return self.b.icmp_signed("==", a, ir.Constant(I64, b) if isinstance(b, int) else b)

    def leave(self, code: int) -> None:
        self.b.ret(ir.Constant(I32, code))


class _Driver(_Builder):
    """Builds the function ``i32 run_warp(WarpState*)``."""

    def __init__(self, module: ir.Module) -> None:
        names = ("entry", "top", "join", "pop", "joined", "spent", "at_exit", "enter", "begin",
                 "wait", "instruction", "call", "python", "blocked", "waited", "end")  # fmt: skip
        super().__init__(module, RUN_WARP, names)

    def warp(self, name: str) -> Value:
        return self.field(self.state, WarpState, name)

    def set_warp(self, name: str, value: Value | int) -> None:
        self.set_field(self.state, WarpState, name, value)

    def add_warp(self, name: str, value: Value | int) -> None:
        value = ir.Constant(I64, value) if isinstance(value, int) else value
        self.set_warp(name, self.b.add(self.warp(name), value))

    def stack_entry(self, depth: Value) -> Value:
        start = ir.Constant(I64, WarpState.stack.offset)
        place = self.b.add(start, self.b.mul(depth, ir.Constant(I64, ctypes.sizeof(StackEntry))))
        return self.b.gep(self.state, [place], source_etype=ir.IntType(8))

    def push(self, block: Value, reconverges: Value, mask: Value) -> None:
        entry = self.stack_entry(self.warp("depth"))
        for name, value in (("block", block), ("reconverges", reconverges), ("mask", mask)):
            self.set_field(entry, StackEntry, name, value)
        self.add_warp("depth", 1)

    def count(self, block: Value, name: str) -> None:
        """One more in a counter of a block."""
        counted = self.b.add(self.field(block, BlockState, name), ir.Constant(I64, 1))
        self.set_field(block, BlockState, name, counted)

    def note_progress(self) -> None:
        """``advanced = advanced or not polling``."""
        moved = self.b.zext(self.equal(self.warp("polling"), 0), I64)
        self.set_warp("advanced", self.b.or_(self.warp("advanced"), moved))

    # The loop

    def build(self) -> None:
        self._turns()
        self._instructions(self._enter())
        self._end()

    def _turns(self) -> None:
        """Budget, reconvergence and the end of the kernel."""
        self._resume = self.warp("resume")
        self.choose(self.equal(self._resume, 0), "top", "begin")
        self.at("top")
        self.choose(
            self.b.icmp_signed("<=", self.warp("budget"), ir.Constant(I64, 0)), "spent", "join"
        )
        self.at("spent")
        self.leave(DONE_TURN)
        self.at("join")
        self.choose(self.equal(self.warp("block"), self.warp("reconverges")), "pop", "joined")
        self.at("pop")
        self._pop()
        self.go("join")
        self.at("joined")
        self.choose(self.equal(self.warp("block"), self.warp("block_count")), "at_exit", "enter")
        self.at("at_exit")
        self._exit()

    def _exit(self) -> None:
        """The active lanes leave; lanes that wait on the stack go on, if any live."""
        mask = self.warp("mask")
        cta = self.b.inttoptr(self.warp("cta"), POINTER)
        self._refuse_exit(cta)
        self.set_warp("alive", self.b.and_(self.warp("alive"), self.b.not_(mask)))
        lanes = self.b.ctpop(mask)
        self.set_field(
            cta, CtaState, "threads", self.b.sub(self.field(cta, CtaState, "threads"), lanes)
        )
        cluster = self.b.inttoptr(self.warp("cluster"), POINTER)
        barrier = self.b.inttoptr(self.field(cluster, ClusterState, "barrier"), POINTER)
        threads = self.b.sub(self.field(barrier, ClusterBarrier, "threads"), lanes)
        self.set_field(barrier, ClusterBarrier, "threads", threads)
        arrived = self.field(barrier, ClusterBarrier, "arrived")
        opens = self.b.and_(self.b.icmp_signed("!=", arrived, ir.Constant(I64, 0)),
                            self.b.icmp_signed(">=", arrived, threads))  # fmt: skip
        with self.b.if_then(opens):
            generation = self.field(barrier, ClusterBarrier, "generation")
            self.set_field(barrier, ClusterBarrier, "arrived", 0)
            self.set_field(
                barrier, ClusterBarrier, "generation", self.b.add(generation, ir.Constant(I64, 1))
            )
            self._note_event(cluster)
        self._note_event(cluster)
        look, take, gone = (self.function.append_basic_block(n) for n in ("look", "take", "gone"))
        self.b.branch(look)
        self.b.position_at_end(look)
        self.b.cbranch(self.equal(self.warp("depth"), 0), gone, take)
        self.b.position_at_end(take)
        self._pop()
        self.b.cbranch(self.equal(self.warp("mask"), 0), look, self.blocks["top"])
        self.b.position_at_end(gone)
        self.set_warp("done", 1)
        self.leave(EXITED)

    def _refuse_exit(self, cta: Value) -> None:
        """Leave it to Python if a barrier awaits the lanes, or has counted them, or one watches."""
        uncommon = self.b.icmp_signed(">=", self.warp("cluster_ticket"), ir.Constant(I64, 0))
        cluster = self.b.inttoptr(self.warp("cluster"), POINTER)
        watched = self.field(cluster, ClusterState, "watched")
        uncommon = self.b.or_(uncommon, self.b.not_(self.equal(watched, 0)))
        for number in range(16):
            held = self.load_named(cta, number)
            exists = self.b.icmp_signed("!=", held, ir.Constant(I64, 0))
            own = self.b.ptrtoint(self.offset_of(self.state, WarpState, "nothing"), I64)
            barrier = self.b.inttoptr(self.b.select(exists, held, own), POINTER)
            everyone = self.field(barrier, NamedBarrier, "everyone")
            awaiting = self.field(barrier, NamedBarrier, "awaiting")
            awaits = self.b.and_(
                self.b.icmp_signed("!=", everyone, ir.Constant(I64, 0)),
                self.b.icmp_signed(">=", awaiting, ir.Constant(I64, 0)),
            )
            uncommon = self.b.or_(uncommon, self.b.and_(exists, awaits))
        refuse, onwards = (
            self.function.append_basic_block(n) for n in ("refuse_exit", "leave_now")
        )
        self.b.cbranch(uncommon, refuse, onwards)
        self.b.position_at_end(refuse)
        self.leave(AT_EXIT)
        self.b.position_at_end(onwards)

    def load_named(self, cta: Value, number: int) -> Value:
        """The address of a CTA's barrier, or 0."""
        place = ir.Constant(I64, CtaState.named.offset + 8 * number)
        return self.b.load(self.b.gep(cta, [place], source_etype=ir.IntType(8)), typ=I64)

    def offset_of(self, pointer: Value, structure: Any, name: str) -> Value:
        """The address of a field."""
        place = ir.Constant(I64, getattr(structure, name).offset)
        return self.b.gep(pointer, [place], source_etype=ir.IntType(8))

    def _note_event(self, cluster: Value) -> None:
        events = self.field(cluster, ClusterState, "events")
        self.set_field(cluster, ClusterState, "events", self.b.add(events, ir.Constant(I64, 1)))

    def _pop(self) -> None:
        """Continue with the lanes on top of the stack, less those that have exited."""
        self.add_warp("depth", -1)
        entry = self.stack_entry(self.warp("depth"))
        for name in ("block", "reconverges"):
            self.set_warp(name, self.field(entry, StackEntry, name))
        self.set_warp(
            "mask", self.b.and_(self.field(entry, StackEntry, "mask"), self.warp("alive"))
        )

    def block(self) -> Value:
        """The ``BlockState`` of the current block."""
        table = self.b.inttoptr(self.warp("blocks"), POINTER)
        size = ir.Constant(I64, ctypes.sizeof(BlockState))
        offset = self.b.mul(self.warp("block"), size)
        return self.b.gep(table, [offset], source_etype=ir.IntType(8))

    def _enter(self) -> Value:
        """Waits and the start of blocks; the address of the first record to run."""
        self.at("enter")
        self.add_warp("budget", -1)
        block = self.block()
        fresh = self.field(block, BlockState, "code")
        self.choose(self.equal(self.field(block, BlockState, "kind"), WAIT), "wait", "begin")
        self.at("begin")
        resumed = self.b.phi(I64)
        resumed.add_incoming(self._resume, self.blocks["entry"])
        resumed.add_incoming(fresh, self.blocks["enter"])
        self.set_warp("resume", 0)
        self.current = self.block()
        self.last = self.field(self.current, BlockState, "end")
        self.go("instruction")
        self.at("wait")
        self.add_warp("polls", 1)
        code = self.b.inttoptr(fresh, POINTER)
        result = self._call(code)
        switch = self.b.switch(result, self.blocks["python"])
        switch.add_case(ir.Constant(I32, OK), self.blocks["waited"])
        self.at("python")
        python = self.b.icmp_signed("==", result, ir.Constant(I32, PYTHON))
        self.set_warp("blocked", self.b.zext(self.b.not_(python), I64))
        self.b.ret(self.b.select(python, ir.Constant(I32, NEEDS_PYTHON), ir.Constant(I32, BLOCKED)))
        self.at("waited")
        self.count(block, "executed")
        self.add_warp("instructions", 1)
        self.set_warp("block", self.field(block, BlockState, "target"))
        self.note_progress()
        self.go("top")
        return resumed

    def _call(self, code: Value) -> Value:
        function = self.b.inttoptr(self.b.load(code, typ=I64), FUNCTION.as_pointer())
        return self.b.call(function, [self.state, code])

    def _instructions(self, start: Value) -> None:
        self.at("instruction")
        code = self.b.phi(I64)
        code.add_incoming(start, self.blocks["begin"])
        self.choose(self.equal(code, self.last), "end", "call")
        self.at("call")
        record = self.b.inttoptr(code, POINTER)
        result = self._call(record)
        size = self.b.load(self.b.gep(record, [ir.Constant(I64, 1)], source_etype=I64), typ=I64)
        code.add_incoming(self.b.add(code, size), self.blocks["call"])
        self.choose(
            self.b.icmp_signed("==", result, ir.Constant(I32, OK)), "instruction", "blocked"
        )
        self.at("blocked")
        self.set_warp("resume", code)
        self.leave(NEEDS_PYTHON)

    # Terminators

    def _end(self) -> None:
        self.at("end")
        self.count(self.current, "executed")
        self.add_warp("instructions", self.field(self.current, BlockState, "count"))
        self.note_progress()
        polling = self.warp("polling")
        left = self.b.sub(polling, ir.Constant(I64, 1))
        self.set_warp("polling", self.b.select(self.equal(polling, 0), polling, left))
        kind = self.field(self.current, BlockState, "kind")
        goto, branch, leave = (
            self.function.append_basic_block(n) for n in ("goto", "branch", "leave")
        )
        switch = self.b.switch(kind, leave)
        switch.add_case(ir.Constant(I64, GOTO), goto)
        switch.add_case(ir.Constant(I64, BRANCH), branch)
        self.b.position_at_end(goto)
        self.set_warp("block", self.field(self.current, BlockState, "target"))
        self.go("top")
        self.b.position_at_end(leave)
        self.set_warp("block", self.warp("block_count"))
        self.add_warp("instructions", 1)
        self.go("at_exit")
        self.b.position_at_end(branch)
        self._branch()

    def _branch(self) -> None:
        """Follow a conditional branch, pushing the lanes that go the other way."""
        block = self.current
        held = self._predicate(block)
        negated = self.b.icmp_signed(
            "!=", self.field(block, BlockState, "negated"), ir.Constant(I64, 0)
        )
        bits = self.b.select(negated, self.b.not_(held), held)
        mask = self.warp("mask")
        taken = self.b.and_(self.b.zext(bits, I64), mask)
        all_, none, some, refuse, split, one = (
            self.function.append_basic_block(n)
            for n in ("all", "none", "some", "refuse", "split", "one")
        )
        self.b.cbranch(self.b.icmp_signed("==", taken, mask), all_, one)
        self.b.position_at_end(one)
        self.b.cbranch(self.equal(taken, 0), none, some)
        self.b.position_at_end(all_)
        self.count(block, "taken")
        self._follow(block, "target")
        self.b.position_at_end(none)
        self.count(block, "passed")
        self._follow(block, "otherwise")
        self.b.position_at_end(some)
        uniform = self.b.icmp_signed(
            "!=", self.field(block, BlockState, "uniform"), ir.Constant(I64, 0)
        )
        self.b.cbranch(uniform, refuse, split)
        self.b.position_at_end(refuse)
        self.leave(AT_BRANCH)
        self.b.position_at_end(split)
        self.count(block, "taken")
        self.count(block, "passed")
        self.add_warp("instructions", 1)
        meet = self.field(block, BlockState, "reconverges")
        self.push(meet, self.warp("reconverges"), mask)
        self.push(
            self.field(block, BlockState, "otherwise"), meet, self.b.and_(mask, self.b.not_(taken))
        )
        self.set_warp("block", self.field(block, BlockState, "target"))
        self.set_warp("reconverges", meet)
        self.set_warp("mask", taken)
        self.go("top")

    def _follow(self, block: Value, where: str) -> None:
        self.add_warp("instructions", 1)
        self.set_warp("block", self.field(block, BlockState, where))
        self.go("top")

    def _predicate(self, block: Value) -> Value:
        """The branch's predicate register as 32 bits."""
        word = self.field(block, BlockState, "predicate")
        local = self.b.icmp_unsigned(">=", word, ir.Constant(I64, ADDRESS_LIMIT))
        base = self.b.select(local, ir.Constant(I64, 0), self.warp("registers"))
        place = self.b.add(base, word)
        flags = ir.VectorType(ir.IntType(8), LANES)
        held = self.b.load(self.b.inttoptr(place, POINTER), typ=flags, align=32)
        nonzero = self.b.icmp_unsigned("!=", held, ir.Constant(flags, [0] * LANES))
        return self.b.bitcast(nonzero, I32)


class _Rounds(_Builder):
    """Builds the function ``i32 run_rounds(ClusterState*)``, which does what ``_Scheduler._round``
    does, again and again while warps advance, at most ``rounds`` times."""

    def __init__(self, module: ir.Module, run_warp: Value, succeed: Value) -> None:
        names = ("entry", "begin_round", "look", "done", "again", "turn", "asleep", "begin", "run",
                 "after", "python", "end", "next", "ask", "succeed", "stop")  # fmt: skip
        super().__init__(module, RUN_ROUNDS, names)
        self._run_warp, self._succeed = run_warp, succeed

    def get(self, name: str) -> Value:
        return self.field(self.state, ClusterState, name)

    def set(self, name: str, value: Value | int) -> None:
        self.set_field(self.state, ClusterState, name, value)

    def build(self) -> None:
        fresh = self.b.and_(
            self.equal(self.get("cursor"), 0), self.equal(self.get("step"), BEGIN_TURN)
        )
        self.choose(fresh, "begin_round", "look")
        self.at("begin_round")
        rest = self.b.srem(self.get("number"), self.get("sleep"))
        awake = self.b.or_(self.b.zext(self.equal(rest, 0), I64), self.get("idle"))
        self.set("awake", awake)
        self.set("before_events", self.get("events"))
        self.set("before_completed", self.get("completed"))
        self.set("advanced", 0)
        self.go("look")
        self.at("look")
        cursor = self.get("cursor")
        self.choose(self.b.icmp_signed(">=", cursor, self.get("count")), "done", "turn")
        self._end_of_round()
        self.at("turn")
        warps = self.b.inttoptr(self.get("warps"), POINTER)
        warp = self.b.inttoptr(
            self.b.load(self.b.gep(warps, [cursor], source_etype=I64), typ=I64), POINTER
        )
        switch = self.b.switch(self.get("step"), self.blocks["end"])
        switch.add_case(ir.Constant(I64, BEGIN_TURN), self.blocks["asleep"])
        switch.add_case(ir.Constant(I64, CONTINUE_TURN), self.blocks["run"])
        self._turn(warp)
        self.at("next")
        self.set("cursor", self.b.add(cursor, ir.Constant(I64, 1)))
        self.go("look")

    def _end_of_round(self) -> None:
        self.at("done")
        self.set("cursor", 0)
        rounds = self.b.sub(self.get("rounds"), ir.Constant(I64, 1))
        self.set("rounds", rounds)
        self.set("number", self.b.add(self.get("number"), ir.Constant(I64, 1)))
        self.choose(self.equal(self.get("successors"), 0), "ask", "succeed")
        self.at("succeed")
        self.b.call(self._succeed, [self.state])
        self.go("ask")
        self.at("ask")
        onwards = self.b.and_(self.b.icmp_signed("!=", self.get("advanced"), ir.Constant(I64, 0)),
                              self.b.icmp_signed(">", rounds, ir.Constant(I64, 0)))  # fmt: skip
        self.choose(onwards, "again", "stop")
        self.at("again")
        self.set("idle", 0)
        self.go("begin_round")
        self.at("stop")
        self.leave(DONE_ROUND)

    def _turn(self, warp: Value) -> None:
        self.at("asleep")
        done = self.b.icmp_signed("!=", self.field(warp, WarpState, "done"), ir.Constant(I64, 0))
        waits = self.equal(self.field(warp, WarpState, "asleep_since"), self.get("events"))
        waits = self.b.and_(waits, self.equal(self.get("awake"), 0))
        self.choose(self.b.or_(done, waits), "next", "begin")
        self.at("begin")
        self.set_field(warp, WarpState, "budget", self.get("turn_blocks"))
        self.set_field(warp, WarpState, "advanced", 0)
        self.set_field(warp, WarpState, "blocked", 0)
        self.go("run")
        self.at("run")
        self.set("step", BEGIN_TURN)
        code = self.b.call(self._run_warp, [warp])
        self.go("after")
        self.at("after")
        self.choose(self.b.icmp_signed(">=", code, ir.Constant(I32, NEEDS_PYTHON)), "python", "end")
        self.at("python")
        self.b.ret(code)
        self.at("end")
        self.set("step", BEGIN_TURN)
        advanced = self.field(warp, WarpState, "advanced")
        sleeps = self.b.icmp_signed(
            "!=", self.field(warp, WarpState, "blocked"), ir.Constant(I64, 0)
        )
        since = self.b.select(sleeps, self.get("events"), ir.Constant(I64, -1))
        self.set_field(warp, WarpState, "asleep_since", since)
        self.set("advanced", self.b.or_(self.get("advanced"), advanced))
        self.go("next")


def emit_driver(module: ir.Module) -> None:
    """Add the functions that run a warp and the rounds of a cluster."""
    driver = _Driver(module)
    driver.build()
    _Rounds(module, driver.function, emit_succession(module)).build()
