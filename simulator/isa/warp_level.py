"""Exchange between the lanes of a warp. Source: PTX ISA 9.7.9.6 shfl.sync and 9.7.13."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from simulator.errors import Location, Trap, Unsupported
from simulator.isa import float32
from simulator.isa.table import Kind, instruction
from simulator.machine.warp import LANES, Mask, Warp, uniform
from simulator.numerics.formats import canonical_nan

Array = Any
_LANE = np.arange(LANES, dtype=np.int64)
_ALL = np.full(LANES, 0xFFFFFFFF, np.uint32).tobytes()
_EVERYBODY = np.ones(LANES, bool)
_EVERYBODY.setflags(write=False)


# 1. Who takes part


def groups(warp: Warp, mask: Mask | None, members: Array) -> list[Mask]:
    """The active lanes by the membermask that they give; most often there is one group.

    Raises ``Trap`` for a lane that its own membermask does not name, and if lanes that one names
    give another. ``Unsupported`` if one names a lane that is diverged: it might come later on a
    device, but here it cannot.
    """
    if mask is None and members.tobytes() == _ALL:  # comparing bytes is the quickest way
        return [_EVERYBODY]
    active = _EVERYBODY if mask is None else mask
    given = members[active]
    if uniform(given):
        return [_group(warp, active, members, int(given[0]))]
    return [_group(warp, active, members, int(value)) for value in np.unique(given)]


def _group(warp: Warp, active: Mask, members: Array, value: int) -> Mask:
    """The active lanes whose membermask is ``value``, which must be those that it names."""
    group: Mask = active & (members == value)
    named = (value >> _LANE & 1).astype(bool) & warp.alive
    if (named == group).all():
        return group
    for wrong, kind, what in (
        (group & ~named, Trap, "does not name a lane that gives it"),
        (named & active & ~group, Trap, "names a lane that gives another"),
        (named & ~active, Unsupported, "names a lane that is diverged"),
    ):
        if wrong.any():
            lanes = tuple(np.flatnonzero(wrong).tolist())
            raise kind(f"membermask {value:#010x} {what}", Location(lanes=lanes))
    raise AssertionError(value)


# 2. shfl


@functools.lru_cache(1024)
def _source_lanes(mode: str, b: bytes, c: bytes) -> tuple[Array, Array]:
    """Which lane each lane reads, and whether it lies in the segment.

    The segment mask is in bits 8 to 12 of c, the clamp in bits 0 to 4.
    """
    lane_bits = np.frombuffer(b, np.uint32).astype(np.int64) & 31
    control = np.frombuffer(c, np.uint32).astype(np.int64)
    clamp, segment = control & 31, control >> 8 & 31
    low = _LANE & segment
    high = low | (clamp & ~segment)
    source = {
        "up": _LANE - lane_bits,
        "down": _LANE + lane_bits,
        "bfly": _LANE ^ lane_bits,
        "idx": low | (lane_bits & ~segment),
    }[mode]
    inside = source >= high if mode == "up" else source <= high
    return np.where(inside, source, _LANE), inside


def _shuffle(
    warp: Warp, mask: Mask | None, value: Array, operands: tuple[Array, Array, Array], mode: str
) -> tuple[Array, Array]:
    """Value and predicate of ``shfl.sync``."""
    b, c, members = operands
    source, inside = _source_lanes(mode, b.tobytes(), c.tobytes())
    for group in groups(warp, mask, members):
        if group is not _EVERYBODY and not group[source[group]].all():
            lanes = np.flatnonzero(group & ~group[source])
            raise Trap(
                f"shfl.sync.{mode} reads a lane that does not take part",
                Location(lanes=tuple(lanes.tolist())),
            )
    return value[source], inside


_MODES = ("up", "down", "bfly", "idx")
_shfl = functools.partial(instruction, mode=_MODES, section="9.7.9.6 shfl.sync", kind=Kind.EFFECT)


@_shfl("shfl.sync.<mode>.b32", "b32 = b32 b32 b32 b32")
def shfl(
    warp: Warp, mask: Mask | None, a: Array, b: Array, c: Array, members: Array, *, mode: str
) -> Array:
    """The register of another lane."""
    return _shuffle(warp, mask, a, (b, c, members), mode)[0]


@_shfl("shfl.sync.<mode>.b32", "b32|pred = b32 b32 b32 b32")
def shfl_predicate(
    warp: Warp, mask: Mask | None, a: Array, b: Array, c: Array, members: Array, *, mode: str
) -> tuple[Array, Array]:
    """The register of another lane, and whether that lane lies in the segment."""
    return _shuffle(warp, mask, a, (b, c, members), mode)


# 3. Votes and reductions


@instruction("elect.sync", "b32|pred = b32", section="9.7.13.14 elect.sync", kind=Kind.EFFECT)
def elect(warp: Warp, mask: Mask | None, members: Array) -> tuple[Array, Array]:
    """One lane of the members: here the lowest."""
    leader = np.zeros(LANES, np.uint32)
    for group in groups(warp, mask, members):
        leader[group] = np.argmax(group)
    return leader, leader == _LANE


_vote = functools.partial(instruction, section="9.7.13.9 vote.sync", kind=Kind.EFFECT)


@_vote("vote.sync.<mode>.pred", "pred = pred b32", mode=("all", "any", "uni"))
def vote(warp: Warp, mask: Mask | None, a: Array, members: Array, *, mode: str) -> Array:
    """Whether the predicate holds in all, any, or alike in the members."""
    answer = np.zeros(LANES, bool)
    for group in groups(warp, mask, members):
        everyone, anyone = a[group].all(), a[group].any()
        answer[group] = {"all": everyone, "any": anyone, "uni": everyone or not anyone}[mode]
    return answer


@_vote("vote.sync.ballot.b32", "b32 = pred b32")
def ballot(warp: Warp, mask: Mask | None, a: Array, members: Array) -> Array:
    """The set of members in which the predicate holds."""
    answer = np.zeros(LANES, np.uint32)
    for group in groups(warp, mask, members):
        answer[group] = _bits(a & group)
    return answer


def _bits(lanes: Mask) -> int:
    """A set of lanes as 32 bits."""
    return int.from_bytes(np.packbits(lanes, bitorder="little").tobytes(), "little")


@instruction("activemask.b32", "b32 =", section="9.7.13.11 activemask", kind=Kind.EFFECT)
def activemask(warp: Warp, mask: Mask | None) -> Array:
    """The set of active lanes."""
    return np.full(LANES, _bits(_EVERYBODY if mask is None else mask), np.uint32)


_match = functools.partial(
    instruction, t=("b32", "b64"), section="9.7.13.10 match.sync", kind=Kind.EFFECT
)


@_match("match.any.sync.<t>", "b32 = <t> b32")
def match_any(warp: Warp, mask: Mask | None, a: Array, members: Array) -> Array:
    """For each lane the set of members that hold the same value."""
    answer = np.zeros(LANES, np.uint32)
    for group in groups(warp, mask, members):
        for lane in np.flatnonzero(group):
            answer[lane] = _bits(group & (a == a[lane]))
    return answer


@_match("match.all.sync.<t>", "b32|pred = <t> b32")
def match_all(warp: Warp, mask: Mask | None, a: Array, members: Array) -> tuple[Array, Array]:
    """The set of all members and true if all hold one value, else 0 and false."""
    answer, alike = np.zeros(LANES, np.uint32), np.zeros(LANES, bool)
    for group in groups(warp, mask, members):
        alike[group] = (a[group] == a[group][0]).all()
        answer[group] = _bits(group) if alike[group].all() else 0
    return answer, alike


@_match("match.all.sync.<t>", "b32 = <t> b32")
def match_all_set(warp: Warp, mask: Mask | None, a: Array, members: Array) -> Array:
    """As above without the predicate."""
    return match_all(warp, mask, a, members)[0]


_redux = functools.partial(instruction, section="9.7.13.12 redux.sync", kind=Kind.EFFECT)
_REDUCTIONS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@_redux("redux.sync.<op>.<t>", "<t> = <t> b32", op=("add", "min", "max"), t=("u32", "s32"))
@_redux("redux.sync.<op>.b32", "b32 = b32 b32", op=("and", "or", "xor"))
def redux(warp: Warp, mask: Mask | None, a: Array, members: Array, *, op: str) -> Array:
    """The reduction over the members, in every lane."""
    answer = np.zeros(LANES, a.dtype)
    for group in groups(warp, mask, members):
        answer[group] = _REDUCTIONS[op].reduce(a[group], dtype=a.dtype)
    return answer


@_redux("redux.sync.<op><size><nan>.f32", "f32 = f32 b32", op=("min", "max"), size=("", ".abs"),
        nan=("", ".NaN"))  # fmt: skip
def redux_f32(
    warp: Warp, mask: Mask | None, a: Array, members: Array, *, op: str, size: str, nan: str
) -> Array:
    """The smallest or largest over the members; +0 is above -0, and NaN counts if asked for."""
    choose = float32.extreme_nan if nan else float32.extreme
    values, answer = np.abs(a) if size else a, np.zeros(LANES, np.float32)
    for group in groups(warp, mask, members):
        first, *rest = values[group].reshape(-1, 1)
        found = canonical_nan(first)
        for value in rest:
            found = choose(found, value, op=op)
        answer[group] = found
    return answer
