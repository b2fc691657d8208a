"""What the kernel's configuration says of itself, recomputed: barriers, shared memory, TMEM."""

import pytest

from optimized.sm100 import tmem
from optimized.sm100.config import LOG2_P_SCALE, RESCALE_THRESHOLD, Config
from optimized.sm100.pipelines import BARRIER_BYTES
from optimized.sm100.smem import LIMIT_BYTES, SLOT_BYTES, SharedLayout
from optimized.sm100.warps import CORRECTION_WARPS, SOFTMAX_WARPS
from reference.problem import PAGE_SIZES

CONFIGS = [
    Config(dtype, tile_m, page_size)
    for dtype, tile_m in (("float8_e4m3fn", 128), ("float8_e4m3fn", 64), ("bfloat16", 128))
    for page_size in PAGE_SIZES
]
E4M3_LARGEST = 448


@pytest.mark.parametrize("config", CONFIGS)
def test_shared_memory_is_disjoint_aligned_and_fits(config: Config) -> None:
    layout = SharedLayout(config)
    regions = [
        (layout.query, 64 * 576 * config.element_bytes),
        (layout.probabilities, 64 * 128 * config.element_bytes),
        (layout.keys, config.key_stages * config.key_chunk_bytes),
        (layout.values, config.value_stages * config.value_chunk_bytes),
        (layout.exchange, 2 * SLOT_BYTES),
        (layout.rescale, 2 * SLOT_BYTES),
        (layout.final, SLOT_BYTES),
        (layout.edges.offset, layout.edges.num_bytes),
        (layout.tensor_memory, 4),
    ]
    end = 0
    for start, size in regions:
        assert start == end
        end = start + size
    assert end == layout.num_bytes <= LIMIT_BYTES
    operands = (layout.query, layout.probabilities, layout.keys, layout.values)
    assert all(start % 1024 == 0 for start in operands)
    assert config.key_chunk_bytes % 1024 == 0
    assert config.value_chunk_bytes % 1024 == 0


@pytest.mark.parametrize("config", CONFIGS)
def test_chunks_make_up_a_tile_of_whole_boxes(config: Config) -> None:
    assert config.key_chunks * config.key_chunk_groups * 64 == 576
    assert config.value_chunks * config.value_chunk_rows == 128
    assert config.num_ctas * config.key_rows == 128
    assert config.num_ctas * config.value_groups * 64 == 512
    for rows in (config.page_size, config.key_rows, config.value_chunk_rows):
        assert rows % config.box_rows == 0
    assert config.box_rows * config.span_bytes % 128 == 0  # where the TMA may write


@pytest.mark.parametrize("config", CONFIGS)
def test_arrive_counts_follow_from_the_warps(config: Config) -> None:
    softmax, correction = len(SOFTMAX_WARPS), len(CORRECTION_WARPS)
    everywhere = {"query": correction, "ready": softmax + correction, "keys": 1, "values": 1}
    here = {"rescale": softmax, "final": softmax, "scrub": 1}
    by_tensor_core = dict.fromkeys(("keys_free", "values_free", "scores", "output"), 1)
    wanted = {name: count * config.num_ctas for name, count in everywhere.items()}
    edges = SharedLayout(config).edges.all
    assert {edge.name: edge.arrivals for edge in edges} == wanted | here | by_tensor_core
    offsets = [edge.barrier(stage) for edge in edges for stage in range(edge.stages)]
    assert offsets == list(range(offsets[0], offsets[0] + len(offsets) * BARRIER_BYTES, 8))


def test_a_layout_that_does_not_fit_is_refused() -> None:
    class Deep(Config):
        key_stages = 9

    with pytest.raises(ValueError, match="shared memory must be at most 232448 bytes, got"):
        _ = SharedLayout(Deep("bfloat16", 128, 64)).num_bytes


def test_tensor_memory_and_p_have_room() -> None:
    assert tmem.SCORES + 2 * tmem.SCORES_COLS <= tmem.OUTPUT
    assert tmem.USED_COLUMNS <= tmem.COLUMNS
    assert 2**LOG2_P_SCALE * 2**RESCALE_THRESHOLD <= E4M3_LARGEST
