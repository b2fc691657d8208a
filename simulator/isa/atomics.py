"""Atomic read-modify-write of global and shared memory: atom and red, also on vectors.

Lanes take turns in order, and so do warps; a scope, a semantics and a cache hint change nothing of
that. f16 and bf16 keep subnormals (``.noftz``); f32 sums do in shared memory, but not in global.
Source: PTX ISA 9.7.13.5 atom, 9.7.13.6 red.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from simulator.errors import Location, Trap
from simulator.isa import float64, half
from simulator.isa.memory import generic_window
from simulator.isa.table import Kind, instruction
from simulator.isa.values import BITS, DTYPES
from simulator.machine.memory_map import OFFSET_MASK, RANK_SHIFT, SHARED_WINDOW
from simulator.machine.warp import LANES, Mask, Warp
from simulator.numerics.rounding import add32, flush

Array = Any
Operation = Callable[[Array, Array], Array]
_SCOPES = ("", ".cta", ".cluster", ".gpu", ".sys")
_SHARED = (".shared", ".shared::cta", ".shared::cluster")
_ATOM_ORDER = ("", ".relaxed", ".acquire", ".release", ".acq_rel")
_RED_ORDER = ("", ".relaxed", ".release")


# 1. What is done to one element: old and operand as arrays of one type


def _increment(old: Array, limit: Array) -> Array:
    """One more, or 0 once the limit is reached."""
    return np.where(old >= limit, np.zeros_like(old), old + np.ones_like(old))


def _decrement(old: Array, limit: Array) -> Array:
    """One less, or the limit from 0 and from above it."""
    return np.where((old == 0) | (old > limit), limit, old - np.ones_like(old))


_INTEGER: dict[str, Operation] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": _increment,
    "dec": _decrement,
    "exch": lambda _old, new: new,
}


def operation(op: str, t: str, *, is_global: bool) -> Operation:
    """``(old, operand) -> new`` of an operation on a type, both arrays in the type's dtype."""
    if t in ("f16", "f16x2", "bf16", "bf16x2"):
        if op == "add":
            return functools.partial(half.add, t=t, ftz="", limit="")
        return functools.partial(half.extreme, op=op, ftz="", nan="", size="", t=t)
    if t == "f64":
        return float64.add
    if t == "f32":
        return _add_flushed if is_global else add32
    return _INTEGER[op]


def _add_flushed(old: Array, operand: Array) -> Array:
    """A sum of global f32, where subnormals are zeros of their sign."""
    return flush(add32(flush(old), flush(operand)))


# 2. Where it is done


def _update(
    warp: Warp, lane: int, address: int, space: str, update: Callable[[Array], Array], shape: Any
) -> Array:
    """Replace the elements at an address by ``update`` of them; what they were."""
    item_bytes, count = shape
    only = np.zeros(LANES, bool)
    only[lane] = True
    if space == "":
        address, space = _of_generic(warp, only, address)
    if space == ".global":
        place = np.array([address], np.uint64)
        return warp.cta.cluster.memory.update(place, item_bytes, count, update, only)
    if space != ".shared::cluster" and address >> RANK_SHIFT != warp.cta.rank:
        name = warp.cta.cluster.shared_name(address)
        raise Trap(f"atom{space} in CTA rank {warp.cta.rank} of {name}", Location(lanes=(lane,)))
    shared = warp.cta.cluster.cta(address).shared
    return shared.update(np.array([address & OFFSET_MASK]), item_bytes, count, update, only)


def _of_generic(warp: Warp, only: Mask, address: int) -> tuple[int, str]:
    """A generic address as one of its space, and the space."""
    window = generic_window(warp, only, np.full(LANES, address, np.uint64))
    if window == SHARED_WINDOW:
        return address - SHARED_WINDOW, ".shared::cluster"
    if window:
        raise Trap("an atomic operation outside global and shared memory")
    return address, ".global"


def _perform(
    warp: Warp,
    mask: Mask | None,
    address: Array,
    rows: Array,
    compute: Callable[[int, Array], Array],
    space: str,
) -> Array:
    """``compute(lane, old)`` for each active lane in turn; the old elements [count, 32].

    ``rows`` [count, 32] has the shape and dtype of the elements.
    """
    old = np.zeros_like(rows)
    shape = rows.itemsize, len(rows)
    for lane in warp.lanes(mask).tolist():
        change = functools.partial(compute, lane)
        old[:, lane] = _update(warp, lane, int(address[lane]), space, change, shape)
    return old


# 3. Instructions


def _rows(operands: Array | tuple[Array, ...], t: str) -> Array:
    """The operands as unsigned elements [count, 32]."""
    stacked = np.stack(operands) if isinstance(operands, tuple) else operands[None]
    return np.ascontiguousarray(stacked).view(f"u{BITS[t] // 8}")


def atom(
    warp: Warp, mask: Mask | None, address: Array, value: Any, *_policy: Array, op: str, t: str,
    s: str,
) -> Array:  # fmt: skip
    """``[address] = op([address], value)`` in each lane; the old value."""
    rows = _rows(value, t)
    change = operation(op, t, is_global=s in ("", ".global"))
    if s == "" and t == "f32":
        change = _by_space(warp, mask, address, t)
    dtype = DTYPES[t]

    def compute(lane: int, old: Array) -> Array:
        operand = np.ascontiguousarray(rows[:, lane])
        return change(old.view(dtype), operand.view(dtype)).astype(dtype).view(rows.dtype)

    old = _perform(warp, mask, address, rows, compute, s)
    result = np.ascontiguousarray(old).view(dtype)
    return result if isinstance(value, tuple) else result[0]


def _by_space(warp: Warp, mask: Mask | None, address: Array, t: str) -> Operation:
    """The f32 sum that a generic address asks for."""
    window = generic_window(warp, mask, address)
    return operation("add", t, is_global=window != SHARED_WINDOW)


def red(
    warp: Warp, mask: Mask | None, address: Array, value: Any, *_policy: Array, op: str, t: str,
    s: str,
) -> None:  # fmt: skip
    """As ``atom``, without a result."""
    atom(warp, mask, address, value, op=op, t=t, s=s)


def compare_and_swap(
    warp: Warp, mask: Mask | None, address: Array, expected: Array, new: Array, *_policy: Array,
    t: str, s: str,
) -> Array:  # fmt: skip
    """``[address] = new`` where it is ``expected``; the old value."""
    rows, wanted = _rows(new, t), _rows(expected, t)

    def compute(lane: int, old: Array) -> Array:
        return np.where(old == wanted[:, lane], rows[:, lane], old)

    return _perform(warp, mask, address, rows, compute, s)[0]


# 4. Declarations

_ATOM = functools.partial(instruction, section="9.7.13.5 atom", kind=Kind.EFFECT)
_RED = functools.partial(instruction, section="9.7.13.6 red", kind=Kind.EFFECT)
_OPERATIONS: dict[str, tuple[str, ...]] = {
    "add": ("u32", "s32", "u64", "f32", "f64"),
    "add.noftz": ("f16", "f16x2", "bf16", "bf16x2"),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
    "inc": ("u32",),
    "dec": ("u32",),
}
_VECTORS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "add": (("f32",), (2, 4)),
    **{f"{op}.noftz": (("f16x2", "bf16x2"), (2, 4)) for op in ("add", "min", "max")},
}
_HALF_VECTORS = {f"{op}.noftz": (("f16", "bf16"), (2, 4, 8)) for op in ("add", "min", "max")}


def _declare(op: str, t: str, spaces: Iterable[str], count: int) -> None:
    """Enter atom and red of one operation on one type, alone or as a vector."""
    value, suffix = (t, "") if count == 1 else (f"({t}*{count})", f".v{count}")
    plain = op.partition(".")[0]
    for space in spaces:
        base = "b64" if space in ("", ".global") else "b32"
        for hint, policy in (("", ""), (".L2::cache_hint", " b64")):
            if hint and base == "b32":
                continue
            form = f"<sem><scope>{space}.{op}{hint}{suffix}.{t}"
            given = f"[{base}] {value}{policy}"
            bound: dict[str, Any] = {"op": (plain,), "t": (t,), "s": (space,)}
            _ATOM(f"atom{form}", f"{value} = {given}", sem=_ATOM_ORDER, scope=_SCOPES, **bound)(
                atom
            )
            _RED(f"red{form}", given, sem=_RED_ORDER, scope=_SCOPES, **bound)(red)


for _op, _types in _OPERATIONS.items():
    for _t in _types:
        _declare(_op, _t, ("", ".global", *_SHARED), 1)
for _table in (_VECTORS, _HALF_VECTORS):
    for _op, (_types, _counts) in _table.items():
        for _t in _types:
            for _count in _counts:
                _declare(_op, _t, (".global",), _count)

for _space in ("", ".global", *_SHARED):
    _base = "b64" if _space in ("", ".global") else "b32"
    _form: dict[str, Any] = {"sem": _ATOM_ORDER, "scope": _SCOPES, "s": (_space,)}
    for _hint, _policy in (("", ""), (".L2::cache_hint", " b64"))[: 2 if _base == "b64" else 1]:
        _ATOM(f"atom<sem><scope>{_space}.exch{_hint}.<t>", f"<t> = [{_base}] <t>{_policy}",
              t=("b32", "b64"), op=("exch",), **_form)(atom)  # fmt: skip
        _ATOM(f"atom<sem><scope>{_space}.cas{_hint}.<t>", f"<t> = [{_base}] <t> <t>{_policy}",
              t=("b16", "b32", "b64"), **_form)(compare_and_swap)  # fmt: skip
