"""Oracle A: no right kernel leaves its bounds, and wrong answers do.

Right kernels are emulated (`emulation`), on generic and on structured data (`draws`). Each part of
a bound is also taken away, and then a right kernel is refused: no part is idle.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from conformance import tolerance
from conformance.compare import compare
from conformance.kernel import Algorithm
from conformance.tolerance import bounds, row_bounds
from reference.decode import attend, decode
from reference.inputs import make_inputs
from reference.problem import Dims, Problem, Recipe
from tests.conformance import draws
from tests.conformance.emulation import Settings, emulate
from tests.reference import tiny

DTYPES = ("float8_e4m3fn", "bfloat16", "float16")
SCALE = 192**-0.5
DRAWS = 6  # of each kind and dtype
PLAIN = Algorithm(p_scale=1.0, rescale_threshold=0.0, tile_n=128, lse_base=2, split_rule="one")
LAZY = Algorithm(p_scale=1.0, rescale_threshold=8.0, tile_n=128, lse_base=2, split_rule="one")
SCALED = Algorithm(p_scale=256.0, rescale_threshold=0.0, tile_n=128, lse_base=2, split_rule="one")
SOME = Algorithm(p_scale=64.0, rescale_threshold=2.0, tile_n=64, lse_base=2, split_rule="one")


@dataclass(frozen=True)
class Ratios:
    """Worst error over bound of a right kernel."""

    out: float
    lse: float


def judge(
    query: Tensor, keys: Tensor, scale: float, algorithm: Algorithm, *, splits: int, seed: int
) -> Ratios:
    dtype = str(keys.dtype).removeprefix("torch.")
    chosen = Settings(
        algorithm.rescale_threshold, algorithm.p_scale, algorithm.tile_n, splits, seed
    )
    out, lse = emulate(query, keys, draws.LATENT, scale, chosen)
    problem = Problem(Dims(len(query), 1), dtype, 64, (len(keys),), scale)
    exact, nats = attend(query.double(), keys.double(), draws.LATENT, scale)
    limits = row_bounds(query.double(), keys.double(), problem, algorithm)
    found = (
        compare(out[None, None], exact[None, None], limits[0][None, None]),
        compare(lse[None, None], nats[None, None] / math.log(2.0), limits[1][None, None]),
    )
    return Ratios(found[0].ratio, found[1].ratio)


def draw_and_judge(kind: draws.Kind, dtype: str, count: int = DRAWS) -> Ratios:
    """Return the worst of ``count`` draws of one kind, each with settings of its own."""
    choice = random.Random(f"{kind.__name__}/{dtype}")
    worst = Ratios(0.0, 0.0)
    for seed in range(count):
        query, keys = draws.draw(choice, kind, getattr(torch, dtype), rows=4, longest=500)
        algorithms = (PLAIN, LAZY, SCALED, SOME) if dtype == "float8_e4m3fn" else (PLAIN,)
        algorithm = choice.choice(algorithms)
        scale = SCALE * 10.0 ** choice.uniform(-1.0, 0.3)
        splits = choice.choice((1, 1, 2, 3, 7))
        ratios = judge(query, keys, scale, algorithm, splits=splits, seed=seed)
        worst = Ratios(max(worst.out, ratios.out), max(worst.lse, ratios.lse))
    return worst


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", draws.KINDS, ids=lambda kind: kind.__name__)
def test_no_right_kernel_is_refused(kind, dtype):
    worst = draw_and_judge(kind, dtype)
    assert worst.out <= 1.0
    assert worst.lse <= 1.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_keys", [129, 640, 2048])
def test_on_normal_data_a_right_kernel_has_room(dtype, num_keys):
    """Less than 0.6 of the bound; the LSE is within 1e-5 of exact, and its bound small."""
    source = torch.Generator().manual_seed(num_keys)
    query = torch.randn(8, 576, generator=source).to(getattr(torch, dtype))
    keys = torch.randn(num_keys, 576, generator=source).to(getattr(torch, dtype))
    algorithm = LAZY if dtype == "float8_e4m3fn" else PLAIN
    ratios = judge(query, keys, SCALE, algorithm, splits=2, seed=0)
    assert ratios.out < 0.6
    problem = Problem(Dims(8, 1), dtype, 64, (num_keys,), SCALE)
    _, lse = row_bounds(query.double(), keys.double(), problem, algorithm)
    assert float(lse.max()) < (1e-4 if dtype == "float8_e4m3fn" else 3e-4)
    assert ratios.lse * float(lse.max()) < 1e-5


@dataclass(frozen=True)
class Part:
    """A part of the bounds, what stands in for it when it is taken away, and data that needs it."""

    name: str
    replacement: object
    dtype: str
    query: Callable[[Tensor], Tensor]
    keys: Callable[[Tensor], Tensor]
    scale: float = SCALE


def rope_ones(query: Tensor) -> Tensor:
    return torch.cat((0.0 * query[:, : draws.LATENT], 0.0 * query[:, draws.LATENT :] + 1.0), 1)


def equal_scores(keys: Tensor) -> Tensor:
    """Positive values, and for `rope_ones` a score of -64 for all but the last key's."""
    keys = keys.abs()
    keys[:, draws.LATENT :] = -1.0
    keys[-1, draws.LATENT :] = 0.0
    return keys


ALMOST_A_TIE = -math.log(0.264) / 64.0  # P = 0.264, between 0.25 and 0.28125 in e4m3
PARTS = [
    Part("HOEFFDING", 0.0, "float8_e4m3fn", torch.clone, torch.clone),
    Part("HOEFFDING", 0.0, "bfloat16", torch.clone, torch.clone),
    Part(
        "_grouped_squares", lambda cells, half_ulps, values: torch.zeros(len(cells), draws.LATENT),
        "float8_e4m3fn", rope_ones, equal_scores, ALMOST_A_TIE,
    ),
    Part("raw_score_errors", lambda *_: 0.0, "float16", torch.abs, torch.abs),
    Part("rounded", lambda rows, errors, problem: errors, "bfloat16", torch.zeros_like, torch.abs),
]  # fmt: skip


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.name}-{part.dtype}")
def test_each_part_is_needed(monkeypatch, part):
    source = torch.Generator().manual_seed(7)
    dtype = getattr(torch, part.dtype)
    query = part.query(torch.randn(4, 576, generator=source)).to(dtype)
    keys = part.keys(torch.randn(500, 576, generator=source)).to(dtype)
    whole = judge(query, keys, part.scale, PLAIN, splits=1, seed=1)
    assert max(whole.out, whole.lse) <= 1.0
    monkeypatch.setattr(tolerance, part.name, part.replacement)
    rest = judge(query, keys, part.scale, PLAIN, splits=1, seed=1)
    assert max(rest.out, rest.lse) > 1.0


@settings(max_examples=60, deadline=None)
@given(tiny.problems(), tiny.RECIPES, tiny.SEEDS)
def test_every_problem_has_bounds_that_its_rounded_result_keeps(problem, recipe, seed):
    """Whatever the mask, the shares of ranks, the poison and the scales; 0 where no key is seen."""
    inputs = make_inputs(problem, recipe, seed)
    limits = bounds(problem, inputs, PLAIN)
    exact = decode(problem, inputs)
    rounded = exact.out.to(getattr(torch, problem.output_dtype))
    assert compare(rounded, exact.out, limits.out).passed
    assert compare(exact.lse.float(), exact.lse, limits.lse, name="lse").passed
    empty = exact.lse.isinf()
    assert bool((limits.out[empty] == 0.0).all())
    assert bool((limits.lse[empty] == 0.0).all())


def normal_problem(**changes: object) -> Problem:
    return Problem(Dims(6, 2), "float8_e4m3fn", 32, (70, 0, 300), SCALE, **changes)


def test_chunks_do_not_change_the_bounds(monkeypatch):
    problem = normal_problem()
    inputs = make_inputs(problem, Recipe(), seed=1)
    whole = bounds(problem, inputs, LAZY)
    monkeypatch.setattr(tolerance, "CHUNK_ELEMENTS", 700)
    monkeypatch.setattr(tolerance, "GROUP_ELEMENTS", 300)
    parts = bounds(problem, inputs, LAZY)
    torch.testing.assert_close(parts.out, whole.out, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(parts.lse, whole.lse, rtol=1e-12, atol=0.0)


def test_output_scale_and_lse_base_scale_the_bounds():
    inputs = make_inputs(normal_problem(), Recipe(), seed=1)
    plain = bounds(normal_problem(), inputs, PLAIN)
    scaled = bounds(normal_problem(output_scale=-4.0, lse_base="e"), inputs, PLAIN)
    torch.testing.assert_close(scaled.out, 4.0 * plain.out)
    torch.testing.assert_close(scaled.lse, math.log(2.0) * plain.lse)


def test_a_scaled_p_loses_less_to_the_floor_of_its_format():
    inputs = make_inputs(normal_problem(), Recipe(), seed=1)
    plain, scaled = (bounds(normal_problem(), inputs, kind).out for kind in (PLAIN, SCALED))
    assert bool((scaled[[0, 2]] <= plain[[0, 2]]).all())
    assert float((scaled / plain)[2].mean()) < 0.99


def test_a_p_that_leaves_the_range_of_its_format_is_refused():
    problem = normal_problem()
    inputs = make_inputs(problem, Recipe(), seed=1)
    algorithm = Algorithm(448.0, 1.0, 128, 2, "one")
    with pytest.raises(ValueError, match=r"p_scale 448.0 and rescale_threshold 1.0 .* 896.0"):
        bounds(problem, inputs, algorithm)
