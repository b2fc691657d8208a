"""The host function of a compiled decode call: the tensor map, then the launches."""

import math
from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from optimized.sm100 import combine, kernel
from optimized.sm100.scheduler import Parameters
from optimized.sm100.smem import SharedLayout
from optimized.sm100.warps import NUM_THREADS

LOG2_E = math.log2(math.e)
SMALLEST = 2.0**-149  # of float32: a scale of 0 must leave -inf what it is, and all else equal


@cute.kernel
def split_kv(config: cutlass.Constexpr, atom: cute.CopyAtom, parameters: Parameters) -> None:
    """Weigh each piece of work's keys."""
    kernel.run(config, atom, parameters)


@cute.kernel
def combine_splits(config: cutlass.Constexpr, parameters: Parameters) -> None:
    """Merge the splits of each row."""
    combine.run(config, parameters)


@cute.jit
def decode(  # noqa: PLR0917 - TVM-FFI takes no bundles
    config: cutlass.Constexpr,
    query: cute.Tensor,  # [batch, seq_len_q, num_heads, 576]
    kv_cache: cute.Tensor,  # [num_pages, page_size, 576]
    block_tables: cute.Tensor,  # [batch, max_pages]
    seq_lens: cute.Tensor,  # [batch]
    causal_seqs: cute.Tensor,  # [batch]
    out: cute.Tensor,  # [batch, seq_len_q, num_heads, 512]
    lse: cute.Tensor,  # [batch, seq_len_q, num_heads]
    workspace: cute.Tensor,  # [bytes]
    partial_out_bytes: Int64,
    rows_per_tile: Int32,
    num_tiles: Int32,
    num_splits: Int32,
    num_ctas: Int32,
    causal: Int32,
    window_left: Int32,
    world: Int32,
    rank: Int32,
    interleave: Int32,
    softmax_scale: Float32,
    output_scale: Float32,
    lse_scale: Float32,
    enable_pdl: Int32,
    stream: Any,
) -> None:
    """Launch the kernels of one call on ``stream``."""
    batch, seq_len_q, num_heads, _ = query.shape
    size = config.element_bytes
    scratch = workspace.iterator.toint()
    scale = softmax_scale * Float32(LOG2_E)
    parameters = Parameters(
        query=query.iterator.toint(),
        query_batch_stride=Int64(query.stride[0]) * size,
        query_token_stride=Int64(query.stride[1]) * size,
        query_head_stride=Int64(query.stride[2]) * size,
        block_tables=block_tables.iterator.toint(),
        block_tables_stride=Int64(block_tables.stride[0]) * 4,
        seq_lens=seq_lens.iterator.toint(),
        causal_seqs=causal_seqs.iterator.toint(),
        out=out.iterator.toint(),
        lse=lse.iterator.toint(),
        partial_out=scratch,
        partial_lse=scratch + partial_out_bytes,
        batch=Int32(batch),
        num_heads=Int32(num_heads),
        seq_len_q=Int32(seq_len_q),
        rows_per_tile=rows_per_tile,
        num_tiles=num_tiles,
        num_splits=num_splits,
        causal=causal,
        window_left=window_left,
        world=world,
        rank=rank,
        interleave=interleave,
        scale=cutlass.select_(scale > Float32(SMALLEST), scale, Float32(SMALLEST)),
        output_scale=output_scale,
        lse_scale=lse_scale,
    )
    split_kv(config, kernel.cache_map(kv_cache, config), parameters).launch(
        grid=(num_ctas, 1, 1),
        block=(NUM_THREADS, 1, 1),
        cluster=(config.num_ctas, 1, 1),
        smem=SharedLayout(config).num_bytes,
        stream=stream,
        use_pdl=enable_pdl,
    )
    if num_splits > 1:
        combine_splits(config, parameters).launch(
            grid=(Int32(batch) * Int32(seq_len_q) * Int32(num_heads), 1, 1),
            block=(combine.NUM_THREADS, 1, 1),
            stream=stream,
            use_pdl=enable_pdl,
        )
