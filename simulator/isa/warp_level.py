"""Exchange between the lanes of a warp. Source: PTX ISA 9.7.9.6 shfl.sync and 9.7.13."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from simulator.errors import Location, Trap
from simulator.isa.table import Kind, instruction
from simulator.machine.warp import LANES, Mask, Warp

Array = Any
_LANE = np.arange(LANES, dtype=np.int64)
_ALL = np.full(LANES, 0xFFFFFFFF, np.uint32).tobytes()


def require_members(warp: Warp, mask: Mask | None, members: Array) -> Mask:
    """The lanes that ``membermask`` names; ``Trap`` unless they are exactly the active ones.

    PTX leaves undefined what happens when a lane that executes is not named. A lane that is named
    and does not take part would be waited for; here lanes of a warp diverge only in control flow,
    so it never comes.
    """
    active = np.ones(LANES, bool) if mask is None else mask
    if mask is None and members.tobytes() == _ALL:  # comparing bytes is the quickest way
        return active
    for lane in np.flatnonzero(active):
        named = (int(members[lane]) >> _LANE & 1).astype(bool)
        if (named & warp.alive != active).any():
            lanes = tuple(int(x) for x in np.flatnonzero(active))
            raise Trap(f"membermask {int(members[lane]):#010x} is not the set of active lanes",
                       Location(lanes=lanes))  # fmt: skip
    return active


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
    source = {"up": _LANE - lane_bits, "down": _LANE + lane_bits, "bfly": _LANE ^ lane_bits,
              "idx": low | (lane_bits & ~segment)}[mode]  # fmt: skip
    inside = source >= high if mode == "up" else source <= high
    return np.where(inside, source, _LANE), inside


def _shuffle(warp: Warp, mask: Mask | None, value: Array, operands: tuple[Array, Array, Array], mode: str
             ) -> tuple[Array, Array]:  # fmt: skip
    """Value and predicate of ``shfl.sync``."""
    b, c, members = operands
    active = require_members(warp, mask, members)
    source, inside = _source_lanes(mode, b.tobytes(), c.tobytes())
    if mask is not None and not active[source[active]].all():
        raise Trap(f"shfl.sync.{mode} reads a lane that is not active")
    return value[source], inside


@instruction("shfl.sync.<mode>.b32", "b32 = b32 b32 b32 b32", mode=("up", "down", "bfly", "idx"),
             section="9.7.9.6 shfl.sync", kind=Kind.EFFECT)  # fmt: skip
def shfl(warp: Warp, mask: Mask | None, a: Array, b: Array, c: Array, members: Array, *, mode: str) -> Array:
    """The register of another lane."""
    return _shuffle(warp, mask, a, (b, c, members), mode)[0]


@instruction("shfl.sync.<mode>.b32", "b32|pred = b32 b32 b32 b32", mode=("up", "down", "bfly", "idx"),
             section="9.7.9.6 shfl.sync", kind=Kind.EFFECT)  # fmt: skip
def shfl_predicate(warp: Warp, mask: Mask | None, a: Array, b: Array, c: Array, members: Array, *, mode: str
                   ) -> tuple[Array, Array]:  # fmt: skip
    """The register of another lane, and whether that lane lies in the segment."""
    return _shuffle(warp, mask, a, (b, c, members), mode)


@instruction("elect.sync", "b32|pred = b32", section="9.7.13.8 elect.sync", kind=Kind.EFFECT)
def elect(warp: Warp, mask: Mask | None, members: Array) -> tuple[Array, Array]:
    """One lane of the members: here the lowest."""
    leader = int(np.argmax(require_members(warp, mask, members)))
    return np.full(LANES, leader, np.uint32), _LANE == leader


@instruction("vote.sync.<mode>.pred", "pred = pred b32", mode=("all", "any", "uni"),
             section="9.7.13.5 vote.sync", kind=Kind.EFFECT)  # fmt: skip
def vote(warp: Warp, mask: Mask | None, a: Array, members: Array, *, mode: str) -> Array:
    """Whether the predicate holds in all, any, or alike in the members."""
    votes = a[require_members(warp, mask, members)]
    answer = {"all": votes.all(), "any": votes.any(), "uni": votes.all() or not votes.any()}[mode]
    return np.full(LANES, bool(answer))


@instruction("vote.sync.ballot.b32", "b32 = pred b32", section="9.7.13.5 vote.sync", kind=Kind.EFFECT)
def ballot(warp: Warp, mask: Mask | None, a: Array, members: Array) -> Array:
    """The set of members in which the predicate holds."""
    votes = a & require_members(warp, mask, members)
    return np.full(LANES, int((votes.astype(np.uint64) << _LANE.astype(np.uint64)).sum()), np.uint32)


@instruction("activemask.b32", "b32 =", section="9.7.13.7 activemask", kind=Kind.EFFECT)
def activemask(warp: Warp, mask: Mask | None) -> Array:
    """The set of active lanes."""
    active = np.ones(LANES, np.uint64) if mask is None else mask.astype(np.uint64)
    return np.full(LANES, int((active << _LANE.astype(np.uint64)).sum()), np.uint32)


@instruction("redux.sync.<op>.<t>", "<t> = <t> b32", op=("add", "min", "max"), t=("u32", "s32"),
             section="9.7.13.6 redux.sync", kind=Kind.EFFECT)  # fmt: skip
@instruction("redux.sync.<op>.<t>", "<t> = <t> b32", op=("and", "or", "xor"), t=("b32",),
             section="9.7.13.6 redux.sync", kind=Kind.EFFECT)  # fmt: skip
def redux(warp: Warp, mask: Mask | None, a: Array, members: Array, *, op: str) -> Array:
    """The reduction over the members, in every lane."""
    reduce = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
              "or": np.bitwise_or, "xor": np.bitwise_xor}[op]  # fmt: skip
    return np.full(LANES, reduce.reduce(a[require_members(warp, mask, members)], dtype=a.dtype), a.dtype)
