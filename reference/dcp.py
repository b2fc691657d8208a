"""Decode context parallelism: deal a context to ranks, call each, merge.

Every rank gets the whole query and its own share of the keys, in a cache of its own.
"""

import dataclasses

import torch

from reference import paging
from reference.decode import Decoded, decode
from reference.inputs import Inputs, page_inputs
from reference.problem import Dcp, Problem, Recipe
from reference.split_kv import merge


def owner(position: int, world: int, interleave_size: int) -> int:
    """The rank that holds a position: blocks of interleave_size positions, dealt in turn."""
    return position // interleave_size % world


def owned_positions(num_positions: int, dcp: Dcp) -> list[int]:
    """The positions below num_positions that a rank holds: entry c is its local key c."""
    return [
        position
        for position in range(num_positions)
        if owner(position, dcp.world, dcp.interleave_size) == dcp.rank
    ]


def shard(
    problem: Problem,
    inputs: Inputs,
    recipe: Recipe,
    seed: int,
    *,
    world: int,
    interleave_size: int,
) -> list[tuple[Problem, Inputs]]:
    """Each rank's call, for a whole context; a rank may get no keys at all.

    The recipe and the seed lay out the ranks' pools; the keys are those of `inputs`. Raises
    ValueError where the problem is one rank's share already.
    """
    if problem.dcp.world != 1:
        raise ValueError(f"cp_world must be 1 to shard a context, got {problem.dcp.world}")
    keys = [
        paging.gather(inputs.kv_cache, inputs.block_tables[request], seq_len)
        for request, seq_len in enumerate(problem.seq_lens)
    ]
    context_lens = tuple(problem.context_len(request) for request in range(problem.batch_size))

    shards = []
    for rank in range(world):
        dcp = Dcp(world, rank, interleave_size, context_lens)
        owned = [owned_positions(seq_len, dcp) for seq_len in problem.seq_lens]
        rank_problem = dataclasses.replace(
            problem, dcp=dcp, seq_lens=tuple(len(positions) for positions in owned)
        )
        rank_keys = [
            request_keys[torch.tensor(positions, dtype=torch.int64)]
            for request_keys, positions in zip(keys, owned, strict=True)
        ]
        rank_inputs = page_inputs(rank_problem, recipe, seed, query=inputs.query, keys=rank_keys)
        shards.append((rank_problem, rank_inputs))
    return shards


def decode_shards(shards: list[tuple[Problem, Inputs]]) -> Decoded:
    """The whole context's result, from every rank's call; at least one rank."""
    lse_base = shards[0][0].lse_base
    return merge([decode(problem, inputs) for problem, inputs in shards], lse_base)
