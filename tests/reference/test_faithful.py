"""The faithful emulation's parts, against a walk over one key at a time."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import faithful
from reference.faithful import Walk

SCORES = st.floats(-20.0, 20.0, width=32)


def walked(scores: list[float], tile_n: int, num_splits: int, threshold: float) -> list[float]:
    """The base of each key of one row, that sees them all."""
    tiles = [scores[at : at + tile_n] for at in range(0, len(scores), tile_n)]
    each = -(-len(tiles) // num_splits)
    of_key = []
    for split in range(0, len(tiles), each):
        base = -math.inf
        for tile in tiles[split : split + each]:
            if max(tile) - base > threshold:
                base = max(tile)
            of_key += [base] * len(tile)
    return of_key


@settings(deadline=None)
@given(
    st.lists(SCORES, min_size=1, max_size=40), st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 5), st.sampled_from([0.0, 3.0, 8.0]),
)  # fmt: skip
def test_bases_are_those_of_a_walk_over_the_tiles(scores, tile_n, num_splits, threshold):
    num_tiles = -(-len(scores) // tile_n)
    walk = Walk(tile_n, 0, num_tiles, num_splits, threshold)
    row = torch.tensor(scores, dtype=torch.float64)[None]
    tiles = walk.tiles_of(torch.arange(len(scores)))
    maxima = faithful.tile_maxima(row, tiles, num_tiles)
    base = faithful.bases(maxima, walk)
    assert base[0, tiles].tolist() == walked(scores, tile_n, num_splits, threshold)
    assert [path.tolist() for path in faithful.all_bases(maxima[0], walk, 0.0, 0)] == base.tolist()


def test_keys_that_a_row_does_not_see_give_no_base():
    walk = Walk(tile_n=4, first_tile=2, num_tiles=3, num_splits=1, rescale_threshold=8.0)
    tiles = walk.tiles_of(torch.tensor([13, 15, 16]))
    assert tiles.tolist() == [1, 1, 2]
    maxima = faithful.tile_maxima(torch.tensor([[1.0, 3.0, 2.0]]), tiles, 3)
    assert maxima.tolist() == [[-math.inf, 3.0, 2.0]]
    assert faithful.bases(maxima, walk).tolist() == [[-math.inf, 3.0, 3.0]]


@pytest.mark.parametrize(
    ("num_tiles", "num_splits", "starts"),
    [(5, 2, [0, 3]), (5, 4, [0, 2, 4]), (3, 8, [0, 1, 2]), (0, 3, [])],
)
def test_each_split_has_as_many_tiles_as_the_first(num_tiles, num_splits, starts):
    walk = Walk(128, 0, num_tiles, num_splits, 0.0)
    assert [tile for tile, is_start in enumerate(walk.starts) if is_start] == starts


def test_a_growth_near_the_threshold_is_doubtful_and_may_go_either_way():
    walk = Walk(128, 0, 3, 1, rescale_threshold=8.0)
    maxima = torch.tensor([[0.0, 8.001, 8.0], [0.0, 7.8, 15.7], [0.0, 9.0, 3.0]])
    base = faithful.bases(maxima, walk)
    slack = torch.full((3,), 0.1)
    assert faithful.doubtful(maxima, base, walk, slack).tolist() == [
        [False, True, False], [False, False, False], [False, False, False],
    ]  # fmt: skip
    paths = faithful.all_bases(maxima[0], walk, 0.1, most=2)
    assert sorted(path.tolist() for path in paths) == [
        [0.0, 0.0, 0.0], [0.0, 0.0, 8.0], pytest.approx([0.0, 8.001, 8.001]),
    ]  # fmt: skip
    assert faithful.all_bases(maxima[0], walk, 0.1, most=1) is None


def test_without_a_threshold_nothing_is_doubtful():
    walk = Walk(128, 0, 2, 1, rescale_threshold=0.0)
    maxima = torch.tensor([[1.0, 1.0]])
    base = faithful.bases(maxima, walk)
    assert not faithful.doubtful(maxima, base, walk, torch.ones(1)).any()


def test_the_cast_rounds_to_even_and_saturates():
    p = torch.tensor([1.0625, 1.1875, 500.0, 2.0**-10, 2.0**-11], dtype=torch.float64)
    cast = faithful.cast(p, torch.float8_e4m3fn)
    assert cast.tolist() == [1.0, 1.25, 448.0, 0.0, 0.0]
