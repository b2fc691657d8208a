"""Lanes that part and meet again: whole warps against one thread at a time.

Random structured programs over six integers are emitted as PTX and, on the other side, walked for
one thread by a few lines of Python that know nothing of warps.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import Trap
from tests.simulator.ptx_text import failure, run, store

VARIABLES = 6
TRIPS = 4
MASK = 0xFFFFFFFF
BINARY = {
    "add.u32": lambda a, b: a + b,
    "sub.u32": lambda a, b: a - b,
    "mul.lo.u32": lambda a, b: a * b,
    "xor.b32": lambda a, b: a ^ b,
    "min.u32": min,
}
COMPARE = {"lt": int.__lt__, "ge": int.__ge__, "eq": int.__eq__}


@dataclass(frozen=True)
class Condition:
    """``variable <compare> other`` by the low bits alone, so that both outcomes are common."""

    compare: str
    variable: int
    other: int


@dataclass(frozen=True)
class Assign:
    operation: str
    target: int
    a: int
    b: int
    guard: Condition | None = None


@dataclass(frozen=True)
class Store:
    """Write a variable to memory; how often and what last is seen at the end."""

    variable: int
    guard: Condition | None = None


@dataclass(frozen=True)
class If:
    condition: Condition
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True)
class While:
    """At most ``TRIPS`` times, while the condition holds."""

    condition: Condition
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Leave:
    """Leave the kernel by a guarded ``ret`` or by a branch around a plain one."""

    condition: Condition
    guarded: bool


Statement = Assign | Store | If | While | Leave


# 1. One thread at a time


class Left(Exception):
    """The thread has left the kernel."""


def holds(condition: Condition, values: list[int]) -> bool:
    return COMPARE[condition.compare](values[condition.variable] & 7, values[condition.other] & 7)


def walk(program: tuple[Statement, ...], values: list[int], stored: list[int]) -> None:
    """Run a program for one thread; ``stored`` counts its stores and keeps the last value."""
    for statement in program:
        match statement:
            case Assign(operation, target, a, b, guard):
                if guard is None or holds(guard, values):
                    values[target] = BINARY[operation](values[a], values[b]) & MASK
            case Store(variable, guard):
                if guard is None or holds(guard, values):
                    stored[:] = [stored[0] + 1, values[variable]]
            case If(condition, then, otherwise):
                walk(then if holds(condition, values) else otherwise, values, stored)
            case While(condition, body):
                trips = 0
                while trips < TRIPS and holds(condition, values):
                    walk(body, values, stored)
                    trips += 1
            case Leave(condition):
                if holds(condition, values):
                    raise Left


# 2. PTX


class Emitter:
    """Writes a program: variables in %r0.., loop counters from %r10 on, labels by number."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._number = itertools.count()

    def emit(self, program: tuple[Statement, ...], depth: int = 0) -> None:
        for statement in program:
            match statement:
                case Assign(operation, target, a, b, guard):
                    self._guarded(guard, f"{operation} %r{target}, %r{a}, %r{b};")
                case Store(variable, guard):
                    self._guarded(guard, f"st.global.u32 [%rd0+4], %r{variable};")
                    self._guarded(guard, "ld.global.u32 %r30, [%rd0];")
                    self._guarded(guard, "add.u32 %r30, %r30, 1;")
                    self._guarded(guard, "st.global.u32 [%rd0], %r30;")
                case If():
                    self._if(statement, depth)
                case While():
                    self._while(statement, depth)
                case Leave(condition, guarded):
                    self._leave(condition, guarded)

    def _test(self, condition: Condition) -> None:
        self.lines += [
            f"and.b32 %r31, %r{condition.variable}, 7;",
            f"and.b32 %r32, %r{condition.other}, 7;",
            f"setp.{condition.compare}.u32 %p0, %r31, %r32;",
        ]

    def _guarded(self, guard: Condition | None, text: str) -> None:
        if guard is not None:
            self._test(guard)
        self.lines.append(text if guard is None else f"@%p0 {text}")

    def _if(self, statement: If, depth: int) -> None:
        n = next(self._number)
        self._test(statement.condition)
        self.lines.append(f"@!%p0 bra ELSE{n};")
        self.emit(statement.then, depth)
        self.lines.append(f"bra JOIN{n};\nELSE{n}:")
        self.emit(statement.otherwise, depth)
        self.lines.append(f"JOIN{n}:")

    def _while(self, statement: While, depth: int) -> None:
        n = next(self._number)
        counter = f"%r{10 + depth}"
        self.lines.append(f"mov.u32 {counter}, 0;\nLOOP{n}:")
        self.lines.append(f"setp.ge.u32 %p1, {counter}, {TRIPS}; @%p1 bra DONE{n};")
        self._test(statement.condition)
        self.lines.append(f"@!%p0 bra DONE{n};")
        self.emit(statement.body, depth + 1)
        self.lines.append(f"add.u32 {counter}, {counter}, 1; bra LOOP{n};\nDONE{n}:")

    def _leave(self, condition: Condition, guarded: bool) -> None:
        n = next(self._number)
        self._test(condition)
        if guarded:
            self.lines.append("@%p0 ret;")
        else:
            self.lines.append(f"@!%p0 bra STAY{n}; ret;\nSTAY{n}:")


# 3. Random programs

variables = st.integers(0, VARIABLES - 1)
conditions = st.builds(Condition, st.sampled_from(sorted(COMPARE)), variables, variables)
guards = st.none() | conditions
assigns = st.builds(
    Assign, st.sampled_from(sorted(BINARY)), variables, variables, variables, guards
)
simple = st.one_of(assigns, assigns, st.builds(Store, variables, guards))
leaves = st.builds(Leave, conditions, st.booleans())


def blocks(inner: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(inner, min_size=0, max_size=4).map(tuple)


statements = st.recursive(
    simple | leaves,
    lambda inner: st.one_of(
        simple,
        leaves,
        st.builds(If, conditions, blocks(inner), blocks(inner)),
        st.builds(While, conditions, blocks(inner)),
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(blocks(statements).filter(len), st.integers(0, 2**32), st.sampled_from([32, 33, 61]))
def test_warps_compute_what_their_threads_would(program, seed, threads):
    """Whoever stays in the kernel is in one company at its end: that is what ``active`` holds."""
    start = np.random.default_rng(seed).integers(0, 2**32, (threads, VARIABLES), np.uint32)
    out = start.copy()
    stored = np.zeros((threads, 2), np.uint32)
    active = np.zeros(threads, np.uint32)
    emitter = Emitter()
    emitter.emit(program)
    place = " ".join(
        f"ld.param.u64 %rd{i}, [{name}]; cvt.u64.u32 %rd3, %idx;"
        f" mad.lo.u64 %rd{i}, %rd3, {4 * width}, %rd{i};"
        for i, (name, width) in enumerate({"stored": 2, "out": VARIABLES}.items())
    )
    load_all = " ".join(f"ld.global.u32 %r{v}, [%rd1+{4 * v}];" for v in range(VARIABLES))
    store_all = " ".join(f"st.global.u32 [%rd1+{4 * v}], %r{v};" for v in range(VARIABLES))
    body = "\n".join([place, load_all, *emitter.lines, "activemask.b32 %r40;", store_all])
    run(
        body + store("%r40", "active"),
        {"stored": stored, "out": out, "active": active},
        threads=threads,
    )

    staying = []
    for thread in range(threads):
        values, log = [int(v) for v in start[thread]], [0, 0]
        try:
            walk(program, values, log)
        except Left:
            values = [int(v) for v in start[thread]]
        else:
            staying.append(thread)
        assert [int(v) for v in out[thread]] == values
        assert [int(v) for v in stored[thread]] == log
    for thread in range(threads):
        warp = [t for t in staying if t // 32 == thread // 32]
        mask = sum(1 << t % 32 for t in warp) if thread in staying else 0
        assert int(active[thread]) == mask


# 4. By hand


def test_loops_of_a_different_length_for_each_lane():
    out = np.zeros(64, np.uint32)
    run(
        """
        mov.u32 %r1, 0; mov.u32 %r2, 0;
        LOOP: setp.ge.u32 %p1, %r1, %idx; @%p1 bra DONE;
        add.u32 %r1, %r1, 1; add.u32 %r2, %r2, %r1;
        bra LOOP;
        DONE:
        """
        + store("%r2"),
        {"out": out},
        threads=64,
    )
    assert out.tolist() == [i * (i + 1) // 2 for i in range(64)]


def test_a_register_keeps_its_value_in_lanes_that_a_guard_excludes():
    out = np.zeros(32, np.uint32)
    run(
        """
        mov.u32 %r1, %lane;
        setp.lt.u32 %p1, %lane, 10;
        @%p1 mov.u32 %r1, 100;
        @!%p1 add.u32 %r1, %r1, 1;
        """
        + store("%r1"),
        {"out": out},
    )
    assert out.tolist() == [100] * 10 + list(range(11, 33))


def test_what_touches_memory_is_left_out_where_no_lane_has_the_guard():
    out = np.arange(32, dtype=np.uint32)
    run(
        """
        setp.gt.u32 %p1, %lane, 31;
        mov.u64 %rd1, 8; mov.u32 %r1, 7;
        @%p1 st.global.u32 [%rd1], %r1;
        @%p1 ld.global.u32 %r1, [%rd1];
        @%p1 trap;
        @%p1 bar.sync 99;
        """
        + store("%r1"),
        {"out": out},
    )
    assert out.tolist() == [7] * 32


def test_a_guard_reaches_the_lanes_that_it_names_only():
    out = np.zeros(32, np.uint32)
    run(
        """
        ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %lane, 4; add.u64 %rd1, %rd1, %rd2;
        setp.gt.u32 %p1, %lane, 29; mov.u32 %r1, 5;
        @%p1 st.global.u32 [%rd1], %r1;
        """,
        {"out": out},
    )
    assert out.tolist() == [0] * 30 + [5, 5]


NESTED = """
    setp.ge.u32 %p1, %lane, 16; @%p1 bra JOIN;
    setp.eq.u32 %p2, %lane, 3; @%p2 ret;
    setp.lt.u32 %p3, %lane, 8; @%p3 bra JOIN;
    setp.eq.u32 %p2, %lane, 11; @!%p2 bra JOIN;
    ret;
    JOIN:
"""


def test_lanes_meet_again_though_some_left_the_kernel_from_inside():
    out = np.zeros(32, np.uint32)
    run(NESTED + "vote.sync.ballot.b32 %r1, 1, -1;" + store("%r1"), {"out": out})
    gone = [3, 11]
    mask = MASK & ~sum(1 << lane for lane in gone)
    assert out.tolist() == [0 if lane in gone else mask for lane in range(32)]


def test_a_barrier_does_not_wait_for_lanes_that_have_left():
    out = np.zeros(64, np.uint32)
    run(NESTED + "bar.sync 0;" + store("%lane"), {"out": out}, threads=64)
    assert sorted(set(out.tolist())) == [lane for lane in range(32) if lane not in (3, 11)]


def test_bra_uni_that_diverges_is_a_trap_with_its_lanes():
    error = failure(Trap, "setp.lt.u32 %p1, %lane, 5;\n@%p1 bra.uni L;\nL:")
    assert "bra.uni" in error.message
    assert error.lanes == (0, 1, 2, 3, 4)
    assert error.location.ptx_text == "@%p1 bra.uni L;"


def test_bra_uni_that_does_not_diverge_is_a_branch():
    out = np.zeros(32, np.uint32)
    run(
        "mov.u32 %r1, 1; setp.lt.u32 %p1, %lane, 32; @%p1 bra.uni L; mov.u32 %r1, 2; L:"
        + store("%r1"),
        {"out": out},
    )
    assert out.tolist() == [1] * 32


@pytest.mark.parametrize(
    "statement",
    [
        "bar.sync 0;", "barrier.sync.aligned 0;", "barrier.cta.sync.aligned 1, 64;",
        "bar.arrive 1, 64;", "setmaxnreg.inc.sync.aligned.u32 128;",
        "barrier.cluster.arrive.aligned;", "barrier.cluster.wait.aligned;",
    ],
)  # fmt: skip
def test_aligned_instructions_want_the_whole_warp(statement):
    body = f"setp.lt.u32 %p1, %lane, 7;\n@%p1 bra L;\n{statement}\nL: mov.u32 %r1, 1;"
    error = failure(Trap, body, threads=64)
    assert "diverged" in error.message
    assert error.lanes == tuple(range(7, 32))
    assert error.location.ptx_text == statement
