"""The profile ``peers``: always the same problems, all inside the limits, of the whole range."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from conformance import peer_rows
from conformance.kernel import Limits
from conformance.strategies import covering_array
from reference.masks import visible_keys
from tests.conformance.fake_kernel import FakeKernel

LIMITS = Limits(table_tails=("tile",), poison=False, empty_rows=False)


@dataclass(frozen=True)
class Peer(FakeKernel):
    name: str = "fake-fp8"
    limits: Limits = LIMITS


@pytest.fixture(scope="module")
def drawn():
    return covering_array("peers", Peer())


def test_the_problems_are_always_the_same_and_as_many_as_promised(drawn):
    assert len(drawn) == peer_rows.SHAPES * peer_rows.PROBLEMS_PER_SHAPE
    assert covering_array("peers", Peer()) == drawn
    assert covering_array("peers", replace(Peer(), name="other-fp8")) != drawn


def test_every_problem_is_inside_the_limits(drawn):
    for problem, recipe, _ in drawn:
        assert recipe.table_tail == "tile"
        assert not recipe.poison
        assert recipe.layout != "gapped"
        assert problem.softmax_scale > 0.01
        rows = problem.dims.num_heads * problem.dims.seq_len_q
        assert problem.page_size <= 64 or rows > 64
        if problem.dcp.world == 1:  # a rank may hold no key of an early token
            for request, keys in enumerate(problem.seq_lens):
                if keys <= 700:
                    assert visible_keys(problem, request).any(dim=1).all()


def test_the_range_is_whole(drawn):
    assert {p.dims.num_heads for p, _, _ in drawn} == {8, 16, 32, 64, 128}
    assert {p.dims.seq_len_q for p, _, _ in drawn} == {1, 2, 3, 4, 8}
    assert any(p.dcp.world > 1 for p, _, _ in drawn)
    assert {p.mask.window_left for p, _, _ in drawn} == {-1, 7, 130}
    assert {p.enable_pdl for p, _, _ in drawn} == {False, True}
    longest = [max(p.seq_lens) * p.dcp.world for p, _, _ in drawn]
    assert 1 <= longest.count(peer_rows.LONG) <= peer_rows.LONG_SHAPES
