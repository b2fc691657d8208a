"""Random structured PTX, run by both executors: memory, counts and errors must be the same."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from simulator.checks import Checks
from simulator.errors import SimulationError
from simulator.interpreter import Interpreter
from simulator.launch import Extent, Tensor, launch_kernel
from simulator.policy import POLICIES, Policy
from tests.simulator.ptx_text import module

WORDS = 16
THREADS = 96


INTEGER = (
    "add.s32", "sub.u32", "mul.lo.s32", "and.b32", "xor.b32", "min.s32", "max.u32", "shl.b32",
    "shr.s32", "shr.u32", "div.s32", "rem.u32",
)  # fmt: skip


class Writer:
    """Writes statements on the registers %r10 to %r25: branches, loops, shuffles, memory."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lines: list[str] = []
        self.labels = 0

    def register(self) -> str:
        return f"%r{self.rng.randrange(10, 10 + WORDS)}"

    def operand(self) -> str:
        return self.register() if self.rng.random() < 0.8 else str(self.rng.randrange(0, 1 << 31))

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def statement(self, depth: int, *, whole: bool) -> None:
        """One statement; ``whole`` says that all lanes of the warp execute it."""
        choices = [self.arithmetic] * 6 + [self.floating] * 3 + [self.guarded, self.shared]
        if whole:
            choices += [self.shuffle, self.barrier]
        if depth:
            choices += [self.branch, self.loop]
        chosen = self.rng.choice(choices)
        chosen(depth) if chosen in (self.branch, self.loop) else chosen()

    def arithmetic(self) -> None:
        op = self.rng.choice(INTEGER)
        self.lines.append(f"{op} {self.register()}, {self.register()}, {self.operand()};")

    def floating(self) -> None:
        op = self.rng.choice(("add.f32", "mul.f32", "max.f32", "min.NaN.f32", "sub.ftz.f32"))
        self.lines.append(f"{op} {self.register()}, {self.register()}, {self.register()};")
        a, b, c = (self.register() for _ in range(3))
        self.lines.append(f"fma.rn.f32 {self.register()}, {a}, {b}, {c};")
        self.lines.append(f"ex2.approx.ftz.f32 {self.register()}, {c};")

    def guarded(self) -> None:
        a, b = self.register(), self.register()
        self.lines.append(f"setp.lt.s32 %p1, {a}, {b};")
        sign = self.rng.choice(("", "!"))
        self.lines.append(f"@{sign}%p1 add.u32 {self.register()}, {a}, 17;")
        self.lines.append(f"selp.b32 {self.register()}, {a}, {b}, %p1;")

    def shared(self) -> None:
        """A thread's own words: no two threads meet."""
        self.lines.append(f"st.shared.b32 [%r3+{4 * self.rng.randrange(4)}], {self.register()};")
        self.lines.append(f"ld.shared.b32 {self.register()}, [%r3+{4 * self.rng.randrange(4)}];")

    def shuffle(self) -> None:
        mode = self.rng.choice(("up", "down", "bfly", "idx"))
        clamp = 0 if mode == "up" else 31
        self.lines.append(
            f"shfl.sync.{mode}.b32 {self.register()}|%p2, {self.register()},"
            f" {self.rng.randrange(32)}, {clamp}, -1;"
        )
        self.lines.append(f"selp.b32 {self.register()}, 1, {self.register()}, %p2;")

    def barrier(self) -> None:
        self.lines.append("bar.sync 0;")

    def body(self, depth: int) -> None:
        for _ in range(self.rng.randrange(1, 5)):
            self.statement(depth - 1, whole=False)

    def branch(self, depth: int) -> None:
        other, end = self.label(), self.label()
        self.lines.append(f"and.b32 %r4, {self.register()}, {self.rng.choice((1, 3, 16))};")
        self.lines.append(f"setp.eq.b32 %p3, %r4, 0;\n@%p3 bra {other};")
        self.body(depth)
        self.lines.append(f"bra {end};\n{other}:")
        self.body(depth)
        self.lines.append(f"{end}:")

    def loop(self, depth: int) -> None:
        """Lanes leave after one to four turns."""
        start, counter = self.label(), f"%r{30 + self.labels}"
        self.lines.append(f"and.b32 {counter}, {self.register()}, 3;\n{start}:")
        self.body(depth)
        self.lines.append(f"sub.s32 {counter}, {counter}, 1;\nsetp.ge.s32 %p4, {counter}, 0;")
        self.lines.append(f"@%p4 bra {start};")

    def program(self, statements: int) -> str:
        head = ["ld.param.u64 %rd1, [data];", f"mul.wide.u32 %rd2, %idx, {4 * WORDS};",
                "add.s64 %rd1, %rd1, %rd2;", "mov.u32 %r2, smem;", "shl.b32 %r3, %t2, 4;",
                "add.u32 %r3, %r3, %r2;"]  # fmt: skip
        head += [f"st.shared.b32 [%r3+{4 * i}], %idx;" for i in range(4)]
        head += [f"ld.global.b32 %r{10 + i}, [%rd1+{4 * i}];" for i in range(WORDS)]
        for _ in range(statements):
            self.statement(2, whole=True)
        tail = [f"st.global.b32 [%rd1+{4 * i}], %r{10 + i};" for i in range(WORDS)]
        return module("\n".join([*head, *self.lines, *tail]), [".param .u64 data"])


def outcome(text: str, data: np.ndarray, executor: Any, policy: Policy) -> tuple[Any, ...]:
    """Memory, counts and coverage after a run, or the error."""
    held = data.copy()
    extent = Extent((2, 1, 1), (THREADS, 1, 1), dynamic_shared_bytes=16 * THREADS)
    try:
        run = launch_kernel(text, extent, [Tensor.of(held, "data")], policy=policy,
                            checks=Checks(), executor=executor, coverage=True)  # fmt: skip
    except SimulationError as error:
        return held.tobytes(), str(error)
    return held.tobytes(), run.warp_instructions, run.polls, run.coverage


@pytest.mark.parametrize("seed", range(24))
def test_both_executors_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 1 << 32, (2 * THREADS, WORDS), dtype=np.uint32)
    policy = Policy(sorted(POLICIES)[seed % len(POLICIES)], seed)
    text = Writer(seed).program(30)
    expected = outcome(text, data, "interpreter", policy)
    assert len(expected) == 4, expected
    assert expected[0] != data.tobytes()
    assert outcome(text, data, "native", policy) == expected


def test_a_wrong_native_result_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above bites: an interpreter that skips one branch differs."""
    data = np.random.default_rng(0).integers(0, 1 << 32, (2 * THREADS, WORDS), dtype=np.uint32)
    text = Writer(0).program(30)
    native = outcome(text, data, "native", Policy())
    true_branch = Interpreter._branch

    def wrong(self: Interpreter, warp: Any, block: Any, end: Any) -> None:
        true_branch(self, warp, block, end)
        warp.instructions += 1

    monkeypatch.setattr(Interpreter, "_branch", wrong)
    assert outcome(text, data, "interpreter", Policy()) != native
