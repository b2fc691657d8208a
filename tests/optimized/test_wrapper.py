"""What a serving engine relies on around the call: memory, batches, huge pools, no surprises."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from optimized.api import mla_decode
from optimized.plan import workspace_size
from reference.inputs import Inputs, make_inputs
from reference.problem import Dims, Problem, Recipe
from tests.optimized.calls import Recorder

pytestmark = pytest.mark.filterwarnings("ignore")  # the DSL's own, when it compiles

GUARD, GUARD_BYTE = 4096, 0x5A
SHAPES = [("float8_e4m3fn", 16, 2), ("float8_e4m3fn", 128, 1), ("bfloat16", 48, 2)]
LENGTHS = (130, 0, 517)


def problem_of(dtype: str, heads: int, tokens: int) -> Problem:
    return Problem(Dims(heads, tokens), dtype, 64, LENGTHS, softmax_scale=1 / math.sqrt(192))


def call(problem: Problem, inputs: Inputs, **changes: Any) -> tuple[torch.Tensor, torch.Tensor]:
    given: dict[str, Any] = {
        "query": inputs.query,
        "kv_cache": inputs.kv_cache,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "block_tables": inputs.block_tables,
        "seq_lens": inputs.seq_lens,
        "max_seq_len": max(problem.seq_lens),
        "softmax_scale": problem.softmax_scale,
        "return_lse": True,
    }
    if "workspace_buffer" not in changes:
        given["workspace_buffer"] = torch.empty(2**25, dtype=torch.int8)
    out, lse = mla_decode(**given | changes)
    return out, lse


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))


@pytest.mark.parametrize(("dtype", "heads", "tokens"), SHAPES)
def test_pages_past_two_to_the_31_elements_are_found(dtype: str, heads: int, tokens: int) -> None:
    """The pool takes address space alone: but for a few pages nothing touches it."""
    problem = problem_of(dtype, heads, tokens)
    inputs = make_inputs(problem, Recipe(), 1)
    pages = inputs.kv_cache.shape[0]
    total = 2**31 // (64 * 576) + 2 * pages
    pool = torch.empty((total, 64, 576), dtype=inputs.kv_cache.dtype)
    pool[-pages:] = inputs.kv_cache
    tables = inputs.block_tables + (total - pages)
    assert pool[-pages].storage_offset() > 2**31
    small, large = (
        call(problem, inputs),
        call(problem, replace(inputs, kv_cache=pool, block_tables=tables)),
    )
    assert same_bits(small[0], large[0])
    assert same_bits(small[1], large[1])


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize(("dtype", "heads", "tokens"), SHAPES)
def test_requests_without_keys_need_no_page_and_no_table(
    dtype: str, heads: int, tokens: int, num_splits: int
) -> None:
    """A pool of no pages and a block table of no entries: there is nothing to read of either."""
    problem = problem_of(dtype, heads, tokens)
    inputs = make_inputs(problem, Recipe(), 1)
    nothing = replace(
        inputs,
        kv_cache=inputs.kv_cache[:0],
        block_tables=torch.empty((len(LENGTHS), 0), dtype=torch.int32),
        seq_lens=torch.zeros_like(inputs.seq_lens),
    )
    out, lse = call(problem, nothing, num_splits=num_splits)
    assert not out.any()
    assert bool((lse == -math.inf).all())


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize(("dtype", "heads", "tokens"), SHAPES)
def test_memory_around_workspace_and_output_is_left_alone(
    dtype: str, heads: int, tokens: int, num_splits: int
) -> None:
    """A workspace of exactly the size asked for, and every buffer between guards."""
    problem = problem_of(dtype, heads, tokens)
    inputs = make_inputs(problem, Recipe(), 1)
    plain = call(problem, inputs, num_splits=num_splits)
    workspace_room, workspace = guarded(workspace_size(problem, num_splits=num_splits))
    out_room, out = guarded(plain[0].numel() * plain[0].itemsize)
    out = out.view(plain[0].dtype).view(plain[0].shape)
    result, lse = call(problem, inputs, num_splits=num_splits, workspace_buffer=workspace, out=out)
    assert result is out
    assert same_bits(out, plain[0])
    assert same_bits(lse, plain[1])
    for room in (workspace_room, out_room):
        assert bool((room[:GUARD] == GUARD_BYTE).all())
        assert bool((room[-GUARD:] == GUARD_BYTE).all())


def guarded(num_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory full of the guard byte, and so many bytes in its middle, aligned."""
    room = torch.full((num_bytes + 2 * GUARD + 64,), GUARD_BYTE, dtype=torch.uint8)
    begin = GUARD + -(room.data_ptr() + GUARD) % 64
    return room, room[begin : begin + num_bytes].view(torch.int8)


@pytest.mark.parametrize("packed", [False, True], ids=["folded", "packed"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "bfloat16"])
def test_a_row_keeps_its_bits_whatever_else_is_in_the_batch(dtype: str, packed: bool) -> None:
    """With fixed splits: alone, beside others, in another place, beside other values."""
    heads, tokens = (96, 4) if packed else (32, 2)
    problem = replace(problem_of(dtype, heads, tokens), seq_lens=(700, 33, 517))
    fixed = {"split_policy": "fixed", "max_seq_len": 2048}
    inputs = make_inputs(problem, Recipe(), 1)
    together = call(problem, inputs, **fixed)
    shuffled = {
        name: getattr(inputs, name)[[2, 0, 1]] for name in ("query", "block_tables", "seq_lens")
    }
    moved = call(problem, replace(inputs, **shuffled), **fixed)
    query = inputs.query.clone()
    query[1:] = query[1:].float().mul(4).to(query.dtype)
    changed = call(problem, replace(inputs, query=query), **fixed)
    alone = {name: getattr(inputs, name)[:1] for name in shuffled}
    single = call(problem, replace(inputs, **alone), **fixed)
    for part in (0, 1):
        assert same_bits(together[part][0], moved[part][1])
        assert same_bits(together[part][0], changed[part][0])
        assert same_bits(together[part][0], single[part][0])
        assert not same_bits(together[part][1], changed[part][1])


VIEWS = {"as_strided", "view", "squeeze", "detach", "alias", "_to_copy"}


def test_only_the_results_are_allocated_and_no_value_is_read() -> None:
    """Reading an element (``item``) would wait for a GPU; a copy would be memory of its own."""
    problem = problem_of("float8_e4m3fn", 16, 2)
    inputs = make_inputs(problem, Recipe(), 1)
    workspace = torch.empty(2**25, dtype=torch.int8)
    with Recorder() as recorder:
        call(problem, inputs, workspace_buffer=workspace)
    made = [name for name in recorder.names if name not in VIEWS]
    assert sorted(made) == ["empty", "new_empty"], recorder.names
    assert "_to_copy" not in recorder.names
    wide = replace(inputs, seq_lens=inputs.seq_lens.long())
    with Recorder() as recorder:
        call(problem, wide, workspace_buffer=workspace)
    assert recorder.names.count("_to_copy") == 1  # int32 lengths, of a few bytes


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "tokens"), [(1, 65_600), (65_600, 1)])
def test_more_rows_than_a_grid_has_in_y_and_z(batch: int, tokens: int) -> None:
    """With three keys, weighed here: the oracle takes token by token."""
    draw = torch.Generator().manual_seed(1)
    query = torch.randn(batch, tokens, 1, 576, generator=draw).to(torch.bfloat16)
    cache = torch.randn(1, 64, 576, generator=draw).to(torch.bfloat16)
    given: dict[str, Any] = {
        "workspace_buffer": torch.empty(0, dtype=torch.int8),
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "block_tables": torch.zeros(batch, 1, dtype=torch.int32),
        "seq_lens": torch.full((batch,), 3, dtype=torch.int32),
        "max_seq_len": 3,
        "softmax_scale": 1 / math.sqrt(192),
    }
    out, lse = mla_decode(
        query, cache, **given, causal_mask=False, return_lse=True, num_splits=1, lse_base="e"
    )
    keys = cache[0, :3].double()
    scores = query.double().reshape(-1, 576) @ keys.T / math.sqrt(192)
    exact = torch.softmax(scores, -1) @ keys[:, :512]
    # P and the output are each rounded to 8 bits: 2^-9 of the largest value either way.
    assert (out.double().reshape(-1, 512) - exact).abs().max() < 2**-7 * keys.abs().max()
    assert (lse.double().flatten() - torch.logsumexp(scores, -1)).abs().max() < 1e-5
