"""Folding and packing place every row exactly once, where the contract says."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.folding import RowLayout, best_layout, fold_factor, folded, packed, token_major

HEADS = st.integers(1, 128)
TOKENS = st.integers(1, 16)
TILES = st.sampled_from([64, 128])


def assert_bijection(layout: RowLayout) -> None:
    taken = {}
    for token in range(layout.seq_len_q):
        for head in range(layout.num_heads):
            tile, row = layout.place(token, head)
            assert 0 <= tile < layout.num_tiles
            assert 0 <= row < layout.rows_per_tile
            assert layout.row_at(tile, row) == (token, head)
            taken[tile, row] = (token, head)
    assert len(taken) == layout.num_rows
    for tile in range(layout.num_tiles):
        for row in range(layout.rows_per_tile):
            assert layout.row_at(tile, row) == taken.get((tile, row))


@settings(deadline=None)
@given(heads=HEADS, tokens=TOKENS, tile_m=TILES)
def test_folding_is_as_defined(heads: int, tokens: int, tile_m: int) -> None:
    factor = fold_factor(heads, tokens, tile_m)
    fitting = [f for f in range(1, tokens + 1) if tokens % f == 0 and f * heads <= tile_m]
    assert factor == max([1, *fitting])
    layout = folded(heads, tokens, tile_m)
    assert layout.rows_per_tile == heads * factor
    assert layout.num_tiles == tokens // factor
    for group in range(layout.num_tiles):
        for row in range(layout.rows_per_tile):
            token = group * factor + math.floor(row / heads)
            assert layout.row_at(group, row) == (token, row % heads)
    assert_bijection(layout)


@settings(deadline=None)
@given(heads=HEADS, tokens=TOKENS)
def test_packing_is_as_defined(heads: int, tokens: int) -> None:
    layout = packed(heads, tokens)
    assert layout.rows_per_tile == 128
    assert layout.num_tiles == math.ceil(heads * tokens / 128)
    for index in range(heads * tokens):
        place = (index // 128, index % 128)
        assert layout.row_at(*place) == (index // heads, index % heads)
    assert_bijection(layout)


@settings(deadline=None)
@given(heads=HEADS, tokens=TOKENS, tile_m=TILES, can_pack=st.booleans())
def test_packs_only_where_that_takes_fewer_tiles(
    heads: int, tokens: int, tile_m: int, can_pack: bool
) -> None:
    layout = best_layout(heads, tokens, tile_m, can_pack=can_pack)
    fold, pack = folded(heads, tokens, tile_m), packed(heads, tokens)
    if can_pack and tile_m == 128 and pack.num_tiles < fold.num_tiles:
        assert layout == pack
    else:
        assert layout == fold


@pytest.mark.parametrize(
    ("heads", "tokens", "tile_m", "factor"),
    [
        (128, 1, 128, 1),
        (128, 4, 128, 1),
        (64, 2, 128, 2),
        (64, 3, 128, 1),  # 2 tokens would fit, but do not divide 3
        (16, 4, 64, 4),
        (16, 8, 128, 8),
        (16, 6, 64, 3),
        (1, 7, 128, 7),
        (128, 2, 64, 1),  # none fits
    ],
)
def test_known_factors(heads: int, tokens: int, tile_m: int, factor: int) -> None:
    assert fold_factor(heads, tokens, tile_m) == factor


@pytest.mark.parametrize(
    ("heads", "tokens", "rows_per_tile", "num_tiles"),
    [
        (64, 3, 128, 2),  # packed: folding would take 3
        (64, 2, 128, 1),  # a tie keeps folding
        (48, 5, 128, 2),  # packed: 5 is prime
        (96, 2, 96, 2),  # a tie keeps folding, with partial tiles
    ],
)
def test_known_layouts(heads: int, tokens: int, rows_per_tile: int, num_tiles: int) -> None:
    layout = best_layout(heads, tokens, 128, can_pack=True)
    assert (layout.rows_per_tile, layout.num_tiles) == (rows_per_tile, num_tiles)


def test_only_the_last_packed_tile_is_partial() -> None:
    layout = packed(48, 5)
    assert layout.row_at(0, 127) == (2, 31)
    assert layout.row_at(1, 0) == (2, 32)
    assert layout.row_at(1, 111) == (4, 47)
    assert layout.row_at(1, 112) is None


def test_token_major() -> None:
    assert token_major(token_stride=16 * 576, head_stride=576, num_heads=16)
    assert not token_major(token_stride=16 * 640, head_stride=576, num_heads=16)
