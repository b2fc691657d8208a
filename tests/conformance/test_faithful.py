"""Oracle B: a kernel that follows its declared algorithm is never refused, and any other one is.

Kernels are emulated bit by bit (`emulation`) with their tiles in the order of the keys, on generic
and on structured data (`draws`).
"""

import random
from dataclasses import replace

import pytest
import torch

from conformance import faithful
from conformance.compare import Comparison, compare
from conformance.faithful import emulations
from conformance.kernel import Algorithm
from tests.conformance import draws
from tests.conformance.drawn import Drawn
from tests.conformance.emulation import Settings, emulate

DTYPES = ("float8_e4m3fn", "bfloat16", "float16")
SCALE = 192**-0.5
DRAWS = 4  # of each kind and dtype
PLAIN = Algorithm(p_scale=1.0, rescale_threshold=0.0, tile_n=128, lse_base=2, split_rule="one")
LAZY = replace(PLAIN, p_scale=4.0, rescale_threshold=6.0)
LAZIEST = replace(PLAIN, rescale_threshold=8.0)
SCALED = replace(PLAIN, p_scale=256.0, tile_n=64)
ALGORITHMS = (PLAIN, LAZY, LAZIEST, SCALED)


def judge(drawn: Drawn, declared: Algorithm, actual: Algorithm, seed: int = 0) -> Comparison:
    """Return how a kernel that follows ``actual`` compares with what ``declared`` says."""
    settings = Settings(
        actual.rescale_threshold,
        actual.p_scale,
        actual.tile_n,
        drawn.splits,
        seed,
        last_tile_first=False,
    )
    out, _ = emulate(drawn.query, drawn.keys, draws.LATENT, drawn.scale, settings)
    emulated = emulations(drawn.problem, drawn.inputs, declared, drawn.splits)
    near = emulated.nearest(out[None, None])
    return compare(out[None, None], near.out, near.bound)


def generic(dtype: str, num_keys: int, splits: int = 1) -> Drawn:
    source = torch.Generator().manual_seed(num_keys)
    query = torch.randn(4, 576, generator=source).to(getattr(torch, dtype))
    keys = torch.randn(num_keys, 576, generator=source).to(getattr(torch, dtype))
    return Drawn(query, keys, SCALE, splits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", draws.KINDS, ids=lambda kind: kind.__name__)
def test_a_kernel_that_follows_its_algorithm_is_not_refused(kind, dtype):
    choice = random.Random(f"{kind.__name__}/{dtype}/faithful")
    for seed in range(DRAWS):
        query, keys = draws.draw(choice, kind, getattr(torch, dtype), rows=4, longest=500)
        scale = SCALE * 10.0 ** choice.uniform(-1.0, 0.3)
        drawn = Drawn(query, keys, scale, splits=choice.choice((1, 1, 2, 3, 7)))
        algorithm = choice.choice(ALGORITHMS)
        assert judge(drawn, algorithm, algorithm, seed).passed, (seed, algorithm)


FP8_FAULTS = {
    "another scale of P": (LAZY, replace(LAZY, p_scale=3.0)),
    "another threshold": (LAZIEST, replace(LAZIEST, rescale_threshold=1.0)),
    "no threshold": (LAZIEST, PLAIN),
    "another tile": (PLAIN, replace(PLAIN, tile_n=64)),
}


def rising(dtype: str) -> Drawn:
    """Row maxima that grow by two to three powers of two a tile."""
    drawn = generic(dtype, 500)
    nats = 0.013 * torch.arange(500.0)
    query, keys = drawn.query.float(), drawn.keys.float()
    draws._scores(query, keys, nats)
    return Drawn(query.to(drawn.query.dtype), keys.to(drawn.keys.dtype), SCALE)


@pytest.mark.parametrize("name", FP8_FAULTS)
def test_another_algorithm_than_the_declared_one_is_refused(name):
    declared, actual = FP8_FAULTS[name]
    drawn = rising("float8_e4m3fn")
    assert judge(drawn, declared, declared).passed
    assert judge(drawn, actual, actual).passed
    assert not judge(drawn, declared, actual).passed


def test_another_split_is_refused():
    """With a threshold each split starts from a maximum of its own."""
    drawn = rising("float8_e4m3fn")
    emulated = emulations(drawn.problem, drawn.inputs, LAZIEST, 1)
    settings = Settings(8.0, 1.0, 128, num_splits=4, last_tile_first=False)
    out, _ = emulate(drawn.query, drawn.keys, draws.LATENT, drawn.scale, settings)
    near = emulated.nearest(out[None, None])
    assert not compare(out[None, None], near.out, near.bound).passed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [1.01, 1.05])
def test_a_factor_on_out_is_refused(dtype, factor):
    drawn = generic(dtype, 500)
    emulated = emulations(drawn.problem, drawn.inputs, LAZY, 1)
    for times, passes in ((1.0, True), (factor, False)):
        out = (times * emulated.call.out).to(
            torch.bfloat16 if dtype == DTYPES[0] else drawn.keys.dtype
        )
        assert compare(out, emulated.call.out, emulated.call.bound).passed is passes


def tied() -> Drawn:
    """500 keys of P as near as can be to 0.265625, between 0.25 and 0.28125 of e4m3."""
    drawn = generic("float8_e4m3fn", 500)
    query, keys = drawn.query.float(), drawn.keys.float()
    query[:], keys[:, draws.LATENT :] = 0.0, 0.0
    query[:, draws.LATENT], keys[1:, draws.LATENT] = 1.0, -1.0
    keys[:, : draws.LATENT] = keys[:, : draws.LATENT].abs()
    scale = -torch.log(torch.tensor(0.265625, dtype=torch.float64))
    kind = torch.float8_e4m3fn
    return Drawn(query.to(kind), keys.to(kind), float(scale))


def test_a_key_at_a_tie_may_round_either_way(monkeypatch):
    """The emulator's ex2 errs by up to two ulp: some of its P end on the other side of the tie."""
    assert judge(tied(), PLAIN, PLAIN).passed
    monkeypatch.setattr(faithful, "weight_errors", lambda rows, exponent: 0.0 * exponent)
    assert not judge(tied(), PLAIN, PLAIN).passed


def at_the_threshold(tiles: int) -> Drawn:
    """Row maxima that grow by exactly 8 powers of two, or by a little less, from tile to tile."""
    kind = torch.bfloat16
    query = torch.zeros(2, 576)
    query[:, draws.LATENT] = 1.0
    keys = torch.randn(tiles * 128, 576, generator=torch.Generator().manual_seed(tiles))
    keys[:, draws.LATENT :] = 0.0
    keys[:, draws.LATENT] = 8.0 * (torch.arange(len(keys)) // 128)
    keys[128:, draws.LATENT] -= 3.0 * (torch.arange(128, len(keys)) % 128 > 0)
    return Drawn(query.to(kind), keys.to(kind), 0.6931471805599453)


@pytest.mark.parametrize("decided", [7.99, 8.01])
def test_either_decision_at_the_threshold_is_right(decided):
    """Two kernels that decide differently where the growth is the threshold, to the last bit."""
    drawn = at_the_threshold(3)
    emulated = emulations(drawn.problem, drawn.inputs, LAZIEST, 1)
    assert sorted(emulated.others) == [(0, 0, 0), (0, 0, 1)]
    assert not emulated.undecided
    assert len(emulated.others[0, 0, 0].out) == 3
    assert judge(drawn, LAZIEST, replace(LAZIEST, rescale_threshold=decided)).passed


def test_a_row_with_too_many_doubts_is_left_out():
    drawn = at_the_threshold(30)
    emulated = emulations(drawn.problem, drawn.inputs, LAZIEST, 1)
    assert emulated.undecided == ((0, 0, 0), (0, 0, 1))
    nothing = torch.full_like(emulated.call.out, 1e9, dtype=torch.bfloat16)
    near = emulated.nearest(nothing)
    assert compare(nothing, near.out, near.bound).passed


def test_a_nan_is_refused():
    drawn = at_the_threshold(3)
    emulated = emulations(drawn.problem, drawn.inputs, LAZIEST, 1)
    out = emulated.call.out.to(torch.bfloat16)
    out[0, 0, 0, 3] = torch.nan
    near = emulated.nearest(out)
    assert not compare(out, near.out, near.bound).passed


def test_chunks_do_not_change_the_emulation(monkeypatch):
    drawn = rising("float8_e4m3fn")
    whole = emulations(drawn.problem, drawn.inputs, LAZY, 2).call
    monkeypatch.setattr(faithful, "CHUNK_ELEMENTS", 700)
    parts = emulations(drawn.problem, drawn.inputs, LAZY, 2).call
    torch.testing.assert_close(parts.out, whole.out, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(parts.bound, whole.bound, rtol=1e-9, atol=0.0)


def test_without_a_cast_the_emulation_is_the_exact_result():
    drawn = generic("float8_e4m3fn", 300, splits=2)
    exact = torch.softmax(drawn.scale * (drawn.query.double() @ drawn.keys.double().T), -1)
    algorithm = replace(LAZY, casts_p=False)
    emulated = emulations(drawn.problem, drawn.inputs, algorithm, 2).call
    values = drawn.keys.double()[:, : draws.LATENT]
    torch.testing.assert_close(emulated.out[0, 0], exact @ values, rtol=1e-12, atol=1e-14)
