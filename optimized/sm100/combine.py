"""The combine kernel: merges the splits of each row into its output and LSE.

A CTA has one row, a thread four of its columns. Partials are normalised, and their LSE is in base
2. A split without a visible key has the LSE -inf; its output is not read, and need not exist.
"""

import math

import cutlass
from cutlass import Float32, Int32, Int64, cute, select_

from optimized.common import ptx
from optimized.plan import KV_LORA_RANK
from optimized.sm100.scheduler import Parameters

COLUMNS = 4  # of a thread
NUM_THREADS = KV_LORA_RANK // COLUMNS
WARP_THREADS = 32
NOTHING = -math.inf


@cute.jit
def run(config: cutlass.Constexpr, p: Parameters) -> None:
    """The body of the kernel: the row of this CTA."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    row = Int64(block)
    ptx.wait_for_prerequisite_grids()  # before the first read of a partial
    lses = p.partial_lse + 4 * (row * Int64(p.num_splits))
    total = _total(lses, thread % WARP_THREADS, p.num_splits)
    columns = (Float32(0.0),) * COLUMNS
    if total != Float32(NOTHING):
        columns = _merged(p, row, lses, total, thread)
    scaled = [column * p.output_scale for column in columns]
    words = [ptx.pack_half(config.output_dtype, *scaled[at : at + 2]) for at in (0, 2)]
    at = row * Int64(KV_LORA_RANK) + Int64(thread * COLUMNS)
    ptx.store_global_words(p.out + 2 * at, words)
    if thread == 0:
        ptx.store_global_float(p.lse + 4 * row, total * p.lse_scale)


@cute.jit
def _total(lses: Int64, lane: Int32, num_splits: Int32) -> Float32:
    """The LSE over all splits, in base 2; -inf where none sees a key."""
    largest = Float32(NOTHING)
    for split in cutlass.range(lane, num_splits, WARP_THREADS, unroll=1):
        largest = cute.arch.fmax(largest, ptx.load_global_float(lses + 4 * Int64(split)))
    for step in cutlass.range_constexpr(5):
        largest = cute.arch.fmax(largest, cute.arch.shuffle_sync_bfly(largest, offset=1 << step))
    base = select_(largest == Float32(NOTHING), Float32(0.0), largest)
    total = Float32(0.0)
    for split in cutlass.range(lane, num_splits, WARP_THREADS, unroll=1):
        total += ptx.exp2(ptx.load_global_float(lses + 4 * Int64(split)) - base)
    for step in cutlass.range_constexpr(5):
        total += cute.arch.shuffle_sync_bfly(total, offset=1 << step)
    return base + ptx.log2(total)


@cute.jit
def _merged(
    p: Parameters, row: Int64, lses: Int64, total: Float32, thread: Int32
) -> tuple[Float32, ...]:
    """The weighted sum of the splits' columns of this thread."""
    columns = (Float32(0.0),) * COLUMNS
    first = row * Int64(p.num_splits)
    for split in cutlass.range(p.num_splits, unroll=1):
        weight = ptx.exp2(ptx.load_global_float(lses + 4 * Int64(split)) - total)
        if weight > 0.0:
            at = (first + Int64(split)) * Int64(KV_LORA_RANK) + Int64(thread * COLUMNS)
            part = ptx.load_global_float4(p.partial_out + 4 * at)
            columns = tuple(c + weight * x for c, x in zip(columns, part, strict=True))
    return columns
