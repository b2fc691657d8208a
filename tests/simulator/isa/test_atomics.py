"""atom and red, lane after lane, against whole numbers and exact fractions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from simulator.checks import Checks
from simulator.errors import DataRace, OutOfBounds, Trap, Uninitialised
from simulator.launch import Extent, Tensor, launch_kernel
from tests.simulator.isa import exact
from tests.simulator.ptx_text import aligned, copy_out, failure, module, run

CELLS = 4
"""Lanes share so many elements, so that each is changed eight times."""
SPACES = ("global", "shared", "shared::cta", "shared::cluster", "")
INTEGERS = [
    *(("add", t) for t in ("u32", "s32", "u64")),
    *((op, t) for op in ("min", "max") for t in ("u32", "s32", "u64", "s64")),
    *((op, t) for op in ("and", "or", "xor", "exch") for t in ("b32", "b64")),
    ("inc", "u32"),
    ("dec", "u32"),
]


def whole(op: str, t: str) -> Callable[[int, int], int]:
    """The operation on bit patterns, by Python's integers."""
    width = int(t[1:])

    def signed(x: int) -> int:
        return x - (1 << width) if t[0] == "s" and x >> (width - 1) else x

    functions = {
        "add": lambda a, b: a + b,
        "min": lambda a, b: a if signed(a) < signed(b) else b,
        "max": lambda a, b: a if signed(a) > signed(b) else b,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
        "exch": lambda a, b: b,
        "inc": lambda a, b: 0 if a >= b else a + 1,
        "dec": lambda a, b: b if a == 0 or a > b else a - 1,
    }
    return lambda a, b: functions[op](a, b) & ((1 << width) - 1)


def perform(name: str, space: str, kind: str, cells: np.ndarray, operands: np.ndarray):
    """Run one atom in each lane on ``cells`` in global or shared memory: (old values, cells)."""
    width = int(kind[1:]) // 8
    register = {2: "%h", 4: "%r", 8: "%rd"}[width]
    memory, old = cells.copy(), np.zeros(32, operands.dtype)
    place = f"and.b32 %r1, %lane, {CELLS - 1}; mul.lo.u32 %r1, %r1, {width};"
    out = "mul.wide.u32 %rd2, %lane, {0}; ld.param.u64 %rd3, [{1}]; add.u64 %rd4, %rd3, %rd2;"
    body = place + out.format(width, "x") + f"ld.global.{kind} {register}59, [%rd4];"
    base = "ld.param.u64 %rd5, [cells]; cvt.u64.u32 %rd6, %r1; add.u64 %rd7, %rd5, %rd6;"
    if space in ("global", ""):
        body += base + f"{name} {register}58, [%rd7], {register}59;"
    else:
        body += (
            base
            + "mov.u32 %r2, smem; add.u32 %r2, %r2, %r1;"
            + f"ld.global.{kind} {register}57, [%rd7]; st.shared.{kind} [%r2], {register}57;"
            + f"bar.sync 0; {name} {register}58, [%r2], {register}59; bar.sync 0;"
            + f"ld.shared.{kind} {register}57, [%r2]; st.global.{kind} [%rd7], {register}57;"
        )
    body += out.format(width, "old") + f"st.global.{kind} [%rd4], {register}58;"
    tensors = {"cells": memory, "x": operands, "old": old}
    text = module(body, [f".param .u64 {n}" for n in tensors])
    # Native code leaves atomics to the same functions; compiling the rest would take a minute.
    arguments = [Tensor.of(a, n) for n, a in tensors.items()]
    extent = Extent(dynamic_shared_bytes=64)
    launch_kernel(text, extent, arguments, executor="interpreter")
    return old, memory


def in_turn(function, cells: np.ndarray, operands: np.ndarray) -> tuple[list[int], list[int]]:
    """What lane after lane finds, and what it leaves."""
    now, found = cells.tolist(), []
    for lane, operand in enumerate(operands.tolist()):
        found.append(now[lane % CELLS])
        now[lane % CELLS] = function(now[lane % CELLS], operand)
    return found, now


def sample(count: int, bits: int, seed: int) -> np.ndarray:
    """Random words, some of them small and some at the ends of the range."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 2**bits, count, np.uint64)
    small = rng.integers(0, 4, count).astype(np.uint64)
    ends = np.array([0, 2**bits - 1, 2 ** (bits - 1), 2 ** (bits - 1) - 1], np.uint64)
    chosen = np.choose(rng.integers(0, 3, count), [values, small, ends[rng.integers(0, 4, count)]])
    return chosen.astype(f"u{bits // 8}")


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(("op", "t"), INTEGERS)
def test_integers(op, t, space):
    bits = int(t[1:])
    cells, operands = sample(CELLS, bits, 1), sample(32, bits, 2)
    name = f"atom.relaxed.gpu{'.' if space else ''}{space}.{op}.{t}"
    old, after = perform(name, space, f"b{bits}", cells, operands)
    expected = in_turn(whole(op, t), cells, operands)
    assert (old.tolist(), after.tolist()) == expected


@pytest.mark.parametrize(
    "order", ["", ".relaxed", ".acquire.cta", ".acq_rel.sys", ".release.cluster"]
)
def test_orders_and_scopes(order):
    cells, operands = sample(CELLS, 32, 3), sample(32, 32, 4)
    expected = in_turn(whole("add", "u32"), cells, operands)
    old, after = perform(f"atom{order}.global.add.u32", "global", "b32", cells, operands)
    assert (old.tolist(), after.tolist()) == expected


FLOATS = [("f32", "b32"), ("f64", "b64"), ("f16", "b16"), ("bf16", "b16")]


def special(fmt: exact.Format, count: int, seed: int) -> np.ndarray:
    """Random codes of a format, with many subnormals, zeros, infinities and NaN among them."""
    rng = np.random.default_rng(seed)
    width = fmt.width
    codes = rng.integers(0, 2**width, count, np.uint64)
    tiny = rng.integers(0, 2**fmt.mantissa_bits, count).astype(np.uint64)
    corner = np.array(
        [0, fmt.sign, fmt.infinity, fmt.infinity | fmt.sign, fmt.infinity | 1, 1], np.uint64
    )
    middle = (codes & np.uint64((1 << fmt.mantissa_bits) - 1)) | np.uint64(
        fmt.bias << fmt.mantissa_bits
    )
    picks = [codes, tiny, corner[rng.integers(0, len(corner), count)], middle]
    return np.choose(rng.integers(0, 4, count), picks).astype(f"u{width // 8}")


def rounded_sum(fmt: exact.Format, *, flushes: bool) -> Callable[[int, int], int]:
    one = fmt.value(fmt.bias << fmt.mantissa_bits)

    def add(a: int, b: int) -> int:
        if flushes:
            a, b = fmt.flush(a), fmt.flush(b)
        total = exact.fused(fmt, fmt.value(a), one, fmt.value(b))
        return fmt.flush(total) if flushes else total

    return add


def same(fmt: exact.Format, found, expected) -> bool:
    """Equal codes; NaN of any payload where a NaN was only moved."""
    return all(
        a == b or (fmt.is_nan(a) and fmt.is_nan(b))
        for one, other in zip(found, expected, strict=True)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("space", ["global", "shared", ""])
@pytest.mark.parametrize(("t", "kind"), FLOATS)
def test_sums(t, kind, space):
    """f32 in global memory, also by a generic address, takes subnormals for zeros."""
    fmt = exact.FORMATS[t]
    cells, operands = special(fmt, CELLS, 5), special(fmt, 32, 6)
    noftz = ".noftz" if t in ("f16", "bf16") else ""
    name = f"atom{'.' if space else ''}{space}.add{noftz}.{t}"
    old, after = perform(name, space, kind, cells, operands)
    flushes = t == "f32" and space != "shared"
    expected = in_turn(rounded_sum(fmt, flushes=flushes), cells, operands)
    assert same(fmt, (old.tolist(), after.tolist()), expected)
    if t == "f32":
        other = in_turn(rounded_sum(fmt, flushes=not flushes), cells, operands)
        assert not same(fmt, (old.tolist(), after.tolist()), other)


@pytest.mark.parametrize("t", ["f16x2", "bf16x2"])
def test_pairs_are_added_half_by_half(t):
    fmt = exact.FORMATS[t[:-2]]
    cells, operands = special(fmt, 2 * CELLS, 7).view("u4"), special(fmt, 64, 8).view("u4")
    add = rounded_sum(fmt, flushes=False)

    def both(a: int, b: int) -> int:
        return add(a & 0xFFFF, b & 0xFFFF) | add(a >> 16, b >> 16) << 16

    old, after = perform(f"atom.global.add.noftz.{t}", "global", "b32", cells, operands)
    expected = in_turn(both, cells, operands)
    halves = [np.array(part, np.uint32).view("u2").tolist() for part in (old, after)]
    wanted = [np.array(part, np.uint32).view("u2").tolist() for part in expected]
    assert same(fmt, halves, wanted)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_compare_and_swap(bits):
    """Lanes expect 0, 1, 2 or 3 and put another of these, so that some meet and some do not."""
    kind, register = f"b{bits}", {16: "%h", 32: "%r", 64: "%rd"}[bits]
    cell, old = np.array([2], f"u{bits // 8}"), np.zeros(32, f"u{bits // 8}")
    convert = f"cvt.u{bits}.u32" if bits != 32 else "mov.b32"
    run(
        f"""and.b32 %r1, %lane, 3; shr.u32 %r2, %lane, 2; xor.b32 %r3, %r2, %r1;
        and.b32 %r3, %r3, 3;
        {convert} {register}20, %r1; {convert} {register}21, %r3;
        ld.param.u64 %rd1, [cell];
        atom.acq_rel.gpu.global.cas.{kind} {register}22, [%rd1], {register}20, {register}21;
        mul.wide.u32 %rd2, %lane, {bits // 8}; ld.param.u64 %rd3, [old]; add.u64 %rd3, %rd3, %rd2;
        st.global.{kind} [%rd3], {register}22;""",
        {"cell": cell, "old": old},
    )
    now, expected = 2, []
    for lane in range(32):
        expected.append(now)
        if now == lane & 3:
            now = (lane >> 2 ^ lane) & 3
    assert old.tolist() == expected
    assert len(set(expected)) > 2
    assert cell[0] == now


@pytest.mark.parametrize(
    ("form", "t", "count"),
    [("add.v4.f32", "f32", 4), ("add.noftz.v8.bf16", "bf16", 8), ("max.noftz.v2.f16", "f16", 2)],
)
def test_vectors(form, t, count):
    """Each lane reduces a vector into the one vector; atom gives the old one, red does the same."""
    fmt = exact.FORMATS[t]
    item = fmt.width // 8
    register = "%r" if item == 4 else "%h"
    names = "{" + ", ".join(f"{register}{i + 10}" for i in range(count)) + "}"
    others = "{" + ", ".join(f"{register}{i + 30}" for i in range(count)) + "}"
    rng = np.random.default_rng(9)
    data = rng.standard_normal((33, count)).astype("f4")
    codes = (data.astype("f2") if t == "f16" else data).view("u2" if t == "f16" else "u4")
    codes = (codes >> 16).astype("u2") if t == "bf16" else codes
    start, values = codes[0], codes[1:]
    results = []
    for name in ("atom", "red"):
        cell, x = aligned(count, f"u{item}"), aligned((32, count), f"u{item}")
        cell[...], x[...] = start, values
        load = "".join(
            f"ld.global.b{8 * item} {register}{i + 10}, [%rd1+{item * i}];" for i in range(count)
        )
        run(
            f"""mul.wide.u32 %rd2, %lane, {item * count}; ld.param.u64 %rd1, [x];
            add.u64 %rd1, %rd1, %rd2; ld.param.u64 %rd3, [cell];"""
            + load
            + f"{name}.global.{form} {others + ', ' if name == 'atom' else ''}[%rd3], {names};",
            {"cell": cell, "x": x},
        )
        results.append(cell.tolist())
    add = rounded_sum(fmt, flushes=t == "f32")

    def larger(a: int, b: int) -> int:
        return a if fmt.value(a).order() >= fmt.value(b).order() else b

    expected = start.tolist()
    for row in values.tolist():
        expected = [
            (larger if "max" in form else add)(a, b) for a, b in zip(expected, row, strict=True)
        ]
    assert results == [expected, expected]


def test_inactive_lanes_do_nothing():
    cell = np.zeros(1, np.uint32)
    run(
        """ld.param.u64 %rd1, [cell]; and.b32 %r1, %lane, 1; setp.eq.u32 %p1, %r1, 0;
        @%p1 red.global.add.u32 [%rd1], %lane;""",
        {"cell": cell},
    )
    assert cell[0] == sum(range(0, 32, 2))


COUNT = """
    mov.u32 %r1, smem; setp.eq.u32 %p1, %t2, 0; @%p1 st.shared.u32 [%r1], 0; bar.sync 0;
    {update} bar.sync 0;
    setp.ge.u32 %p2, %t2, 32; @%p2 bra DONE;
"""


def test_warps_count_together_without_a_race():
    """128 threads add to one word; what they do with plain loads and stores is a race."""
    out = np.zeros(32, np.uint32)
    atomic = COUNT.format(update="red.shared.add.u32 [%r1], 1;")
    run(atomic + copy_out(1) + "DONE:", {"out": out}, threads=128, shared_bytes=16,
        checks=Checks(True, True))  # fmt: skip
    assert out[0] == 128
    plain = COUNT.format(
        update="ld.shared.u32 %r2, [%r1]; add.u32 %r2, %r2, 1; st.shared.u32 [%r1], %r2;"
    )
    failure(DataRace, plain + copy_out(1) + "DONE:", {"out": out}, threads=128, shared_bytes=16,
            checks=Checks(True, True))  # fmt: skip


def test_a_cluster_adds_into_its_first_cta():
    out = np.zeros(32, np.uint32)
    run(
        """mov.u32 %r1, smem; mov.u32 %r2, %cluster_ctarank; setp.eq.u32 %p1, %t2, 0;
        @%p1 st.shared.u32 [%r1], 0;
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        mapa.shared::cluster.u32 %r3, %r1, 0;
        atom.shared::cluster.add.u32 %r4, [%r3], %r2;
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        setp.ne.u32 %p2, %r2, 0; @%p2 bra DONE;"""
        + copy_out(1)
        + "DONE:",
        {"out": out}, grid=4, cluster=4, shared_bytes=16,
    )  # fmt: skip
    assert out[0] == 32 * (1 + 2 + 3)


def test_what_is_wrong():
    cell = np.zeros(4, np.uint32)
    far = "ld.param.u64 %rd1, [cell]; mul.wide.u32 %rd2, %lane, 4; add.u64 %rd1, %rd1, %rd2;"
    error = failure(OutOfBounds, far + "red.global.add.u32 [%rd1], 1;", {"cell": cell})
    assert error.location.lanes == (4,)
    shared = "mov.u32 %r1, smem;"
    failure(Uninitialised, shared + "red.shared.add.u32 [%r1], 1;", shared_bytes=16)
    other = shared + "mapa.shared::cluster.u32 %r1, %r1, 1;"
    failure(Trap, other + "red.shared.add.u32 [%r1], 1;", shared_bytes=16, grid=2, cluster=2)
