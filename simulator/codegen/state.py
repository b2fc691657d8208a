"""What native code and Python both see: the state of a warp, and the memories of its cluster.

These are C structures at fixed addresses. Python reads and writes them as attributes; native code by
the offsets of their fields.
"""

from __future__ import annotations

import ctypes

from simulator.machine.warp import LANES

MAX_STACK = 2 * LANES + 2
"""Entries of the divergence stack: each of the at most 31 splits of a warp pushes two."""


class StackEntry(ctypes.Structure):
    """What ``Warp.stack`` holds: the block to continue at, where its lanes join, and the lanes."""

    _fields_ = (("block", ctypes.c_int64), ("reconverges", ctypes.c_int64), ("mask", ctypes.c_int64))


class WarpState(ctypes.Structure):
    """A warp between two runs. Masks are 32 bits, lane 0 lowest.

    ``resume`` is the address of the instruction to continue with inside ``block``, 0 for its start.
    ``ticket`` is -1 while none is held; ``waiting`` is one of the constants below. ``events``
    counts phases and openings that this warp ended and Python has not noted yet.
    """

    _fields_ = (
        *((name, ctypes.c_int64) for name in (
            "registers", "blocks", "block_count", "cta", "rank",
            "block", "reconverges", "mask", "alive", "resume", "budget",
            "instructions", "polls", "advanced", "polling", "attempted", "ticket",
            "waiting", "waiting_for", "parity", "events", "depth",
        )),
        ("stack", StackEntry * MAX_STACK),
    )  # fmt: skip


NOT_WAITING, FOR_MBARRIER, FOR_BARRIER, FOR_OTHER = range(4)
"""Values of ``waiting``; ``waiting_for`` is the mbarrier's shared address or the barrier's number."""


class CtaState(ctypes.Structure):
    """The memories and barriers of a CTA: addresses, 0 where something does not exist yet.

    ``ctas`` is the first of the cluster's ``CtaState``, in rank order. ``mbarriers`` and ``named``
    are arrays of addresses of barrier objects: by offset / 8, and by number.
    """

    _fields_ = (
        *((name, ctypes.c_int64) for name in (
            "rank", "threads", "ctas", "cta_count",
            "shared", "shared_valid", "shared_size", "check_shared",
            "tensor", "tensor_valid", "tensor_owner", "check_tensor",
            "mbarriers", "parameters", "parameter_bytes", "regions", "region_count",
        )),
        ("named", ctypes.c_int64 * 16),
    )  # fmt: skip


class RegionState(ctypes.Structure):
    """An allocation of global memory ``[start, end)``; ``valid`` holds a byte for each from ``base``."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("start", "end", "base", "valid"))


class BlockState(ctypes.Structure):
    """A basic block: its instruction records ``[code, end)``, how many, and where it continues.

    ``kind`` is one of the constants below. Of a branch ``predicate`` is the register's offset and
    ``negated`` and ``uniform`` are 0 or 1; ``target`` is also where a goto or wait continues.
    """

    _fields_ = tuple((name, ctypes.c_int64) for name in (
        "code", "end", "count", "kind", "predicate", "negated", "uniform",
        "target", "otherwise", "reconverges",
    ))  # fmt: skip


GOTO, BRANCH, WAIT, EXIT = range(4)
"""Values of ``BlockState.kind``."""

DONE_TURN, BLOCKED, NEEDS_PYTHON, AT_EXIT, AT_BRANCH = range(5)
"""Why native code returned: the budget is spent; a wait does not complete; the instruction at
``resume`` (or the wait that is ``block``) is Python's to do; lanes exit; a branch must be refused."""

HEADER_WORDS = 3
"""An instruction record begins with the function's address, its own bytes, its place in the block."""
