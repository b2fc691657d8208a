"""The ranks' results merge to the whole context's, for any world and interleave."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import dcp as dcp_module
from reference import masks
from reference.dcp import decode_shards, owned_positions, owner, shard
from reference.decode import decode
from reference.inputs import make_inputs
from reference.problem import Dcp, Dims, Mask, Problem, Recipe
from tests.reference import tiny

WHOLE = Problem(
    dims=Dims(num_heads=2, seq_len_q=3, kv_lora_rank=3, qk_rope_head_dim=2),
    dtype="float16",
    page_size=4,
    seq_lens=(23, 2, 0, 9),
    softmax_scale=0.5,
    mask=Mask(window_left=11),
)


def assert_shards_merge(problem: Problem, recipe: Recipe, *, world: int, size: int) -> None:
    inputs = make_inputs(problem, recipe, 1)
    shards = shard(problem, inputs, recipe, 2, world=world, interleave_size=size)
    assert len(shards) == world
    merged, whole = decode_shards(shards), decode(problem, inputs)
    torch.testing.assert_close(merged.out, whole.out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(merged.lse, whole.lse, rtol=1e-12, atol=1e-12)


@settings(max_examples=150, deadline=None)
@given(
    problem=tiny.problems(whole=True),
    recipe=tiny.RECIPES,
    world=st.integers(1, 9),
    size=st.integers(1, 7),
)
def test_ranks_merge_to_the_whole(problem: Problem, recipe: Recipe, world: int, size: int) -> None:
    assert_shards_merge(problem, recipe, world=world, size=size)


def test_more_ranks_than_keys_leaves_ranks_empty() -> None:
    problem = dataclasses.replace(WHOLE, seq_lens=(3,))
    inputs = make_inputs(problem, Recipe(), 1)
    shards = shard(problem, inputs, Recipe(), 2, world=8, interleave_size=1)
    assert [rank_problem.seq_lens for rank_problem, _ in shards] == [(1,)] * 3 + [(0,)] * 5
    assert_shards_merge(problem, Recipe(poison=True), world=8, size=1)


def test_each_rank_holds_its_share_of_the_keys() -> None:
    inputs = make_inputs(WHOLE, Recipe(), 1)
    shards = shard(WHOLE, inputs, Recipe(), 2, world=3, interleave_size=2)
    assert [problem.seq_lens for problem, _ in shards] == [(8, 2, 0, 4), (8, 0, 0, 3), (7, 0, 0, 2)]
    for rank, (problem, rank_inputs) in enumerate(shards):
        assert problem.dcp == Dcp(3, rank, 2, causal_seqs=(23, 2, 0, 9))
        assert torch.equal(rank_inputs.query, inputs.query)
        assert rank_inputs.causal_seqs is not None
        assert rank_inputs.causal_seqs.tolist() == [23, 2, 0, 9]


@settings(deadline=None)
@given(
    world=st.integers(1, 6),
    size=st.integers(1, 6),
    num_positions=st.integers(0, 60),
)
def test_owned_positions_are_those_of_the_local_keys(
    world: int, size: int, num_positions: int
) -> None:
    dealt = []
    for rank in range(world):
        share = Dcp(world, rank, size, (num_positions,))
        owned = owned_positions(num_positions, share)
        assert owned == [masks.position(share, key) for key in range(len(owned))]
        assert masks.position(share, len(owned)) >= num_positions
        dealt += owned
    assert sorted(dealt) == list(range(num_positions))


def test_known_owners() -> None:
    assert [owner(x, world=2, interleave_size=3) for x in range(13)] == [
        *(0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0)
    ]


@pytest.mark.parametrize(
    "fault",
    [
        lambda x, world, size: x % world,
        lambda x, world, size: (x // size + 1) % world,
        lambda x, world, size: (x + 1) // size % world,
    ],
)
def test_keys_dealt_to_the_wrong_rank_are_noticed(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[int, int, int], int]
) -> None:
    assert_shards_merge(WHOLE, Recipe(), world=3, size=2)
    monkeypatch.setattr(dcp_module, "owner", fault)
    with pytest.raises(AssertionError, match="not close"):
        assert_shards_merge(WHOLE, Recipe(), world=3, size=2)


def test_a_share_is_not_sharded_again() -> None:
    problem = dataclasses.replace(WHOLE, dcp=Dcp(2, 0, 1, (46, 4, 0, 18)))
    inputs = make_inputs(problem, Recipe(), 1)
    with pytest.raises(ValueError, match="cp_world must be 1 to shard a context, got 2"):
        shard(problem, inputs, Recipe(), 1, world=2, interleave_size=1)
