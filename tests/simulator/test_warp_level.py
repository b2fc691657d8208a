"""Exchange between lanes, against the pseudo-code of the PTX ISA on one lane at a time."""

from __future__ import annotations

import functools
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import Trap, Unsupported
from tests.simulator.ptx_text import failure, load, run, store

LANES = range(32)
FULL = 0xFFFFFFFF
MASK = np.uint32(FULL)


def random_words(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, 32, np.uint32)


# 1. shfl


def shuffled(values: list[int], lane: int, b: int, c: int, mode: str) -> tuple[int, bool]:
    """d and p of shfl.sync, step by step as the PTX ISA has it."""
    bval, cval, segmask = b & 0x1F, c & 0x1F, c >> 8 & 0x1F
    max_lane = (lane & segmask) | (cval & ~segmask & 0x1F)
    min_lane = lane & segmask
    if mode == "up":
        j = lane - bval
        p = j >= max_lane
    elif mode == "down":
        j = lane + bval
        p = j <= max_lane
    elif mode == "bfly":
        j = lane ^ bval
        p = j <= max_lane
    else:
        j = min_lane | (bval & ~segmask & 0x1F)
        p = j <= max_lane
    if not p:
        j = lane
    return values[j], p


SHUFFLE = (
    load("%r1", "a")
    + load("%r2", "b")
    + load("%r3", "c")
    + """shfl.sync.{mode}.b32 %r4|%p1, %r1, %r2, %r3, -1;
    shfl.sync.{mode}.b32 %r6, %r1, %r2, %r3, -1;
    selp.u32 %r5, 1, 0, %p1;"""
    + store("%r4", "d")
    + store("%r5", "p")
    + store("%r6", "plain")
)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["up", "down", "bfly", "idx"]), st.integers(0, 2**32), st.booleans())
def test_shfl(mode, seed, uniform):
    """b and c vary from lane to lane, or are those that compilers emit for a width."""
    a, b, c = (random_words(seed + i) for i in range(3))
    if uniform:
        width = 1 << seed % 6
        b[:] = seed % 32
        c[:] = (32 - width) << 8 | (0 if mode == "up" else 31)
    d, p, plain = (np.zeros(32, np.uint32) for _ in range(3))
    run(
        SHUFFLE.format(mode=mode),
        {"a": a, "b": b, "c": c, "d": d, "p": p, "plain": plain},
    )
    expected = [shuffled(a.tolist(), lane, int(b[lane]), int(c[lane]), mode) for lane in LANES]
    assert list(zip(d.tolist(), p.astype(bool).tolist(), strict=True)) == expected
    assert np.array_equal(d, plain)


def test_shfl_among_the_lanes_of_a_branch():
    a, d = random_words(1), np.zeros(32, np.uint32)
    run(
        load("%r1", "a")
        + """setp.ge.u32 %p1, %lane, 8; mov.u32 %r2, 0; @%p1 bra L;
        shfl.sync.bfly.b32 %r2, %r1, 3, 31, 0xff;
        L:"""
        + store("%r2", "d"),
        {"a": a, "d": d},
    )
    assert d.tolist() == [int(a[lane ^ 3]) if lane < 8 else 0 for lane in LANES]


def test_shfl_from_a_lane_that_does_not_take_part():
    body = """setp.ge.u32 %p1, %lane, 8; @%p1 bra L;
    {};
    L: mov.u32 %r1, 1;"""
    run(body.format("shfl.sync.idx.b32 %r2, %lane, 7, 31, 0xff"))
    error = failure(Trap, body.format("shfl.sync.idx.b32 %r2, %lane, 8, 31, 0xff"))
    assert "does not take part" in error.message
    assert error.lanes == tuple(range(8))


# 2. vote, ballot, elect, activemask


@pytest.mark.parametrize("pattern", [0, FULL, 1, 1 << 31, 0x00FF00FF])
def test_votes(pattern):
    names = ("all", "any", "uni", "ballot")
    out = {name: np.zeros(32, np.uint32) for name in names}
    votes = [pattern >> lane & 1 for lane in LANES]
    body = (
        f"mov.u32 %r1, {pattern}; shr.u32 %r1, %r1, %lane; and.b32 %r1, %r1, 1;"
        "setp.ne.u32 %p1, %r1, 0; vote.sync.ballot.b32 %r5, %p1, -1;"
        + store("%r5", "ballot")
        + "".join(
            f"vote.sync.{name}.pred %p2, %p1, -1; selp.u32 %r2, 1, 0, %p2;" + store("%r2", name)
            for name in names[:3]
        )
    )
    run(body, out)
    expected = {
        "all": all(votes), "any": any(votes), "uni": len(set(votes)) == 1, "ballot": pattern,
    }  # fmt: skip
    assert {name: set(out[name].tolist()) for name in names} == {
        name: {int(value)} for name, value in expected.items()
    }


def test_elect_names_one_lane_of_the_members():
    out, chosen = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    run(
        """setp.lt.u32 %p1, %lane, 5; @%p1 bra L;
        elect.sync %r1|%p2, 0xffffffe0; selp.u32 %r2, 1, 0, %p2;"""
        + store("%r1", "leader")
        + store("%r2", "chosen")
        + "L: mov.u32 %r3, 0;",
        {"leader": out, "chosen": chosen},
    )
    leader = int(out[5])
    assert 5 <= leader < 32
    assert out.tolist() == [0] * 5 + [leader] * 27
    assert np.flatnonzero(chosen).tolist() == [leader]


def test_activemask_is_the_set_of_lanes_in_a_branch():
    out = np.zeros(40, np.uint32)
    run(
        """and.b32 %r1, %lane, 1; setp.eq.u32 %p1, %r1, 0; @%p1 bra L;
        activemask.b32 %r2; bra JOIN;
        L: activemask.b32 %r2; add.u32 %r2, %r2, 0;
        JOIN:"""
        + store("%r2"),
        {"out": out},
        threads=40,
    )
    assert out[:32].tolist() == [0x55555555, 0xAAAAAAAA] * 16
    assert out[32:].tolist() == [0x55, 0xAA] * 4


# 3. redux

REDUCTIONS = {
    "add.u32": lambda v: sum(v) & FULL,
    "add.s32": lambda v: sum(v) & FULL,
    "min.u32": min,
    "max.u32": max,
    "min.s32": lambda v: min(np.array(v, np.uint32).view(np.int32)) & MASK,
    "max.s32": lambda v: max(np.array(v, np.uint32).view(np.int32)) & MASK,
    "and.b32": functools.partial(functools.reduce, operator.and_),
    "or.b32": functools.partial(functools.reduce, operator.or_),
    "xor.b32": functools.partial(functools.reduce, operator.xor),
}


@pytest.mark.parametrize("form", REDUCTIONS)
@pytest.mark.parametrize("count", [32, 6])
def test_redux(form, count):
    a, d = random_words(count), np.zeros(32, np.uint32)
    if form.startswith(("and", "or")):
        a |= np.uint32(0xF0F0) if form.startswith("and") else np.uint32(0)
        a &= MASK if form.startswith("and") else np.uint32(0x0FF0)
    run(
        load("%r1", "a")
        + f"""setp.ge.u32 %p1, %lane, {count}; mov.u32 %r2, 0; @%p1 bra L;
        redux.sync.{form} %r2, %r1, {(1 << count) - 1};
        L:"""
        + store("%r2", "d"),
        {"a": a, "d": d},
    )
    assert d[:count].tolist() == [REDUCTIONS[form](a[:count].tolist())] * count
    assert not d[count:].any()


# 4. membermask

BRANCH = """setp.ge.u32 %p1, %lane, 4; @%p1 bra L;
{};
L: mov.u32 %r9, 1;"""
STATEMENTS = [
    "shfl.sync.idx.b32 %r2, %lane, 0, 31, {}",
    "vote.sync.any.pred %p2, %p1, {}",
    "vote.sync.ballot.b32 %r2, %p1, {}",
    "elect.sync %r2|%p2, {}",
    "redux.sync.add.u32 %r2, %lane, {}",
    "bar.warp.sync {}",
]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_membermask_names_the_lanes_that_take_part(statement):
    run(BRANCH.format(statement.format(0xF)))
    absent = failure(Trap, BRANCH.format(statement.format(0x7)))
    assert "does not name" in absent.message
    assert absent.lanes == (3,)
    diverged = failure(Unsupported, BRANCH.format(statement.format(0x1F)))
    assert "diverged" in diverged.message
    assert diverged.lanes == (4,)


def test_a_membermask_may_name_lanes_that_have_exited():
    out = np.zeros(32, np.uint32)
    run(
        "setp.ge.u32 %p1, %lane, 4; @%p1 ret; vote.sync.ballot.b32 %r1, 1, -1;" + store("%r1"),
        {"out": out},
    )
    assert out.tolist() == [0xF] * 4 + [0] * 28


def test_groups_of_one_warp_exchange_side_by_side():
    """Eight groups of four lanes, each with its own membermask."""
    total, ballots, leaders, rotated = (np.zeros(32, np.uint32) for _ in range(4))
    a = random_words(3)
    run(
        load("%r1", "a")
        + """and.b32 %r2, %lane, 28; mov.u32 %r3, 15; shl.b32 %r3, %r3, %r2;
        redux.sync.xor.b32 %r4, %r1, %r3;
        and.b32 %r5, %r1, 1; setp.eq.u32 %p1, %r5, 1; vote.sync.ballot.b32 %r5, %p1, %r3;
        elect.sync %r6|%p2, %r3;
        add.u32 %r7, %lane, 1; shfl.sync.idx.b32 %r8, %r1, %r7, 0x1c1f, %r3;"""
        + store("%r4", "total")
        + store("%r5", "ballots")
        + store("%r6", "leaders")
        + store("%r8", "rotated"),
        {"a": a, "total": total, "ballots": ballots, "leaders": leaders, "rotated": rotated},
    )
    for lane in LANES:
        first = lane & 28
        group = range(first, first + 4)
        assert int(total[lane]) == functools.reduce(operator.xor, a[first : first + 4].tolist())
        assert int(ballots[lane]) == sum((int(a[x]) & 1) << x for x in group)
        assert int(leaders[lane]) in group
        assert int(rotated[lane]) == int(a[first + (lane + 1) % 4])


def test_lanes_that_name_each_other_give_the_same_membermask():
    error = failure(
        Trap,
        """setp.eq.u32 %p1, %lane, 9; selp.b32 %r1, 0x3ff, -1, %p1;
        vote.sync.any.pred %p2, %p1, %r1;""",
    )
    assert "gives another" in error.message


def test_a_shuffle_does_not_leave_its_group():
    error = failure(
        Trap,
        """setp.lt.u32 %p1, %lane, 16; selp.b32 %r1, 0x0000ffff, 0xffff0000, %p1;
        shfl.sync.bfly.b32 %r2, %lane, 16, 31, %r1;""",
    )
    assert "does not take part" in error.message


# 5. match


@pytest.mark.parametrize("bits", [32, 64])
def test_match(bits):
    """Values that agree in their low half count as different where the high half does."""
    rng = np.random.default_rng(bits)
    low, high = rng.integers(0, 3, 32, np.uint32), rng.integers(0, 2, 32, np.uint32)
    values = low.astype(np.uint64) + (high.astype(np.uint64) << np.uint64(32 if bits == 64 else 2))
    found = np.zeros(32, np.uint32)
    members = np.where(np.arange(32) % 4 < 3, 0x77777777, 0x88888888).astype(np.uint32)
    every, alike = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    register = "%r1" if bits == 32 else "%rd40"
    values = values.astype(f"u{bits // 8}")
    width = bits // 8
    run(
        f"""mul.wide.u32 %rd1, %lane, {width}; ld.param.u64 %rd2, [x]; add.u64 %rd2, %rd2, %rd1;
        ld.global.u{bits} {register}, [%rd2];"""
        + load("%r2", "m")
        + f"""match.any.sync.b{bits} %r3, {register}, %r2;
        and.b{bits} {register}, {register}, 1;
        match.all.sync.b{bits} %r4|%p1, {register}, %r2; selp.u32 %r5, 1, 0, %p1;"""
        + store("%r3", "found")
        + store("%r4", "every")
        + store("%r5", "alike"),
        {"x": values, "m": members, "found": found, "every": every, "alike": alike},
    )
    plain = values.tolist()
    for lane in LANES:
        group = [other for other in LANES if members[lane] >> other & 1]
        expected = sum(1 << other for other in group if plain[other] == plain[lane])
        assert found[lane] == expected
        same = len({plain[other] & 1 for other in group}) == 1
        assert alike[lane] == same
        assert every[lane] == (members[lane] if same else 0)


def test_match_all_of_one_value():
    every = np.zeros(32, np.uint32)
    run("match.all.sync.b32 %r4|%p1, 7, -1;" + store("%r4"), {"out": every})
    assert (every == FULL).all()


# 6. redux of f32

CORNERS = [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x00000001, 0x807FFFFF, 0x7FC01234]


@pytest.mark.parametrize("nan", ["", ".NaN"])
@pytest.mark.parametrize("size", ["", ".abs"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_redux_of_floats(op, size, nan):
    """Order by bit patterns: -0 below +0, NaN left out unless it is asked for."""
    rng = np.random.default_rng(11)
    corners = np.array(CORNERS * 5, np.uint32)
    for numbers in (
        random_words(12),
        rng.choice(corners[:6], 32),
        corners[:32],
        np.full(32, 0xFFC00001, np.uint32),
    ):
        out = np.zeros(32, np.uint32)
        run(
            load("%r1", "a") + f"redux.sync.{op}{size}{nan}.f32 %r2, %r1, -1;" + store("%r2"),
            {"a": numbers, "out": out},
        )
        values = [x & 0x7FFFFFFF if size else x for x in numbers.tolist()]
        known = [x for x in values if x & 0x7FFFFFFF <= 0x7F800000]
        if not known or (nan and len(known) < 32):
            expected = 0x7FFFFFFF
        else:
            key = {x: -(x & 0x7FFFFFFF) - 1 if x >> 31 else x for x in known}
            expected = (min if op == "min" else max)(known, key=key.__getitem__)
        assert (out == expected).all()
