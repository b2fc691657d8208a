"""The warps that turn scores into weights: running row maximum and sum, P, and the LSE.

A row's two threads, one in each of two warps, hold half of its keys each. They tell each other
their maximum through shared memory: in slots that alternate from tile to tile, with one barrier
between write and read. The write of the tile after next comes after the barrier of the next tile,
which the partner passes after its read.

The maximum that P is relative to follows the true one only when that has grown by more than the
threshold. A score is masked in tensor memory, before it is read: tiles that every row sees whole,
the bulk, carry no code for it. -inf stands for "nobody sees it", also as a row's maximum.
"""

import math
from dataclasses import dataclass

import cutlass
from cutlass import Float32, Int32, Int64, cute, select_

from optimized.common import ptx
from optimized.common.ptx import Place
from optimized.plan import TILE_N
from optimized.sm100 import tmem
from optimized.sm100.config import GROUP, LOG2_P_SCALE, RESCALE_THRESHOLD, ROWS, Config
from optimized.sm100.context import Context, signal
from optimized.sm100.scheduler import (
    Plain,
    Row,
    Work,
    plain_positions,
    row_of,
    stored_row,
    visible,
    work_at,
)
from optimized.sm100.smem import FLOAT_BYTES, SLOT_BYTES
from optimized.sm100.warps import FIRST_PAIR_BARRIER, WARP_THREADS

KEYS = TILE_N // 2  # of a tile that a thread holds
VECTOR_BYTES = 16  # of a store to shared memory
WORD_BYTES = 4
NOTHING = -math.inf


@dataclass(frozen=True)
class Thread:
    """Which row of the CTA a thread has, and which half of its keys."""

    row: Int32
    half: Int32
    pair_barrier: Int32
    slot: Int32  # shared memory's address, moved on by the thread's place in a slot
    partner_slot: Int32  # the same for the row's other thread
    columns: Int32  # tensor memory's address, at this warp's lanes


@dataclass(frozen=True)
class Task:
    """What a softmax thread knows of a piece of work."""

    thread: Thread
    row: Row
    work: Work
    plain: Plain


def thread_of(c: Context) -> Thread:
    """The place of this softmax or correction thread."""
    warp = ptx.quotient(c.thread, WARP_THREADS)
    return Thread(
        ptx.remainder(c.thread, ROWS),
        ptx.quotient(c.thread, ROWS),
        ptx.opaque(ptx.remainder(warp, 2) + FIRST_PAIR_BARRIER),
        ptx.opaque(c.shared + c.thread * FLOAT_BYTES),
        ptx.opaque(c.shared + (c.thread ^ ROWS) * FLOAT_BYTES),
        ptx.opaque(c.tensor_memory + (warp * WARP_THREADS << tmem.LANE_SHIFT)),
    )


@cute.jit
def run(c: Context) -> None:
    """Weigh every tile of every piece of work, and store the LSE of its rows."""
    p, layout = c.parameters, c.layout
    thread = thread_of(c)
    count = Int32(0)
    for index in cutlass.range(c.cluster, p.num_work, c.num_clusters, unroll=1):
        work = work_at(index, p, c.config)
        row = row_of(c.rank * ROWS + thread.row, work, p)
        task = Task(thread, row, work, plain_positions(work, p))
        row_max, row_sum = Float32(NOTHING), Float32(0.0)
        for step in cutlass.range(work.num_tiles, unroll=1):
            row_max, row_sum = _tile(c, task, step, count, row_max, row_sum)
            count += 1
        if work.num_tiles > 0:
            # The output of the last tile: its `rescale` slot may be written again after this.
            ptx.wait_barrier(c.barrier("output"), (count - 1) & 1)
            _tell(c, Place(thread.slot, layout.final), row_sum, c.barrier("final"))
            ptx.sync_threads(thread.pair_barrier, 2 * WARP_THREADS)
            row_sum += ptx.load_shared_float(Place(thread.partner_slot, layout.final))
        _store_lse(c, thread, row, work, row_max, row_sum)


@cute.jit
def _tile(
    c: Context, task: Task, step: Int32, count: Int32, row_max: Float32, row_sum: Float32
) -> tuple[Float32, Float32]:
    """Weigh one tile; gives back the row's new maximum, and this thread's new sum."""
    thread, plain = task.thread, task.plain
    position = (task.work.first_tile + step) * TILE_N
    config, layout, p = c.config, c.layout, c.parameters
    slot = count & 1
    scores = thread.columns + tmem.SCORES + slot * tmem.SCORES_COLS

    # 1. Scores, masked where some row does not see the whole tile
    ptx.wait_barrier(c.barrier("scores", slot), (count >> 1) & 1)
    tmem.fence_after()
    if (position < plain.low) | (position + TILE_N > plain.high):
        _hide(scores, task, position + thread.half * KEYS)
    values = tmem.load_columns(scores, KEYS)

    # 2. The row's maximum
    tile_max = values[0]
    for at in cutlass.range_constexpr(1, KEYS - 1, 2):
        tile_max = ptx.max3(tile_max, values[at], values[at + 1])
    tile_max = cute.arch.fmax(tile_max, values[KEYS - 1])
    mine = thread.slot + slot * SLOT_BYTES
    ptx.store_shared_float(Place(mine, layout.exchange), tile_max)
    ptx.sync_threads(thread.pair_barrier, 2 * WARP_THREADS)
    partner = Place(thread.partner_slot + slot * SLOT_BYTES, layout.exchange)
    tile_max = cute.arch.fmax(tile_max, ptx.load_shared_float(partner))
    grown = (tile_max - row_max) * p.scale > RESCALE_THRESHOLD
    new_max = select_(grown, tile_max, row_max)
    base = select_(new_max == Float32(NOTHING), Float32(0.0), new_max)
    factor = select_(grown, ptx.exp2((row_max - base) * p.scale), Float32(1.0))
    _tell(c, Place(mine, layout.rescale), factor, c.barrier("rescale", slot))

    # 3. Weights, and their sum before they are cast
    bias = Float32(LOG2_P_SCALE) - base * p.scale
    sums = (Float32(0.0), Float32(0.0))
    words = []
    for at in cutlass.range_constexpr(0, KEYS, 4):
        weights = []
        for pair in ((values[at], values[at + 1]), (values[at + 2], values[at + 3])):
            pair = cute.arch.fma_packed_f32x2(pair, (p.scale, p.scale), (bias, bias))
            pair = (ptx.exp2(pair[0]), ptx.exp2(pair[1]))
            sums = cute.arch.add_packed_f32x2(sums, pair)
            weights += pair
        words += _cast(config, weights)

    # 4. P, once the product with the tile before has read the previous one
    if count > 0:
        ptx.wait_barrier(c.barrier("output"), (count - 1) & 1)
    _store_weights(c, thread, words)
    ptx.fence_async_proxy()  # P, for the tensor core
    tmem.fence_before()  # the scores have been read
    signal(c, c.leaders("ready", slot))
    return new_max, row_sum * factor + (sums[0] + sums[1])


@cute.jit
def _hide(scores: Int32, task: Task, position: Int32) -> None:
    """Make -inf of the scores, in tensor memory, whose positions the row does not see."""
    for at in cutlass.range_constexpr(0, KEYS, WARP_THREADS):
        seen = visible(task.row, task.work, position + at)
        values = tmem.load_columns(scores + at, WARP_THREADS)
        shown = [ptx.shown(value, seen, bit) for bit, value in enumerate(values)]
        tmem.store_columns(scores + at, shown)


@cute.jit
def _tell(c: Context, place: Place, value: Float32, barrier: Place) -> None:
    """Leave a value for the correction thread of the same row and half."""
    ptx.store_shared_float(place, value)
    ptx.sync_warp()
    if c.lane == 0:
        ptx.arrive(barrier)


def _cast(config: Config, weights: list[Float32]) -> list[cutlass.Uint32]:
    """Four weights in the input's dtype, as words."""
    if config.is_fp8:
        return [ptx.pack_e4m3(weights)]
    return [ptx.pack_half(config.dtype, *weights[at : at + 2]) for at in (0, 2)]


def _store_weights(c: Context, thread: Thread, words: list[cutlass.Uint32]) -> None:
    """Write a thread's weights, which are one swizzle span of P."""
    config = c.config
    span = c.shared + c.layout.probabilities + thread.half * c.layout.query_group_bytes
    span = span + thread.row * config.span_bytes
    # The swizzle exclusive-ors bits 4.. of an address with bits 7..; a group starts at a pattern.
    pattern = (span >> 7) & (config.span_bytes // VECTOR_BYTES - 1)
    per_vector = VECTOR_BYTES // WORD_BYTES
    for at in range(0, len(words), per_vector):
        vector = (pattern ^ (at // per_vector)) * VECTOR_BYTES
        ptx.store_shared_words(span + vector, words[at : at + per_vector])


@cute.jit
def _store_lse(
    c: Context, thread: Thread, row: Row, work: Work, row_max: Float32, row_sum: Float32
) -> None:
    """Store the LSE of a row: that of the call, or in base 2 that of a split."""
    p = c.parameters
    if row.valid & (thread.half == 0):
        base = select_(row_max == Float32(NOTHING), Float32(0.0), row_max)
        lse = ptx.log2(row_sum) + (base * p.scale - Float32(LOG2_P_SCALE))
        at = stored_row(row, work, p)
        if p.num_splits == 1:
            ptx.store_global_float(p.lse + 4 * at, lse * p.lse_scale)
        else:
            at = at * Int64(p.num_splits) + Int64(work.split)
            ptx.store_global_float(p.partial_lse + 4 * at, lse)


assert KEYS == GROUP  # a thread's weights are one span
