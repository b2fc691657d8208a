"""The warps that load keys and values: boxes of a page's rows and 64 columns, by TMA.

Each lane issues boxes of its own: box n of a chunk is issued by lane n mod 32, and holds block
n mod (rows / box rows) of the chunk's rows. So a lane's page ids serve every group of columns. The
block table is read a tile ahead, 32 entries at a time, one a lane, and lanes tell each other what
they read. A box without a key in use names page -1, which lies outside the tensor: the TMA fills
the box with zeros.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, Int64, cute, select_

from optimized.common import ptx
from optimized.plan import TILE_N
from optimized.sm100.config import GROUP, VALUE_BLOCKS
from optimized.sm100.context import Context, next_stage, signal
from optimized.sm100.scheduler import Work, work_at
from optimized.sm100.warps import WARP_THREADS

NO_PAGE = -1
VECTOR_BYTES = 16  # of a store to shared memory


@dataclass(frozen=True)
class Stream:
    """One kind of load: the keys, of a part of the tile, or some columns of all its values."""

    edge: str
    is_keys: bool
    holds_values: bool
    stages: int
    chunks: int  # of a tile
    chunk_bytes: int
    groups: int  # of a chunk
    rows: int  # of a chunk
    buffer: int  # offset in shared memory


@dataclass(frozen=True)
class Chunk:
    """A chunk of a tile and the stage it goes to; ``index`` counts through the tile's chunks."""

    work: Work
    tile: Int32
    index: int
    stage: Int32


def keys_stream(c: Context) -> Stream:
    """The keys: chunks are groups of columns."""
    config = c.config
    return Stream(
        "keys", True, config.shares_values, config.key_stages, config.key_chunks,
        config.key_chunk_bytes, config.key_chunk_groups, config.key_rows, c.layout.keys,
    )  # fmt: skip


def values_stream(c: Context) -> Stream:
    """The values: chunks are keys."""
    config = c.config
    return Stream(
        "values", False, True, config.value_stages, config.value_chunks, config.value_chunk_bytes,
        config.value_groups, config.value_chunk_rows, c.layout.values,
    )  # fmt: skip


@cute.jit
def run(c: Context, stream: Stream) -> None:
    """Load every tile of every piece of work, then wait until the stages have been used."""
    free = f"{stream.edge}_free"
    stage, parity, scrubbed = Int32(0), Int32(0), Int32(0)
    for index in cutlass.range(c.cluster, c.parameters.num_work, c.num_clusters, unroll=1):
        work = work_at(index, c.parameters, c.config)
        window = _window(c, work, work.first_tile)
        for step in cutlass.range(work.num_tiles, unroll=1):
            tile = work.first_tile + step
            pages = _pages(c, stream, work, tile, window)
            ahead = window
            if ptx.remainder((tile + 1) * _pages_in_tile(c), WARP_THREADS) == 0:
                ahead = _window(c, work, tile + 1)
            for at in cutlass.range_constexpr(stream.chunks):
                ptx.wait_barrier(c.barrier(free, stage), parity ^ 1)
                chunk = Chunk(work, tile, at, stage)
                scrubbed = _load(c, stream, chunk, pages, scrubbed)
                stage, parity = next_stage(stage, parity, stream.stages)
            window = ahead
    for _ in cutlass.range_constexpr(stream.stages):
        ptx.wait_barrier(c.barrier(free, stage), parity ^ 1)
        stage, parity = next_stage(stage, parity, stream.stages)


@cute.jit
def _load(
    c: Context, stream: Stream, chunk: Chunk, pages: tuple[Int32, ...], scrubbed: Int32
) -> Int32:
    """Load a chunk; ``scrubbed`` counts those that had to be cleaned, and is given back.

    Values that a window leaves out before the first key may be NaN, and a weight of zero does not
    hide that. So a chunk that has some lands at a barrier of this warp, which overwrites them and
    only then signals that the chunk is there.
    """
    full = c.leaders(stream.edge, chunk.stage)
    unseen = chunk.work.start - chunk.tile * TILE_N
    if cutlass.const_expr(not stream.is_keys):
        unseen = unseen - chunk.index * stream.rows
    if cutlass.const_expr(not stream.holds_values):
        unseen = Int32(0)
    if unseen > 0:
        scrub = c.barrier("scrub")
        _expect(c, stream, scrub)
        _issue(c, stream, chunk, pages, scrub)
        ptx.wait_barrier(scrub, scrubbed & 1)
        scrubbed += 1
        _clear(c, stream, chunk, ptx.smaller(unseen, Int32(stream.rows)))
        ptx.fence_async_proxy()  # the zeros, for the tensor core
        signal(c, full)
    else:
        _expect(c, stream, full)
        _issue(c, stream, chunk, pages, full)
    return scrubbed


@cute.jit
def _expect(c: Context, stream: Stream, barrier: ptx.Place) -> None:
    """Arrive for this CTA, and let the phase wait for the bytes of its chunk."""
    if c.lane == 0:
        ptx.arrive_expecting(barrier, stream.chunk_bytes)


@cute.jit
def _clear(c: Context, stream: Stream, chunk: Chunk, rows: Int32) -> None:
    """Overwrite the first rows of a chunk with zeros."""
    span = c.config.span_bytes
    buffer = c.shared + stream.buffer + chunk.stage * stream.chunk_bytes
    for group in cutlass.range_constexpr(stream.groups):
        first = buffer + group * stream.rows * span
        for at in cutlass.range(c.lane, rows * (span // VECTOR_BYTES), WARP_THREADS, unroll=1):
            ptx.store_shared_words(first + at * VECTOR_BYTES, [Int32(0)] * 4)


def _blocks(c: Context, rows: int) -> int:
    """Boxes that ``rows`` keys take for each group of columns."""
    return rows // c.config.box_rows


def _start(c: Context, stream: Stream, at: int) -> Any:
    """Row of the tile that begins the ``at``-th block of rows that this lane issues."""
    blocks = _blocks(c, stream.rows)
    in_chunk = min(blocks, WARP_THREADS)
    rounds = max(1, blocks // WARP_THREADS)
    chunk, part = at // rounds, at % rounds
    block = ptx.remainder(c.lane, in_chunk) + part * WARP_THREADS
    row = chunk * stream.rows + block * c.config.box_rows
    return row + c.rank * c.config.key_rows if stream.is_keys else row


def _num_starts(c: Context, stream: Stream) -> int:
    """Blocks of rows in a tile that one lane issues."""
    rounds = max(1, _blocks(c, stream.rows) // WARP_THREADS)
    return rounds if stream.is_keys else rounds * stream.chunks


def _pages_in_tile(c: Context) -> int:
    """Pages that the keys of a tile take: a power of two."""
    return TILE_N // c.config.page_size


def _window(c: Context, work: Work, tile: Int32) -> Int32:
    """This lane's entry of the 32 of the block table among which the tile's are."""
    first = tile * _pages_in_tile(c)
    return _page(c, work, first - ptx.remainder(first, WARP_THREADS) + c.lane)


def _pages(c: Context, stream: Stream, work: Work, tile: Int32, window: Int32) -> tuple[Int32, ...]:
    """The pool pages of this lane's blocks of a tile; NO_PAGE past the last page in use.

    A tile of more pages than lanes reads its entries itself: no two of its boxes share one.
    """
    first, page_size = tile * _pages_in_tile(c), c.config.page_size
    starts = [
        ptx.quotient(_start(c, stream, at), page_size) for at in range(_num_starts(c, stream))
    ]
    if _pages_in_tile(c) > WARP_THREADS:
        return tuple(_page(c, work, first + start) for start in starts)
    lanes = [ptx.remainder(first + start, WARP_THREADS) for start in starts]
    return tuple(cute.arch.shuffle_sync(window, lane) for lane in lanes)


@cute.jit
def _page(c: Context, work: Work, index: Int32) -> Int32:
    """The pool page of a logical page."""
    page = Int32(NO_PAGE)
    if index * c.config.page_size < work.end:
        p = c.parameters
        row = p.block_tables + Int64(work.batch) * p.block_tables_stride
        page = ptx.load_global_int(row + 4 * Int64(index))
    return page


@cute.jit
def _issue(
    c: Context, stream: Stream, chunk: Chunk, pages: tuple[Int32, ...], barrier: ptx.Place
) -> None:
    """Issue this lane's boxes of a chunk; their bytes count at ``barrier``."""
    config, work = c.config, chunk.work
    blocks = _blocks(c, stream.rows)
    num_boxes = stream.groups * blocks
    rounds = max(1, blocks // WARP_THREADS)
    box_bytes = config.box_rows * config.span_bytes
    buffer = c.shared + stream.buffer + chunk.stage * stream.chunk_bytes
    for at in cutlass.range_constexpr(-(-num_boxes // WARP_THREADS)):
        box = c.lane + at * WARP_THREADS
        if box < num_boxes:
            group = ptx.quotient(box, blocks)
            which = at % rounds if stream.is_keys else chunk.index * rounds + at % rounds
            position = chunk.tile * TILE_N + _start(c, stream, which)
            in_page = ptx.remainder(position, config.page_size)
            in_page = in_page - select_(position >= work.gap, work.shift, Int32(0))
            column = _column(c, stream, chunk.index, group)
            target = buffer + box * box_bytes
            _copy(c, target, (column, in_page, pages[which]), barrier)


def _column(c: Context, stream: Stream, chunk: int, group: Int32) -> Int32:
    """The first column of a group of a chunk.

    In a cluster of two, each CTA supplies half of the columns of each block of the output.
    """
    if stream.is_keys:
        return (group + chunk * stream.groups) * GROUP
    in_block = stream.groups // VALUE_BLOCKS
    block = ptx.quotient(group, in_block)
    return (group + (block * (c.config.num_ctas - 1) + c.rank) * in_block) * GROUP


def _copy(c: Context, target: Int32, at: tuple[Int32, ...], barrier: ptx.Place) -> None:
    """Issue one box; its bytes count at a barrier of either CTA."""
    space, group = ("cta", "") if c.config.num_ctas == 1 else ("cluster", ".cta_group::2")
    name = (
        f"cp.async.bulk.tensor.3d.shared::{space}.global.tile.mbarrier::complete_tx::bytes{group}"
    )
    ptx.asm(
        f"{name} [$0], [$1, {{$2, $3, $4}}], [$5+{barrier.offset}];",
        [target, c.tensor_map, *at, barrier.base],
    )
