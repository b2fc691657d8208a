"""Visibility equals plain loops, and the closed forms that kernels use equal it."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.masks import position, visible, visible_keys
from reference.problem import Dcp, Dims, Mask, Problem
from tests.reference import tiny

ONE_RANK = Dcp()


def call(seq_len: int, seq_len_q: int, mask: Mask, dcp: Dcp = ONE_RANK) -> Problem:
    return Problem(
        dims=Dims(1, seq_len_q, 1, 1),
        dtype="float16",
        page_size=2,
        seq_lens=(seq_len,),
        softmax_scale=1.0,
        mask=mask,
        dcp=dcp,
    )


@st.composite
def single_requests(draw: st.DrawFn) -> Problem:
    dcp = draw(tiny.dcps(batch=1))
    return call(draw(st.integers(0, 20)), draw(st.integers(1, 6)), draw(tiny.MASKS), dcp)


@settings(deadline=None)
@given(problem=tiny.problems())
def test_one_key_at_a_time_equals_loops(problem: Problem) -> None:
    for request, seq_len in enumerate(problem.seq_lens):
        for token in range(problem.dims.seq_len_q):
            for key in range(seq_len + 2):  # past the end too
                assert visible(problem, request, token, key) == tiny.loop_visible(
                    problem, request, token, key
                )


@settings(deadline=None)
@given(problem=single_requests())
def test_the_table_equals_one_key_at_a_time(problem: Problem) -> None:
    expected = [
        [visible(problem, 0, token, key) for key in range(problem.seq_lens[0])]
        for token in range(problem.dims.seq_len_q)
    ]
    assert visible_keys(problem, 0).tolist() == expected


def closed_form_bound(problem: Problem, token: int) -> int:
    """The first local key at or past the token's end, as the contract states it for kernels."""
    world, rank, size = problem.dcp.world, problem.dcp.rank, problem.dcp.interleave_size
    end = problem.context_len(0)
    if problem.mask.causal:
        end = end - problem.dims.seq_len_q + 1 + token
    if size == 1:
        bound = math.ceil((end - rank) / world)
    else:
        rounds = math.floor(end / (world * size))
        offset = end - rounds * world * size - rank * size
        bound = rounds * size + min(max(offset, 0), size)
    return min(max(bound, 0), problem.seq_lens[0])


@settings(max_examples=500, deadline=None)
@given(problem=single_requests())
def test_closed_forms_equal_the_definition(problem: Problem) -> None:
    unbounded_left = call(
        problem.seq_lens[0],
        problem.dims.seq_len_q,
        Mask(problem.mask.causal),
        problem.dcp,
    )
    for token, seen in enumerate(visible_keys(unbounded_left, 0).tolist()):
        bound = closed_form_bound(unbounded_left, token)
        assert seen == [key < bound for key in range(len(seen))]


@pytest.mark.parametrize("length", range(12))
def test_position_is_a_bijection_over_the_ranks(length: int) -> None:
    for world in range(1, 5):
        for size in range(1, 5):
            positions = [
                position(Dcp(world, rank, size, (0,)), key)
                for rank in range(world)
                for key in range(length * size)
            ]
            assert sorted(positions) == list(range(world * length * size))


def spans(problem: Problem) -> list[tuple[int, int]]:
    """First visible key and their number, for each token."""
    table = visible_keys(problem, 0).tolist()
    return [(row.index(True) if any(row) else 0, sum(row)) for row in table]


def test_known_spans() -> None:
    assert spans(call(5, 3, Mask())) == [(0, 3), (0, 4), (0, 5)]
    assert spans(call(5, 3, Mask(causal=False))) == [(0, 5), (0, 5), (0, 5)]
    assert spans(call(2, 4, Mask())) == [(0, 0), (0, 0), (0, 1), (0, 2)]
    assert spans(call(0, 2, Mask())) == [(0, 0), (0, 0)]
    # A window of 1 is the token's own position and the one before it.
    assert spans(call(5, 3, Mask(window_left=1))) == [(1, 2), (2, 2), (3, 2)]
    # Without the causal mask the window bounds the left alone.
    assert spans(call(5, 3, Mask(causal=False, window_left=1))) == [(1, 4), (2, 3), (3, 2)]
    # Rank 1 of 2 holds the odd positions 1, 3, 5 of a context of 6.
    odd = Dcp(2, 1, 1, causal_seqs=(6,))
    assert spans(call(3, 2, Mask(), odd)) == [(0, 2), (0, 3)]
    # A cache that holds more than the rank's share shows no more than the context.
    assert spans(call(9, 2, Mask(), odd)) == [(0, 2), (0, 3)]
    # One rank honours the context length it is given.
    assert spans(call(9, 2, Mask(), Dcp(causal_seqs=(6,)))) == [(0, 5), (0, 6)]
