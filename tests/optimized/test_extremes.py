"""Integers at the ends of their ranges: what the contract allows must not wrap in the kernel.

Lengths are small throughout, so that every product and difference with a large number is the
kernel's own.
"""

from __future__ import annotations

from itertools import cycle

import pytest

from conformance.kernel import RunOptions
from optimized import api, plan, validate
from optimized.plan import largest_interleave, supports
from reference.dcp import owned_positions
from reference.problem import INT32_MAX, Dcp, Mask, Problem
from tests.optimized.judging import judge, problem

CONTEXTS = (2, 130)  # one shorter than the tokens
TOKENS = 4
WINDOWS = (INT32_MAX, INT32_MAX - TOKENS, 3)
MASKS = [Mask(causal, window) for window in WINDOWS for causal in (False, True)]
RANKS = [
    (world, rank, interleave)
    for world in (2, 8, INT32_MAX)
    for interleave in sorted({1, largest_interleave(world)})
    for rank in (0, world - 1)
]
pytestmark = pytest.mark.filterwarnings("ignore")  # the DSL's own, when it compiles


def share(dcp: Dcp, mask: Mask, max_seq_len: int | None = None) -> Problem:
    """What a rank holds of `CONTEXTS`."""
    lengths = tuple(len(owned_positions(keys, dcp)) for keys in CONTEXTS)
    fields = {"dcp": dcp, "mask": mask, "max_seq_len": max_seq_len}
    return problem("float8_e4m3fn", 8, TOKENS, lengths, **fields)


@pytest.mark.parametrize("mask", MASKS)
def test_a_wide_window_is_no_window(mask: Mask) -> None:
    judge(share(Dcp(), mask), RunOptions(num_splits=1))


@pytest.mark.parametrize(("rank", "mask"), [*zip(RANKS, cycle(MASKS), strict=False)])
def test_large_worlds_and_interleaves_deal_keys_as_small_ones_do(
    rank: tuple[int, int, int], mask: Mask
) -> None:
    judge(share(Dcp(*rank, CONTEXTS), mask), RunOptions(num_splits=1))


def test_the_largest_bound_of_the_lengths_gives_the_same_answer() -> None:
    judge(share(Dcp(), Mask(causal=True), INT32_MAX))


def test_the_widest_window_would_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "INT32_MAX", 2**40)  # passes every window on as it is
    with pytest.raises(AssertionError, match="matches_float64"):
        judge(share(Dcp(), Mask(True, INT32_MAX)), RunOptions(num_splits=1))


def test_a_wider_interleave_would_wrap_and_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = share(Dcp(4, 0, 2**30, CONTEXTS), Mask())
    answer = supports(case)
    assert answer.reason == "cp_interleave_size must be in [1, 536870911], got 1073741824"
    for module in (plan, validate):
        monkeypatch.setattr(module, "largest_interleave", lambda world: INT32_MAX)
    assert supports(case).ok
    with pytest.raises(AssertionError, match="matches_float64"):
        judge(case, RunOptions(num_splits=1))
