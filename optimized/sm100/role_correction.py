"""The warps that own the output: they load the query, rescale the output, and write it.

While a piece of work runs they multiply the output in tensor memory by the factors that the softmax
warps leave, in the rare tile where some row of a warp has one; at its end they normalise and store.
"""

import cutlass
from cutlass import Float32, Int32, Int64, cute, select_

from optimized.common import ptx
from optimized.common.ptx import Place
from optimized.sm100 import tmem
from optimized.sm100.config import QK_GROUPS, ROWS, VALUE_BLOCK, VALUE_BLOCKS
from optimized.sm100.context import Context, signal
from optimized.sm100.role_softmax import Thread, thread_of
from optimized.sm100.scheduler import Row, Work, row_of, stored_row, work_at
from optimized.sm100.smem import SLOT_BYTES
from optimized.sm100.warps import ROLE_THREADS

COPY_BYTES = 16
COPY_LANES = 4  # that copy a row: their pieces of 16 bytes lie side by side
TRANSFER = 32  # columns that a thread holds at a time


@cute.jit
def run(c: Context) -> None:
    """Serve every piece of work: query in, output rescaled and out."""
    p, layout = c.parameters, c.layout
    thread = thread_of(c)
    count, works = Int32(0), Int32(0)
    for index in cutlass.range(c.cluster, p.num_work, c.num_clusters, unroll=1):
        work = work_at(index, p, c.config)
        row = row_of(c.rank * ROWS + thread.row, work, p)
        total = Float32(0.0)
        if work.num_tiles > 0:
            _load_query(c, work)
            for step in cutlass.range(work.num_tiles, unroll=1):
                _rescale_tile(c, thread, step, count)
                count += 1
            ptx.wait_barrier(c.barrier("final"), works & 1)
            total = ptx.load_shared_float(Place(thread.slot, layout.final))
            total += ptx.load_shared_float(Place(thread.partner_slot, layout.final))
            works += 1
            ptx.wait_barrier(c.barrier("output"), (count - 1) & 1)
            tmem.fence_after()
        if (work.num_tiles > 0) | (p.num_splits == 1):
            _store(c, thread, row, work, total)


@cute.jit
def _load_query(c: Context, work: Work) -> None:
    """Copy the CTA's rows of the query, swizzled; rows that stand for no token become zeros."""
    p, lane = c.parameters, ptx.remainder(c.thread, COPY_LANES)
    for at in cutlass.range_constexpr(0, ROWS, ROLE_THREADS // COPY_LANES):
        in_cta = at + ptx.quotient(c.thread, COPY_LANES)
        row = row_of(c.rank * ROWS + in_cta, work, p)
        source = p.query + Int64(work.batch) * p.query_batch_stride
        source = source + Int64(row.token) * p.query_token_stride
        source = source + Int64(row.head) * p.query_head_stride + Int64(lane * COPY_BYTES)
        span = c.shared + c.layout.query + in_cta * c.config.span_bytes
        num_bytes = select_(row.valid, Int32(COPY_BYTES), Int32(0))
        _copy_row(c, source, span, lane, num_bytes)
    ptx.wait_async_copies()
    ptx.fence_async_proxy()  # the query, for the tensor core
    signal(c, c.leaders("query"))


def _copy_row(c: Context, source: Int64, span: Int32, lane: Int32, num_bytes: Int32) -> None:
    """Copy every `COPY_LANES`-th piece of a row, whose first span is at ``span``, swizzled.

    A group of columns begins at a pattern of the swizzle, so that all spans of a row have the same.
    """
    per_span = c.config.span_bytes // COPY_BYTES
    pattern = (span >> 7) & (per_span - 1)
    targets = [
        span + ((lane + first) ^ pattern) * COPY_BYTES for first in range(0, per_span, COPY_LANES)
    ]
    for piece in range(0, QK_GROUPS * per_span, COPY_LANES):
        group, in_span = piece // per_span, piece % per_span // COPY_LANES
        target = Place(targets[in_span], group * c.layout.query_group_bytes)
        ptx.copy_async_16(target, Place(source, piece * COPY_BYTES), num_bytes)


@cute.jit
def _rescale_tile(c: Context, thread: Thread, step: Int32, count: Int32) -> None:
    """Rescale the output before the values of a tile are added, where a row of the warp asks it."""
    slot = count & 1
    ptx.wait_barrier(c.barrier("rescale", slot), (count >> 1) & 1)
    factor = ptx.load_shared_float(Place(thread.slot + slot * SLOT_BYTES, c.layout.rescale))
    if (step > 0) & cute.arch.vote_any_sync(factor != 1.0):
        # The softmax warps have seen the output of the tile before the last one, so that the
        # parity is that of the last one.
        ptx.wait_barrier(c.barrier("output"), (count - 1) & 1)
        tmem.fence_after()
        _rescale(thread, factor)
    tmem.fence_before()  # the output has been rescaled, or stored
    signal(c, c.leaders("ready", slot))


@cute.jit
def _rescale(thread: Thread, factor: Float32) -> None:
    """Multiply this thread's half row of each block of the output."""
    columns = thread.columns + tmem.OUTPUT
    for at in cutlass.range_constexpr(0, VALUE_BLOCKS * tmem.OUTPUT_COLS, TRANSFER):
        values = tmem.load_columns(columns + at, TRANSFER)
        tmem.store_columns(columns + at, [value * factor for value in values])


@cute.jit
def _store(c: Context, thread: Thread, row: Row, work: Work, total: Float32) -> None:
    """Store this thread's half row of each block: normalised; zeros where no key is seen."""
    p = c.parameters
    scale = select_(total > 0.0, ptx.reciprocal(total), Float32(0.0))
    columns = thread.columns + tmem.OUTPUT
    for at in cutlass.range_constexpr(0, VALUE_BLOCKS * tmem.OUTPUT_COLS, TRANSFER):
        block, in_block = at // tmem.OUTPUT_COLS, at % tmem.OUTPUT_COLS
        values = [Float32(0.0)] * TRANSFER
        if work.num_tiles > 0:
            values = tmem.load_columns(columns + at, TRANSFER)
        column = block * VALUE_BLOCK + in_block + thread.half * (VALUE_BLOCK // 2)
        if row.valid:
            if p.num_splits == 1:
                _store_output(c, row, work, column, [v * (scale * p.output_scale) for v in values])
            else:
                _store_partial(c, row, work, column, [v * scale for v in values])


def _store_output(c: Context, row: Row, work: Work, column: Int32, values: list[Float32]) -> None:
    """Store columns of a row of the output, rounded."""
    p, kind = c.parameters, c.config.output_dtype
    at = stored_row(row, work, p) * Int64(VALUE_BLOCKS * VALUE_BLOCK) + Int64(column)
    words = [ptx.pack_half(kind, *values[i : i + 2]) for i in range(0, len(values), 2)]
    for i in range(0, len(words), 4):
        ptx.store_global_words(p.out + 2 * at + 4 * i, words[i : i + 4])


def _store_partial(c: Context, row: Row, work: Work, column: Int32, values: list[Float32]) -> None:
    """Store columns of a row of a split's output."""
    p = c.parameters
    at = stored_row(row, work, p) * Int64(p.num_splits) + Int64(work.split)
    at = at * Int64(VALUE_BLOCKS * VALUE_BLOCK) + Int64(column)
    for i in range(0, len(values), 4):
        ptx.store_global_words(p.partial_out + 4 * at + 4 * i, values[i : i + 4])
