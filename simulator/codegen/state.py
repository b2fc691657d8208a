"""What native code and Python both see: the state of a warp, and the memories of its cluster.

These are C structures at fixed addresses. Python reads and writes them as attributes, native code
by the offsets of their fields.
"""

from __future__ import annotations

import ctypes

from simulator.machine.warp import LANES

MAX_STACK = 2 * LANES + 2
"""Entries of the divergence stack: each of the at most 31 splits of a warp pushes two."""


class StackEntry(ctypes.Structure):
    """What ``Warp.stack`` holds: the block to continue at, where its lanes join, and the lanes."""

    _fields_ = (
        ("block", ctypes.c_int64),
        ("reconverges", ctypes.c_int64),
        ("mask", ctypes.c_int64),
    )


class WarpState(ctypes.Structure):
    """A warp between two runs. Masks are 32 bits, lane 0 lowest.

    ``resume`` is the address of the instruction to continue with inside ``block``, 0 for its start.
    The tickets are -1 while none is held; ``waiting`` is one of the constants below, and
    ``asleep_since`` what ``ClusterState.events`` was when the warp began to wait, -1 if it does
    not. ``initial`` is the address of what the state is before a warp of this rank has run, up to
    ``nothing``, which stays zero.
    """

    _fields_ = (
        *((name, ctypes.c_int64) for name in (
            "registers", "blocks", "block_count", "cta", "cluster", "rank",
            "block", "reconverges", "mask", "alive", "resume", "budget",
            "instructions", "polls", "advanced", "polling", "attempted", "ticket",
            "waiting", "waiting_for", "parity", "cluster_ticket", "blocked", "done",
            "asleep_since", "depth", "initial",
        )),
        ("nothing", ctypes.c_int64 * 4),
        ("stack", StackEntry * MAX_STACK),
    )  # fmt: skip


class ClusterState(ctypes.Structure):
    """A cluster during a round: the addresses of its live warps' states, in turn order.

    ``events`` counts what may wake a warp. ``cursor`` is the warp whose turn it is and ``step`` one
    of the constants below; ``advanced`` says whether any warp has done more than poll this round.
    ``barrier`` is the address of the cluster's barrier. ``number`` counts rounds; in every
    ``sleep``-th, and after one that was ``idle``, all warps are ``awake``. The ``before_`` fields
    hold what ``events`` and ``completed`` were when the last round began.

    With ``eager`` asynchronous work completes at once, and native code may do it: ``completed``
    counts it, and the last fields what it was. The functions of MMAs are at the addresses ``mma_``,
    that of bulk loads at ``tma_load``. MMAs keep ``fraction_`` bits, or are Python's if that is
    negative, and work in the room ``scratch``.

    ``successors`` are clusters that native code may begin when this one has ended with neither
    mbarriers nor TMEM: so many rows of ``special_bytes`` for each CTA, from ``special_rows``, hold
    their special registers, which a warp has behind its ``register_bytes``. ``begun`` counts those
    it has begun since Python looked; ``past_instructions`` and ``past_polls`` are of warps that
    ended before. All ``warp_total`` states are listed at ``all_warps``. Of a cluster that is
    ``watched`` exits are Python's.
    """

    _fields_ = tuple((name, ctypes.c_int64) for name in (
        "events", "warps", "count", "cursor", "step", "advanced", "idle", "turn_blocks", "rounds",
        "barrier", "number", "sleep", "awake", "before_events", "before_completed",
        "eager", "scratch", "fraction_f16", "fraction_f8f6f4", "mma_f16", "mma_f8f6f4", "tma_load",
        "completed", "mma", "mma_flop", "tma_loads", "tma_load_bytes",
        "successors", "begun", "special_rows", "special_bytes", "register_bytes",
        "all_warps", "warp_total", "cta_list", "cta_total", "past_instructions", "past_polls",
        "watched",
    ))  # fmt: skip


COUNTS = ("mma", "mma_flop", "tma_loads", "tma_load_bytes")
"""Fields of ``ClusterState`` that count events, under the names that a run reports."""

BEGIN_TURN, CONTINUE_TURN, END_TURN = range(3)
"""Values of ``step``: where the round continues after Python did its part."""

NOT_WAITING, FOR_MBARRIER, FOR_BARRIER, FOR_CLUSTER, FOR_OTHER = range(5)
"""Values of ``waiting``; ``waiting_for`` is the mbarrier's address or the barrier's number."""


class CtaState(ctypes.Structure):
    """The memories and barriers of a CTA: addresses, 0 where something does not exist yet.

    ``threads`` counts those that have not exited. ``ctas`` is the first of the cluster's
    ``CtaState``, in rank order. ``mbarriers`` and ``named`` are arrays of addresses of barrier
    objects: by offset / 8, and by number. ``pool`` holds ``MBARRIER_POOL`` mbarrier structures, of
    which ``pooled`` have been made objects; 0 if the program has no mbarrier. ``thread_total`` is
    what ``threads`` is at first.
    """

    _fields_ = (
        *((name, ctypes.c_int64) for name in (
            "rank", "threads", "warp_count", "ctas", "cta_count",
            "shared", "shared_valid", "shared_size", "check_shared",
            "tensor", "tensor_valid", "tensor_owner", "check_tensor",
            "mbarriers", "parameters", "parameter_bytes", "regions", "region_count",
            "named_count", "pool", "pooled", "thread_total",
        )),
        ("named", ctypes.c_int64 * 16),
    )  # fmt: skip


class RegionState(ctypes.Structure):
    """An allocation ``[start, end)``; ``valid`` has a byte for each of its bytes from ``base``."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("start", "end", "base", "valid"))


class BlockState(ctypes.Structure):
    """A basic block: its instruction records ``[code, end)``, how many, and where it continues.

    ``kind`` is one of the constants below. Of a branch ``predicate`` is the register's offset and
    ``negated`` and ``uniform`` are 0 or 1; ``target`` is also where a goto or wait continues.
    ``executed`` counts how often the block has run, ``taken`` and ``passed`` where its branch went.
    """

    _fields_ = tuple((name, ctypes.c_int64) for name in (
        "code", "end", "count", "kind", "predicate", "negated", "uniform",
        "target", "otherwise", "reconverges", "executed", "taken", "passed",
    ))  # fmt: skip


MBARRIER_POOL = 128
"""The mbarrier objects that native code may make in a CTA; Python makes what goes beyond."""

GOTO, BRANCH, WAIT, EXIT = range(4)
"""Values of ``BlockState.kind``."""

DONE_TURN, BLOCKED, EXITED, NEEDS_PYTHON, AT_BRANCH, AT_EXIT, DONE_ROUND = range(7)
"""Why native code returned: the budget is spent; a wait does not complete; all lanes have left; the
instruction at ``resume`` (or the wait that is ``block``) is Python's to do; a branch must be
refused; lanes exit in an uncommon way; or, of a round, all turns are done."""

HEADER_WORDS = 3
"""A record begins with the function's address, its own bytes, its place in the block."""
