"""The split-KV kernel: from its arguments to its roles."""

from typing import Any

import cutlass
from cutlass import Int32, Int64, cute
from cutlass._mlir.dialects import cute as cute_ir
from cutlass._mlir.dialects import cute_nvgpu
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.typing import AddressSpace

from optimized.common import ptx
from optimized.sm100 import role_correction, role_load, role_mma, role_softmax, tmem
from optimized.sm100.config import GROUP, Config
from optimized.sm100.context import Context
from optimized.sm100.scheduler import Parameters
from optimized.sm100.smem import ALIGNMENT_BYTES, SharedLayout
from optimized.sm100.warps import (
    CORRECTION_WARPS,
    LOAD_KEYS_WARP,
    LOAD_VALUES_WARP,
    MMA_WARP,
    ROLE_THREADS,
    SOFTMAX_WARPS,
    WARP_THREADS,
)

MAP_ALIGNMENT = 64  # of a tensor map


def cache_map(cache: cute.Tensor, config: Config) -> Any:
    """The tensor map of the cache: (column, token, page), in boxes of 64 columns.

    The cache is [num_pages, page_size, 576]; both strides are free.
    """
    pages, tokens, columns = cache.shape
    strides = (1, cache.stride[1], cache.stride[0])
    view = cute.make_tensor(
        cache.iterator, cute.make_layout((columns, tokens, pages), stride=strides)
    )
    bits = {128: 3, 64: 2}[config.span_bytes]
    rows = config.box_rows
    box = cute.make_layout((GROUP, rows, 1), stride=(1, GROUP, GROUP * rows))
    box = cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, box)
    atom, _ = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), view, box, (GROUP, rows, 1)
    )
    return atom


def _map_address(atom: Any) -> Int64:
    """Where the tensor map of an atom lies."""
    pointer = cute_ir.PtrType.get(Int64.mlir_type, AddressSpace.generic, MAP_ALIGNMENT)
    executable = cute_nvgpu.atom_make_exec_tma(atom._trait.value)
    return cute_nvgpu.get_tma_desc_addr(pointer, executable).toint()


@cute.jit
def run(config: cutlass.Constexpr, atom: Any, parameters: Parameters) -> None:
    """The body of the kernel: set up, play the warp's role, take down."""
    layout = SharedLayout(config)
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(ptx.quotient(thread, WARP_THREADS))
    lane = ptx.opaque(ptx.remainder(thread, WARP_THREADS))
    start = cute.arch.get_dyn_smem(cutlass.Uint8, alignment=ALIGNMENT_BYTES).toint()
    shared = ptx.opaque(Int32(start))
    rank, leader = Int32(0), shared
    if cutlass.const_expr(config.num_ctas == 2):
        rank = ptx.remainder(block, 2)
        leader = ptx.in_cta(shared, 0)

    # 1. Barriers and tensor memory, seen by the whole cluster before anything uses them
    if warp == MMA_WARP:
        tmem.allocate(shared + layout.tensor_memory, config)
    if thread == 0:
        for edge in layout.edges.all:
            for stage in cutlass.range_constexpr(edge.stages):
                ptx.init_barrier(shared + edge.barrier(stage), edge.arrivals)
        ptx.fence_barrier_init()
    tmem.fence_before()
    ptx.sync_cluster()
    tmem.fence_after()
    ptx.wait_for_prerequisite_grids()

    # 2. Roles
    c = Context(
        config=config,
        parameters=parameters,
        shared=shared,
        leader=leader,
        tensor_memory=ptx.load_shared_int(shared + layout.tensor_memory),
        rank=rank,
        cluster=ptx.quotient(block, config.num_ctas),
        num_clusters=ptx.quotient(blocks, config.num_ctas),
        lane=lane,
        thread=ptx.opaque(ptx.remainder(thread, ROLE_THREADS)),
        tensor_map=_map_address(atom),
    )
    if warp < SOFTMAX_WARPS.stop:
        role_softmax.run(c)
    elif warp < CORRECTION_WARPS.stop:
        role_correction.run(c)
    elif warp == MMA_WARP:
        if (rank == 0) & (lane == 0):
            role_mma.run(c)
    elif warp == LOAD_KEYS_WARP:
        role_load.run(c, role_load.keys_stream(c))
        ptx.launch_dependent_grids()
    elif (warp == LOAD_VALUES_WARP) & (not config.shares_values):
        role_load.run(c, role_load.values_stream(c))

    # 3. No CTA leaves while the other may still signal it
    tmem.fence_before()
    ptx.sync_cluster()
    tmem.fence_after()
    if warp == MMA_WARP:
        tmem.deallocate(c.tensor_memory, config)
