"""The absorbed form that decode kernels compute equals attention over expanded keys and values."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import paging
from reference.absorbed import UpProjections, absorb_query, decode_unabsorbed, expand_out
from reference.decode import decode
from reference.inputs import make_inputs
from reference.problem import Dims, Mask, Problem, Recipe
from reference.randomness import normal_deviates
from tests.reference import tiny

PROBLEM = Problem(
    dims=Dims(num_heads=3, seq_len_q=2, kv_lora_rank=6, qk_rope_head_dim=2),
    dtype="bfloat16",
    page_size=4,
    seq_lens=(11, 1, 0),
    softmax_scale=0.4,
    output_scale=-1.5,
    mask=Mask(window_left=5),
)


def assert_forms_agree(problem: Problem, *, nope_dim: int, v_dim: int, fault: str = "") -> None:
    dims, batch = problem.dims, problem.batch_size

    def normal(name: str, *shape: int) -> torch.Tensor:
        return normal_deviates(1, name, shape).double()

    weights = UpProjections(
        w_uk=normal("w_uk", dims.num_heads, nope_dim, dims.kv_lora_rank),
        w_uv=normal("w_uv", dims.num_heads, v_dim, dims.kv_lora_rank),
    )
    q_nope = normal("q_nope", batch, dims.seq_len_q, dims.num_heads, nope_dim)
    q_rope = normal("q_rope", batch, dims.seq_len_q, dims.num_heads, dims.qk_rope_head_dim)
    cached = make_inputs(problem, Recipe(poison=True), 1)
    keys = [
        paging.gather(cached.kv_cache, cached.block_tables[request], seq_len)
        for request, seq_len in enumerate(problem.seq_lens)
    ]
    expanded = decode_unabsorbed(problem, q_nope, q_rope, keys, weights)

    absorbing = weights
    if fault == "heads rotated":
        absorbing = dataclasses.replace(weights, w_uk=weights.w_uk.roll(1, dims=0))
    query = absorb_query(q_nope, q_rope, absorbing)
    if fault == "rope dropped":
        query[..., dims.kv_lora_rank :] = 0
    absorbed = decode(problem, dataclasses.replace(cached, query=query))
    out = expand_out(absorbed.out, weights)
    torch.testing.assert_close(out, expanded.out, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(absorbed.lse, expanded.lse, rtol=1e-10, atol=1e-10)


@settings(max_examples=50, deadline=None)
@given(problem=tiny.problems(), nope_dim=st.integers(1, 4), v_dim=st.integers(1, 4))
def test_absorbed_equals_expanded(problem: Problem, nope_dim: int, v_dim: int) -> None:
    assert_forms_agree(problem, nope_dim=nope_dim, v_dim=v_dim)


def test_absorbed_equals_expanded_at_the_real_sizes() -> None:
    problem = dataclasses.replace(
        PROBLEM, dims=Dims(num_heads=16, seq_len_q=2), softmax_scale=192**-0.5
    )
    assert_forms_agree(problem, nope_dim=128, v_dim=128)


@pytest.mark.parametrize("fault", ["heads rotated", "rope dropped"])
def test_wrong_absorption_is_noticed(fault: str) -> None:
    assert_forms_agree(PROBLEM, nope_dim=4, v_dim=5)
    with pytest.raises(AssertionError, match="not close"):
        assert_forms_agree(PROBLEM, nope_dim=4, v_dim=5, fault=fault)
