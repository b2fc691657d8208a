"""The work of a call, and which keys a row of it sees.

A piece of work is a tile of rows of one request with one split of its keys. A cluster takes every
so-manieth piece; each warp works that out for itself.

Keys lie in a tile at *positions*. All positions of a page but those of the last page in use are
those of its keys. The last page is loaded so that its last key in use fills its last position, and
the positions before its first one, the *gap*, are filled with zeros by the TMA: what lies in the
page after the last key never reaches shared memory, where NaN times a weight of zero would be NaN.
What a window leaves out before the first key is overwritten there, by the warp that loads values.
"""

from dataclasses import dataclass, fields
from typing import Any

from cutlass import Boolean, Float32, Int32, Int64, Uint32, select_

from optimized.common import ptx
from optimized.plan import TILE_N
from optimized.sm100.config import ROWS, Config


@dataclass(frozen=True)
class Parameters:
    """The arguments of a launch. Addresses are of global memory; strides are in bytes."""

    query: Int64
    query_batch_stride: Int64
    query_token_stride: Int64
    query_head_stride: Int64
    block_tables: Int64
    block_tables_stride: Int64
    seq_lens: Int64
    causal_seqs: Int64
    out: Int64
    lse: Int64
    partial_out: Int64
    partial_lse: Int64
    batch: Int32
    num_heads: Int32
    seq_len_q: Int32
    rows_per_tile: Int32
    num_tiles: Int32  # of rows, for a request
    num_splits: Int32
    causal: Int32  # 0 or 1
    window_left: Int32
    world: Int32
    rank: Int32
    interleave: Int32
    scale: Float32  # of scores, times log2(e)
    output_scale: Float32
    lse_scale: Float32  # from base 2 to the base asked for

    def __extract_mlir_values__(self) -> list[Any]:
        """The fields' values, as a kernel takes them."""
        return [getattr(self, field.name).ir_value() for field in fields(self)]

    def __new_from_mlir_values__(self, values: list[Any]) -> "Parameters":
        """The same fields with other values."""
        kinds = [type(getattr(self, field.name)) for field in fields(self)]
        return Parameters(*(kind(value) for kind, value in zip(kinds, values, strict=True)))

    @property
    def num_rows(self) -> Int32:
        """Rows (token, head) of a request."""
        return self.seq_len_q * self.num_heads

    @property
    def num_work(self) -> Int32:
        """Pieces of work."""
        return self.batch * self.num_tiles * self.num_splits


@dataclass(frozen=True)
class Work:
    """One piece of work."""

    batch: Int32
    split: Int32
    first_row: Int32  # of the tile, counted through the request's rows (token, head)
    context: Int32  # G: length of the context
    end: Int32  # keys [0, end) are seen by the last token or by nobody
    start: Int32  # the position of the first key that the first token sees
    first_tile: Int32
    num_tiles: Int32  # of keys; may be 0
    gap: Int32  # the first position of the last page in use
    shift: Int32  # positions in the gap


def work_at(index: Int32, p: Parameters, config: Config) -> Work:
    """The piece of work with this index."""
    rest = ptx.divide(index, p.num_splits)
    split = index - rest * p.num_splits
    batch = ptx.divide(rest, p.num_tiles)
    tile = rest - batch * p.num_tiles
    keys = ptx.larger(ptx.load_global_int(p.seq_lens + 4 * Int64(batch)), Int32(0))
    context = ptx.load_global_int(p.causal_seqs + 4 * Int64(batch))
    end = ptx.smaller(keys, keys_before(context, p))
    first = _window_start(context, Int32(0), p)
    first_tile = ptx.quotient(first, TILE_N)
    tiles = ptx.larger(ptx.quotient(end + TILE_N - 1, TILE_N) - first_tile, Int32(0))
    tiles = select_(first < end, tiles, Int32(0))
    each = ptx.divide(tiles + p.num_splits - 1, p.num_splits)
    begin = ptx.smaller(split * each, tiles)
    stop = ptx.smaller(begin + each, tiles)
    gap = end - 1 - ptx.remainder(end - 1, config.page_size)
    shift = gap + config.page_size - end
    start = select_(first >= gap, first + shift, first)
    return Work(
        batch, split, tile * p.rows_per_tile, context, end, start, first_tile + begin, stop - begin,
        gap, shift,
    )  # fmt: skip


def keys_before(position: Int32, p: Parameters) -> Int32:
    """How many keys of this rank's share lie before a global position."""
    position = ptx.larger(position, Int32(0))
    period = p.world * p.interleave
    rounds = ptx.divide(position, period)
    rest = position - rounds * period - p.rank * p.interleave
    return rounds * p.interleave + ptx.smaller(ptx.larger(rest, Int32(0)), p.interleave)


def _window_start(context: Int32, token: Int32, p: Parameters) -> Int32:
    """The first key in the window of a token; 0 without a window."""
    start = keys_before(context - p.seq_len_q - p.window_left + token, p)
    return select_(p.window_left >= 0, start, Int32(0))


@dataclass(frozen=True)
class Row:
    """A row of a tile: the token and head it stands for, and the positions [low, high) it sees.

    A row beyond the tile's or the request's rows repeats the last token's and is not stored.
    """

    index: Int32  # through the request's rows (token, head)
    token: Int32
    head: Int32
    valid: Boolean
    low: Int32
    high: Int32


def row_of(in_tile: Int32, work: Work, p: Parameters) -> Row:
    """The row at ``in_tile`` of the tile of ``work``."""
    index = work.first_row + in_tile
    valid = (in_tile < p.rows_per_tile) & (index < p.num_rows)
    index = ptx.smaller(index, p.num_rows - 1)
    token = ptx.divide(index, p.num_heads)
    low, high = keys_of(token, work, p)
    low = select_(low >= work.gap, low + work.shift, low)
    high = select_(high > work.gap, high + work.shift, high)
    return Row(index, token, index - token * p.num_heads, valid, low, high)


def keys_of(token: Int32, work: Work, p: Parameters) -> tuple[Int32, Int32]:
    """The keys [low, high) that a token sees."""
    future = select_(p.causal != 0, p.seq_len_q - 1 - token, Int32(0))
    high = ptx.smaller(work.end, keys_before(work.context - future, p))
    return _window_start(work.context, token, p), high


@dataclass(frozen=True)
class Plain:
    """The positions [low, high) that every row of a tile sees: tiles inside need no mask."""

    low: Int32
    high: Int32


def plain_positions(work: Work, p: Parameters) -> Plain:
    """The positions that are keys that every row of the tile of ``work`` sees."""
    last_row = ptx.smaller(work.first_row + p.rows_per_tile, p.num_rows) - 1
    _, high = keys_of(ptx.divide(work.first_row, p.num_heads), work, p)
    low, _ = keys_of(ptx.divide(last_row, p.num_heads), work, p)
    return Plain(low, select_(work.shift > 0, ptx.smaller(high, work.gap), high))


def visible(row: Row, work: Work, position: Int32) -> Uint32:
    """Which of the 32 positions from ``position`` on the row sees, the first one lowest."""
    seen = ptx.low_bits(row.high - position) & ~ptx.low_bits(row.low - position)
    gap = ptx.low_bits(work.gap + work.shift - position) & ~ptx.low_bits(work.gap - position)
    return seen & ~gap


def stored_row(row: Row, work: Work, p: Parameters) -> Int64:
    """The index of a row among those of the whole batch."""
    return Int64(work.batch) * Int64(p.num_rows) + Int64(row.index)


assert ROWS * 2 == TILE_N  # a thread owns as many keys of a tile as a CTA has rows
