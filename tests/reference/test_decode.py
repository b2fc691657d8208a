"""The oracle equals brute-force Python loops, and a fault in any of its parts is noticed."""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings

from reference import decode as decode_module
from reference import masks, paging
from reference.decode import decode
from reference.inputs import Inputs, make_inputs
from reference.problem import Dcp, Dims, Mask, Problem, Recipe
from tests.reference import tiny

WHOLE = Problem(
    dims=Dims(num_heads=2, seq_len_q=3, kv_lora_rank=3, qk_rope_head_dim=2),
    dtype="bfloat16",
    page_size=4,
    seq_lens=(11, 2, 0, 9),
    softmax_scale=0.4,
    output_scale=-1.5,
)
WINDOWED = dataclasses.replace(WHOLE, mask=Mask(window_left=2))
SHARED = dataclasses.replace(
    WHOLE, mask=Mask(window_left=9), dcp=Dcp(3, 1, 2, causal_seqs=(29, 5, 0, 33)), lse_base="e"
)


def assert_equals_loops(problem: Problem, inputs: Inputs) -> None:
    decoded = decode(problem, inputs)
    for (request, token, head), row in tiny.loop_decode(problem, inputs).items():
        at = (request, token, head)
        got = torch.cat([decoded.out[at], decoded.lse[at][None]])
        torch.testing.assert_close(
            got, torch.tensor(row, dtype=torch.float64), rtol=1e-12, atol=1e-12
        )


@settings(max_examples=300, deadline=None)
@given(problem=tiny.problems(), recipe=tiny.RECIPES, seed=tiny.SEEDS)
def test_equals_loops(problem: Problem, recipe: Recipe, seed: int) -> None:
    inputs = make_inputs(problem, recipe, seed)
    assert_equals_loops(problem, inputs)
    assert decode(problem, inputs).out.isfinite().all()


@pytest.mark.parametrize("problem", [WHOLE, WINDOWED, SHARED])
def test_the_problems_broken_below_pass_unbroken(problem: Problem) -> None:
    assert_equals_loops(problem, make_inputs(problem, Recipe(), 1))


def masked_as(change: Callable[[Problem], Problem]) -> Callable[[Problem, int], torch.Tensor]:
    visible_keys = masks.visible_keys
    return lambda problem, request: visible_keys(change(problem), request)


def no_causal(problem: Problem) -> Problem:
    return dataclasses.replace(problem, mask=dataclasses.replace(problem.mask, causal=False))


def no_window(problem: Problem) -> Problem:
    return dataclasses.replace(problem, mask=dataclasses.replace(problem.mask, window_left=-1))


def one_wider(problem: Problem) -> Problem:
    window = problem.mask.window_left + 1
    return dataclasses.replace(problem, mask=dataclasses.replace(problem.mask, window_left=window))


def not_interleaved(problem: Problem) -> Problem:
    return dataclasses.replace(problem, dcp=dataclasses.replace(problem.dcp, interleave_size=1))


def first_rank(problem: Problem) -> Problem:
    return dataclasses.replace(problem, dcp=dataclasses.replace(problem.dcp, rank=0))


def local_length(problem: Problem) -> Problem:
    dcp = dataclasses.replace(problem.dcp, causal_seqs=problem.seq_lens)
    return dataclasses.replace(problem, dcp=dcp)


@pytest.mark.parametrize(
    ("problem", "fault"),
    [
        (WHOLE, no_causal),
        (WINDOWED, no_causal),
        (WINDOWED, no_window),
        (WINDOWED, one_wider),
        (SHARED, not_interleaved),
        (SHARED, first_rank),
        (SHARED, local_length),
    ],
)
def test_broken_mask_is_noticed(
    monkeypatch: pytest.MonkeyPatch, problem: Problem, fault: Callable[[Problem], Problem]
) -> None:
    inputs = make_inputs(problem, Recipe(), 1)
    monkeypatch.setattr(masks, "visible_keys", masked_as(fault))
    with pytest.raises(AssertionError, match="not close"):
        assert_equals_loops(problem, inputs)


def wrong_scale(query: torch.Tensor, keys: torch.Tensor, rank: int, scale: float) -> tuple:
    return ATTEND(query, keys, rank, scale * 1.001)


def rope_ignored(query: torch.Tensor, keys: torch.Tensor, rank: int, scale: float) -> tuple:
    return ATTEND(query[:, :rank], keys[:, :rank], rank, scale)


def first_key_dropped(query: torch.Tensor, keys: torch.Tensor, rank: int, scale: float) -> tuple:
    return ATTEND(query, keys[1:], rank, scale)


ATTEND = decode_module.attend


@pytest.mark.parametrize("fault", [wrong_scale, rope_ignored, first_key_dropped])
def test_broken_attention_is_noticed(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[..., tuple]
) -> None:
    inputs = make_inputs(WHOLE, Recipe(), 1)
    monkeypatch.setattr(decode_module, "attend", fault)
    with pytest.raises(AssertionError, match="not close"):
        assert_equals_loops(WHOLE, inputs)


def test_page_read_in_pool_order_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs(WHOLE, Recipe(), 1)
    gather = paging.gather
    monkeypatch.setattr(paging, "gather", lambda kv, row, n: gather(kv, row.sort().values, n))
    with pytest.raises(AssertionError, match="not close"):
        assert_equals_loops(WHOLE, inputs)


def test_row_that_sees_no_key_is_exactly_zero() -> None:
    problem = dataclasses.replace(WHOLE, seq_lens=(0, 1, 2, 3))
    decoded = decode(problem, make_inputs(problem, Recipe(poison=True), 1))
    blind = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)
    assert (decoded.out[blind] == 0).all()
    assert (decoded.lse[blind] == -math.inf).all()
    assert decoded.lse[~blind].isfinite().all()


def test_zero_scale_weighs_the_visible_keys_alike() -> None:
    problem = dataclasses.replace(WHOLE, seq_lens=(6,), softmax_scale=0.0, output_scale=1.0)
    inputs = make_inputs(problem, Recipe(), 1)
    keys = paging.gather(inputs.kv_cache, inputs.block_tables[0], 6)
    decoded = decode(problem, inputs)
    for token, count in enumerate((4, 5, 6)):
        mean = keys[:count, :3].mean(dim=0)
        torch.testing.assert_close(decoded.out[0, token], mean.expand(2, 3), rtol=1e-14, atol=1e-14)
        assert decoded.lse[0, token].tolist() == pytest.approx([math.log2(count)] * 2)


def test_output_scale_does_not_touch_lse() -> None:
    inputs = make_inputs(WHOLE, Recipe(), 1)
    plain = decode(dataclasses.replace(WHOLE, output_scale=1.0), inputs)
    scaled = decode(dataclasses.replace(WHOLE, output_scale=-4.0), inputs)
    assert torch.equal(scaled.out, -4.0 * plain.out)
    assert torch.equal(scaled.lse, plain.lse)


def test_lse_bases_differ_by_a_factor() -> None:
    inputs = make_inputs(WHOLE, Recipe(), 1)
    base_2 = decode(WHOLE, inputs)
    base_e = decode(dataclasses.replace(WHOLE, lse_base="e"), inputs)
    assert torch.equal(base_2.out, base_e.out)
    torch.testing.assert_close(base_2.lse * math.log(2), base_e.lse)


@settings(max_examples=50, deadline=None)
@given(problem=tiny.problems(), recipe=tiny.RECIPES, seed=tiny.SEEDS)
def test_unseen_slots_do_not_matter(problem: Problem, recipe: Recipe, seed: int) -> None:
    results = [
        decode(problem, make_inputs(problem, dataclasses.replace(recipe, poison=poison), seed))
        for poison in (False, True)
    ]
    assert torch.equal(results[0].out, results[1].out)
    assert torch.equal(results[0].lse, results[1].lse)


def test_large_scores_do_not_overflow() -> None:
    problem = dataclasses.replace(WHOLE, softmax_scale=1e4)
    inputs = make_inputs(problem, Recipe(magnitude=1000.0), 1)
    assert decode(problem, inputs).out.isfinite().all()
    assert_equals_loops(problem, inputs)


def test_batch_0_gives_empty_tensors() -> None:
    problem = dataclasses.replace(WHOLE, seq_lens=())
    decoded = decode(problem, make_inputs(problem, Recipe(), 1))
    assert decoded.out.shape == (0, 3, 2, 3)
    assert decoded.lse.shape == (0, 3, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_lens": (11, 2)}, r"query must have shape \(2, 3, 2, 5\) for this problem"),
        ({"page_size": 8}, r"kv_cache must have shape \(17, 8, 5\)"),
    ],
)
def test_inputs_of_another_problem_are_refused(change: dict, message: str) -> None:
    inputs = make_inputs(WHOLE, Recipe(spare_pages=10), 1)
    with pytest.raises(ValueError, match=message):
        decode(dataclasses.replace(WHOLE, **change), inputs)
