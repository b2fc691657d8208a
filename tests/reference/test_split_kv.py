"""Parts of any partition of the keys merge to the whole, in any order and grouping."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.decode import Decoded, decode
from reference.inputs import make_inputs
from reference.problem import Dims, Problem, Recipe
from reference.split_kv import decode_splits, merge, split_keys
from tests.reference import tiny

LONG = Problem(
    dims=Dims(num_heads=2, seq_len_q=2, kv_lora_rank=3, qk_rope_head_dim=2),
    dtype="float16",
    page_size=32,
    seq_lens=(700, 1, 0, 129),
    softmax_scale=0.5,
)


def assert_equal(got: Decoded, expected: Decoded) -> None:
    torch.testing.assert_close(got.out, expected.out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got.lse, expected.lse, rtol=1e-12, atol=1e-12)
    blind = expected.lse == -math.inf
    assert (got.out[blind] == 0).all()


@settings(max_examples=100, deadline=None)
@given(problem=tiny.problems(), seed=tiny.SEEDS, data=st.data())
def test_any_partition_merges_to_the_whole(
    problem: Problem, seed: int, data: st.DataObject
) -> None:
    inputs = make_inputs(problem, Recipe(poison=True), seed)
    num_parts = data.draw(st.integers(1, 5), label="parts")
    part_of_key = [
        torch.tensor(
            data.draw(st.lists(st.integers(0, num_parts - 1), min_size=n, max_size=n)),
            dtype=torch.int64,
        )
        for n in problem.seq_lens
    ]
    parts = [
        decode(problem, inputs, keep=[owner == part for owner in part_of_key])
        for part in range(num_parts)
    ]
    whole, base = decode(problem, inputs), problem.lse_base
    assert_equal(merge(parts, base), whole)
    assert_equal(merge(parts[::-1], base), whole)
    cut = data.draw(st.integers(1, num_parts), label="grouped")
    assert_equal(merge([merge(parts[:cut], base), *parts[cut:]], base), whole)


@pytest.mark.parametrize("num_splits", [1, 2, 3, 5, 6, 40])
def test_splits_of_whole_tiles_merge_to_the_whole(num_splits: int) -> None:
    inputs = make_inputs(LONG, Recipe(poison=True), 1)
    parts = decode_splits(LONG, inputs, num_splits)
    assert len(parts) == num_splits
    assert_equal(merge(parts, LONG.lse_base), decode(LONG, inputs))


def test_faults_of_a_merge_are_noticed() -> None:
    inputs = make_inputs(LONG, Recipe(), 1)
    parts, whole = decode_splits(LONG, inputs, 3), decode(LONG, inputs)
    doubled = [dataclasses.replace(part, lse=2 * part.lse) for part in parts]
    for wrong in (merge(parts[1:], 2), merge(parts, "e"), merge(doubled, 2)):
        with pytest.raises(AssertionError, match="not close"):
            assert_equal(wrong, whole)


def test_parts_without_keys_merge_to_zero_and_minus_infinity() -> None:
    empty = Decoded(
        out=torch.zeros(1, 1, 2, 3, dtype=torch.float64),
        lse=torch.full((1, 1, 2), -math.inf, dtype=torch.float64),
    )
    merged = merge([empty, empty, empty], 2)
    assert (merged.out == 0).all()
    assert (merged.lse == -math.inf).all()


def test_merge_of_known_parts() -> None:
    parts = [
        Decoded(torch.tensor([[[[out]]]]).double(), torch.tensor([[[lse]]]).double())
        for out, lse in ((1.0, 3.0), (5.0, 3.0), (7.0, -math.inf), (9.0, 2.0))
    ]
    merged = merge(parts, 2)  # weights 8, 8, 0, 4
    assert merged.out.item() == pytest.approx((8 * 1 + 8 * 5 + 4 * 9) / 20)
    assert merged.lse.item() == pytest.approx(math.log2(20))


def test_known_splits() -> None:
    assert split_keys(700, 3) == [range(0, 256), range(256, 512), range(512, 700)]
    assert split_keys(300, 2) == [range(0, 256), range(256, 300)]
    assert split_keys(513, 4) == [range(0, 256), range(256, 512), range(512, 513), range(513, 513)]
    assert split_keys(0, 2) == [range(0, 0), range(0, 0)]


@settings(deadline=None)
@given(
    num_keys=st.integers(0, 2000),
    num_splits=st.integers(1, 40),
    tile_keys=st.sampled_from([1, 64, 128]),
)
def test_splits_cover_the_keys_in_whole_tiles(
    num_keys: int, num_splits: int, tile_keys: int
) -> None:
    splits = split_keys(num_keys, num_splits, tile_keys)
    assert len(splits) == num_splits
    assert [key for split in splits for key in split] == list(range(num_keys))
    tiles = [math.ceil(len(split) / tile_keys) for split in splits]
    per_split = math.ceil(math.ceil(num_keys / tile_keys) / num_splits)
    used = [count for count in tiles if count > 0]
    assert tiles == used + [0] * (num_splits - len(used))  # trailing splits may be empty
    assert all(count == per_split for count in used[:-1])
    assert all(count <= per_split for count in used)
