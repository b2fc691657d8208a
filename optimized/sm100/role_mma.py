"""The warp that issues every MMA: S = Q K for a tile ahead, then O += P V.

One thread of the even CTA runs it. Products of a tile's scores are issued before those of the
previous tile's values, so that the tensor core works while the softmax warps do.
"""

from typing import Any

import cutlass
from cutlass import Int32, cute

from optimized.common import ptx
from optimized.plan import TILE_N
from optimized.sm100 import tmem
from optimized.sm100.config import GROUP, MMA_K_BYTES, VALUE_BLOCK, VALUE_BLOCKS
from optimized.sm100.context import Context, next_stage
from optimized.sm100.scheduler import work_at

PATTERN_ROWS = 8  # of a swizzle span


@cute.jit
def run(c: Context) -> None:
    """Multiply every tile of every piece of work."""
    key_stage, key_parity = Int32(0), Int32(0)
    value_stage, value_parity = Int32(0), Int32(0)
    count, works = Int32(0), Int32(0)
    for index in cutlass.range(c.cluster, c.parameters.num_work, c.num_clusters, unroll=1):
        work = work_at(index, c.parameters, c.config)
        if work.num_tiles > 0:
            ptx.wait_barrier(c.barrier("query"), works & 1)
            works += 1
            for step in cutlass.range(work.num_tiles + 1, unroll=1):
                if step < work.num_tiles:
                    key_stage, key_parity = _scores(c, count + step, key_stage, key_parity)
                if step > 0:
                    value_stage, value_parity = _output(
                        c, count + step - 1, step - 1, value_stage, value_parity
                    )
            count += work.num_tiles


@cute.jit
def _scores(c: Context, count: Int32, stage: Int32, parity: Int32) -> tuple[Int32, Int32]:
    """Multiply the query by the keys of one tile into the scores' slot of its turn."""
    for chunk in cutlass.range_constexpr(c.config.key_chunks):
        ptx.wait_barrier(c.barrier("keys", stage), parity)
        tmem.fence_after()
        _scores_chunk(c, count, chunk, stage)
        stage, parity = next_stage(stage, parity, c.config.key_stages)
    tmem.commit(c.config, c.barrier("scores", count & 1))
    return stage, parity


@cute.jit
def _scores_chunk(c: Context, count: Int32, chunk: int, stage: Int32) -> None:
    """Multiply some columns of the query by those of the keys; the first chunk begins the sum."""
    config, layout = c.config, c.layout
    shape = tmem.instruction_descriptor(config, TILE_N, rows_contiguous_b=False)
    operand = tmem.Operand(config.span_bytes, 0, PATTERN_ROWS * config.span_bytes)
    query = layout.query + chunk * (config.key_chunk_groups * layout.query_group_bytes)
    query = operand.at(c.shared + query)
    keys = operand.at(c.shared + layout.keys + stage * config.key_chunk_bytes)
    d = c.tensor_memory + tmem.SCORES + (count & 1) * tmem.SCORES_COLS
    for group in cutlass.range_constexpr(config.key_chunk_groups):
        for at in cutlass.range_constexpr(0, config.span_bytes, MMA_K_BYTES):
            in_query = group * layout.query_group_bytes + at
            in_keys = group * config.key_rows * config.span_bytes + at
            tmem.multiply(
                config, d, tmem.offset(query, in_query), tmem.offset(keys, in_keys), shape,
                chunk > 0 or in_query > 0,
            )  # fmt: skip
    if cutlass.const_expr(not config.shares_values):
        tmem.commit(config, c.barrier("keys_free", stage))


@cute.jit
def _output(
    c: Context, count: Int32, step: Int32, stage: Int32, parity: Int32
) -> tuple[Int32, Int32]:
    """Add P times the values of one tile to the output; the first tile of a work begins it."""
    config, layout = c.config, c.layout
    name = "keys" if config.shares_values else "values"
    buffer = layout.keys if config.shares_values else layout.values
    chunk_bytes = config.key_chunk_bytes if config.shares_values else config.value_chunk_bytes
    shape = tmem.instruction_descriptor(config, VALUE_BLOCK, rows_contiguous_b=True)
    stride = PATTERN_ROWS * config.span_bytes
    p = tmem.Operand(config.span_bytes, 0, stride).at(c.shared + layout.probabilities)
    group_bytes = config.value_chunk_rows * config.span_bytes
    operand = tmem.Operand(config.span_bytes, group_bytes, stride)
    ptx.wait_barrier(c.barrier("ready", count & 1), (count >> 1) & 1)
    for chunk in cutlass.range_constexpr(config.value_chunks):
        if cutlass.const_expr(not config.shares_values):
            ptx.wait_barrier(c.barrier("values", stage), parity)
        tmem.fence_after()
        b = operand.at(c.shared + buffer + stage * chunk_bytes)
        for key in cutlass.range_constexpr(0, config.value_chunk_rows, config.mma_k):
            in_tile = chunk * config.value_chunk_rows + key
            in_p = in_tile // GROUP * layout.query_group_bytes
            in_p += in_tile % GROUP * config.element_bytes
            for block in cutlass.range_constexpr(VALUE_BLOCKS):
                in_values = block * config.value_groups // VALUE_BLOCKS * group_bytes
                in_values += key * config.span_bytes
                d = c.tensor_memory + tmem.OUTPUT + block * tmem.OUTPUT_COLS
                accumulate: Any = True if in_tile else step
                tmem.multiply(
                    config, d, tmem.offset(p, in_p), tmem.offset(b, in_values), shape, accumulate
                )
        tmem.commit(config, c.barrier(f"{name}_free", stage))
        stage, parity = next_stage(stage, parity, c.edge(name).stages)
    tmem.commit(config, c.barrier("output"))
    return stage, parity
