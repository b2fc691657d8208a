"""Each kind of values keeps its promise, and the exact result shows it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import masks, paging
from reference.decode import decode
from reference.inputs import make_inputs
from reference.problem import Dcp, Dims, Mask, Problem, Recipe
from reference.values import VALUES, boundaries
from tests.reference import tiny

SCALE = 192**-0.5
LATENT = 512


def problem(*seq_lens, dtype="bfloat16", heads=4, tokens=2, **changes):
    return Problem(Dims(heads, tokens), dtype, 16, seq_lens, SCALE, **changes)


def scores(case, inputs, request):
    """Nats of the first head's last token: [K_b]."""
    keys = paging.gather(inputs.kv_cache, inputs.block_tables[request], case.seq_lens[request])
    return case.softmax_scale * (keys @ inputs.query[request, -1, 0].double())


@settings(max_examples=60, deadline=None)
@given(tiny.problems(), st.sampled_from(sorted(VALUES)), st.booleans(), tiny.SEEDS)
def test_every_kind_gives_finite_inputs_and_results(case, values, poison, seed):
    recipe = Recipe(values=values, poison=poison)
    inputs, again = make_inputs(case, recipe, seed), make_inputs(case, recipe, seed)
    assert torch.equal(inputs.query.float(), again.query.float())
    assert torch.equal(inputs.block_tables, again.block_tables)
    assert inputs.query.float().isfinite().all()
    assert decode(case, inputs).out.isfinite().all()


@pytest.mark.parametrize("mask", [Mask(), Mask(causal=False), Mask(window_left=40)])
def test_positions_can_be_read_back(mask):
    """Each visible key adds 1/n to one column of each half, and no other key adds anything."""
    case = problem(700, 5, mask=mask)
    out = decode(case, make_inputs(case, Recipe(values="positions"), 3)).out[..., 0, :]
    for request in range(2):
        for token, seen in enumerate(masks.visible_keys(case, request)):
            keys = seen.nonzero().flatten()
            want = torch.zeros(2, LATENT // 2, dtype=torch.float64)
            for key in keys.tolist():
                want[0, key % 256] += 1
                want[1, key // 256] += 1
            torch.testing.assert_close(out[request, token] * len(keys), want.flatten())


def test_values_of_one_give_the_output_scale():
    case = problem(300, 40, output_scale=-3.0)
    out = decode(case, make_inputs(case, Recipe(values="ones"), 3)).out
    torch.testing.assert_close(out, torch.full_like(out, -3.0))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "bfloat16"])
def test_a_needle_has_all_the_weight_of_its_rows(dtype):
    case = problem(300, dtype=dtype, heads=32, mask=Mask(causal=False))
    inputs = make_inputs(case, Recipe(values="needles"), 3)
    keys = paging.gather(inputs.kv_cache, inputs.block_tables[0], 300)[:, :LATENT]
    out = decode(case, inputs).out[0].flatten(0, 1)
    found = torch.cdist(out, keys).min(1)
    assert float(found.values.max()) < 1e-3
    assert set(found.indices.tolist()) <= set(boundaries(case, 0))
    assert len(set(found.indices.tolist())) > 10


def test_boundaries_are_those_of_pages_tiles_masks_windows_and_ranks():
    dcp = Dcp(world=2, rank=0, interleave_size=5, causal_seqs=(600,))
    case = problem(300, mask=Mask(window_left=100), dcp=dcp)
    edges = boundaries(case, 0)
    assert {0, 1, 298, 299, 127, 128, 255, 256, 15, 16, 287, 288, 5, 295, 198, 297} <= set(edges)
    assert boundaries(problem(1), 0) == [0]
    assert boundaries(problem(0), 0) == []


@pytest.mark.parametrize(("values", "sign"), [("rising", 1), ("falling", -1)])
def test_the_maximum_of_each_tile_moves_by_half_to_four_powers_of_two(values, sign):
    case = problem(512)
    maxima = scores(case, make_inputs(case, Recipe(values=values), 3), 0).view(4, 128).amax(1)
    growth = sign * maxima.diff() / math.log(2.0)
    assert bool(((growth > 0.4) & (growth < 4.2)).all())


def test_flat_scores_are_equal_and_not_zero():
    case = problem(300)
    nats = scores(case, make_inputs(case, Recipe(values="flat"), 3), 0)
    assert float(nats.min()) == float(nats.max()) > 1.0


def test_a_hot_key_leads_a_tail_by_seven_nats():
    case = problem(300)
    nats = scores(case, make_inputs(case, Recipe(values="hot_key"), 3), 0).sort().values
    assert float(nats[-1] - nats[-2]) > 5.0
    assert float(nats[-1] - nats[:-1].mean()) == pytest.approx(7.0, abs=0.3)


def test_very_negative_scores_are_below_a_sentinel_of_a_million():
    case = problem(300, dtype="float8_e4m3fn")
    raw = {
        round(float(scores(case, make_inputs(case, Recipe(values="very_negative"), s), 0).max()
        / SCALE), -3) for s in range(8)
    }  # fmt: skip
    assert max(raw) < -4e3
    assert min(raw) < -1e6


def test_extremes_are_all_the_values_of_e4m3():
    case = problem(300, dtype="float8_e4m3fn")
    inputs = make_inputs(case, Recipe(values="extremes"), 3)
    keys = paging.gather(inputs.kv_cache, inputs.block_tables[0], 300)
    assert len(keys.unique()) == 253  # 254 finite codes, of which both zeros are equal
    assert 0.0 < float(inputs.query.float().abs().max()) < 2.0**-5


def test_shared_pages_are_stored_once_and_read_as_they_are():
    case = problem(200, 170, 30)
    plain, shared = (Recipe(values=kind, poison=True) for kind in ("normal", "shared_pages"))
    tables = make_inputs(case, shared, 3).block_tables
    assert int(tables[0, 2]) == int(tables[1, 2])
    assert int(tables[1, 5]) == int(tables[1, 8]) == int(tables[1, 0])
    assert len(make_inputs(case, plain, 3).block_tables[0, :12].unique()) == 12
    case = problem(200, 170, 30, mask=Mask(window_left=150))
    inputs = make_inputs(case, shared, 3)
    for request, seq_len in enumerate(case.seq_lens):
        keys = paging.gather(inputs.kv_cache, inputs.block_tables[request], seq_len)
        _, want = VALUES["shared_pages"](case, shared, 3, request)
        seen = masks.visible_keys(case, request).any(0)
        assert torch.equal(keys[seen], want[seen].to(torch.bfloat16).double())


def test_magnitudes_differ_between_parts():
    case = problem(64, dtype="float16")
    ratios = []
    for seed in range(12):
        inputs = make_inputs(case, Recipe(values="magnitudes"), seed)
        keys = paging.gather(inputs.kv_cache, inputs.block_tables[0], 64)
        ratios.append(float(keys[:, :LATENT].std() / keys[:, LATENT:].std()))
    assert min(ratios) < 0.2
    assert max(ratios) > 5.0
