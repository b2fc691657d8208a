"""Tiny problems, and what a decode call means in plain Python loops: no torch, no closed form."""

import dataclasses
import math

from hypothesis import strategies as st

from reference.inputs import Inputs
from reference.problem import DTYPES, TABLE_TAILS, Dcp, Dims, Mask, Problem, Recipe

MASKS = st.builds(Mask, causal=st.booleans(), window_left=st.integers(-1, 9))
RECIPES = st.builds(
    Recipe,
    magnitude=st.sampled_from([0.0, 0.5, 1.0, 20.0]),
    page_order=st.sampled_from(["random", "identity", "reversed"]),
    table_tail=st.sampled_from(TABLE_TAILS),
    spare_pages=st.integers(0, 2),
    poison=st.booleans(),
)
SEEDS = st.integers(0, 2**32)


@st.composite
def dcps(draw: st.DrawFn, batch: int) -> Dcp:
    """Any share of any context: the keys in the cache need not be the rank's own share of it."""
    world = draw(st.integers(1, 4))
    lengths = st.tuples(*[st.integers(0, 30)] * batch)
    return Dcp(
        world=world,
        rank=draw(st.integers(0, world - 1)),
        interleave_size=draw(st.integers(1, 5)),
        causal_seqs=draw(lengths if world > 1 else st.none() | lengths),
    )


@st.composite
def problems(draw: st.DrawFn, whole: bool = False) -> Problem:
    """Up to 2 requests, 3 heads, 4 query tokens, 12 keys. whole: the cache is the whole context."""
    seq_lens = tuple(draw(st.lists(st.integers(0, 12), max_size=2)))
    dcp = draw(dcps(len(seq_lens)))
    if whole:
        dcp = dataclasses.replace(dcp, world=1, rank=0)
    return Problem(
        dims=Dims(
            num_heads=draw(st.integers(1, 3)),
            seq_len_q=draw(st.integers(1, 4)),
            kv_lora_rank=draw(st.integers(1, 3)),
            qk_rope_head_dim=draw(st.integers(1, 2)),
        ),
        dtype=draw(st.sampled_from(DTYPES)),
        page_size=draw(st.sampled_from([2, 4, 8])),
        seq_lens=seq_lens,
        softmax_scale=draw(st.sampled_from([0.0, 0.1, 1.0])),
        output_scale=draw(st.sampled_from([1.0, -0.3, 0.0])),
        mask=draw(MASKS),
        dcp=dcp,
        lse_base=draw(st.sampled_from([2, "e"])),
    )


def loop_positions(dcp: Dcp, count: int) -> list[int]:
    """The first `count` positions that a rank holds, by walking over all positions in order."""
    positions: list[int] = []
    x = 0
    while len(positions) < count:
        if math.floor(x / dcp.interleave_size) % dcp.world == dcp.rank:
            positions.append(x)
        x += 1
    return positions


def loop_visible(problem: Problem, request: int, token: int, key: int) -> bool:
    """Whether a token sees a local key: the three conditions of the contract, one by one."""
    if key >= problem.seq_lens[request]:
        return False
    causal_seqs, mask = problem.dcp.causal_seqs, problem.mask
    length = problem.seq_lens[request] if causal_seqs is None else causal_seqs[request]
    x = loop_positions(problem.dcp, key + 1)[key]
    if x >= length:
        return False
    if mask.causal and x >= length - problem.dims.seq_len_q + 1 + token:
        return False
    low = length - problem.dims.seq_len_q - mask.window_left + token
    return mask.window_left == -1 or x >= low


def loop_decode(problem: Problem, inputs: Inputs) -> dict[tuple[int, int, int], list[float]]:
    """(request, token, head) -> the out row's elements, then the lse."""
    dims = problem.dims
    query, cache = inputs.query.double().tolist(), inputs.kv_cache.double().tolist()
    tables = inputs.block_tables.tolist()
    rows = {}
    for request, seq_len in enumerate(problem.seq_lens):
        for token in range(dims.seq_len_q):
            keys = [
                cache[tables[request][key // problem.page_size]][key % problem.page_size]
                for key in range(seq_len)
                if loop_visible(problem, request, token, key)
            ]
            for head in range(dims.num_heads):
                rows[request, token, head] = _loop_row(problem, query[request][token][head], keys)
    return rows


def _loop_row(problem: Problem, query: list[float], keys: list[list[float]]) -> list[float]:
    latent = range(problem.dims.kv_lora_rank)
    if not keys:
        return [0.0 for _ in latent] + [-math.inf]
    dots = [math.fsum(a * b for a, b in zip(query, key, strict=True)) for key in keys]
    scores = [problem.softmax_scale * dot for dot in dots]
    total = math.fsum(math.exp(score - max(scores)) for score in scores)
    lse = max(scores) + math.log(total)
    out = [
        problem.output_scale
        * math.fsum(math.exp(s - lse) * key[d] for s, key in zip(scores, keys, strict=True))
        for d in latent
    ]
    return [*out, lse / math.log(2) if problem.lse_base == 2 else lse]
