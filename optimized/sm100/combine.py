"""The combine kernel: merges the splits of each row into its output and LSE.

A warp has one row, and is a CTA. It finds the splits' weights first, a lane each, and passes them
round. Partials are normalised, and their LSE is in base 2. A split without a visible key has the
LSE -inf; its output is not read, and need not exist.
"""

import math

import cutlass
from cutlass import Float32, Int32, Int64, cute, select_

from optimized.common import ptx
from optimized.plan import KV_LORA_RANK
from optimized.sm100.scheduler import Parameters

NUM_THREADS = 32
VECTOR = 4  # columns that a lane reads at once; next to them lie the next lane's
VECTORS = KV_LORA_RANK // (NUM_THREADS * VECTOR)  # of a lane
NOTHING = -math.inf

Columns = tuple[Float32, ...]


@cute.jit
def run(config: cutlass.Constexpr, p: Parameters) -> None:
    """The body of the kernel: the row of this CTA."""
    lane, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    row = Int64(block)
    ptx.wait_for_prerequisite_grids()  # before the first read of a partial
    lses = p.partial_lse + 4 * (row * Int64(p.num_splits))
    total = _total(lses, lane, p.num_splits)
    columns = (Float32(0.0),) * (VECTORS * VECTOR)
    if total != Float32(NOTHING):
        columns = _merged(p, row, lses, total, lane)
    out = p.out + 2 * (row * Int64(KV_LORA_RANK) + Int64(lane * VECTOR))
    for at in cutlass.range_constexpr(VECTORS):
        scaled = [column * p.output_scale for column in columns[at * VECTOR : (at + 1) * VECTOR]]
        words = [ptx.pack_half(config.output_dtype, *scaled[i : i + 2]) for i in (0, 2)]
        ptx.store_global_words(ptx.Place(out, 2 * at * NUM_THREADS * VECTOR), words)
    if lane == 0:
        ptx.store_global_float(p.lse + 4 * row, total * p.lse_scale)


@cute.jit
def _lse(lses: Int64, split: Int32, num_splits: Int32) -> Float32:
    """The LSE of a split; -inf past the last one."""
    lse = Float32(NOTHING)
    if split < num_splits:
        lse = ptx.load_global_float(lses + 4 * Int64(split))
    return lse


@cute.jit
def _total(lses: Int64, lane: Int32, num_splits: Int32) -> Float32:
    """The LSE over all splits, in base 2; -inf where none sees a key."""
    largest = Float32(NOTHING)
    for first in cutlass.range(0, num_splits, NUM_THREADS, unroll=1):
        largest = cute.arch.fmax(largest, _lse(lses, first + lane, num_splits))
    for step in cutlass.range_constexpr(5):
        largest = cute.arch.fmax(largest, cute.arch.shuffle_sync_bfly(largest, offset=1 << step))
    base = select_(largest == Float32(NOTHING), Float32(0.0), largest)
    total = Float32(0.0)
    for first in cutlass.range(0, num_splits, NUM_THREADS, unroll=1):
        total += ptx.exp2(_lse(lses, first + lane, num_splits) - base)
    for step in cutlass.range_constexpr(5):
        total += cute.arch.shuffle_sync_bfly(total, offset=1 << step)
    return base + ptx.log2(total)


@cute.jit
def _merged(p: Parameters, row: Int64, lses: Int64, total: Float32, lane: Int32) -> Columns:
    """The weighted sum of the splits' columns of this lane."""
    columns = (Float32(0.0),) * (VECTORS * VECTOR)
    part = p.partial_out + 4 * (row * Int64(p.num_splits * KV_LORA_RANK) + Int64(lane * VECTOR))
    for first in cutlass.range(0, p.num_splits, NUM_THREADS, unroll=1):
        mine = ptx.exp2(_lse(lses, first + lane, p.num_splits) - total)
        count = ptx.smaller(p.num_splits - first, Int32(NUM_THREADS))
        for other in cutlass.range(count, unroll=1):
            weight = cute.arch.shuffle_sync(mine, other)
            if weight > 0.0:
                columns = _added(columns, weight, part)
            part = part + 4 * KV_LORA_RANK
    return columns


def _added(columns: Columns, weight: Float32, part: Int64) -> Columns:
    """``columns`` and, weighted, those that a split has at ``part``."""
    read = [
        ptx.load_global_float4(ptx.Place(part, 4 * at * NUM_THREADS * VECTOR))
        for at in range(VECTORS)
    ]
    values = [value for vector in read for value in vector]
    return tuple(c + weight * value for c, value in zip(columns, values, strict=True))
