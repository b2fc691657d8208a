"""The problems a kernel is judged on: pairwise, always the same, and taken by the kernel."""

import itertools
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings

from conformance.factors import LEVELS, SHAPE_FACTORS, space
from conformance.kernel import Limits, Plan, Support
from conformance.strategies import covering_array, problem_space, problems
from reference.masks import visible_keys
from reference.problem import Problem
from tests.conformance.fake_kernel import FakeKernel

ROOT = Path(__file__).parents[2]
CAREFUL = Limits(
    table_tails=("tile",), layouts=("contiguous", "4-D"), poison=False, empty_rows=False
)


class Planning(FakeKernel):
    """A kernel that splits by the number of SMs, a tile at least for each split."""

    def plan(self, problem: Problem, num_sms: int) -> Plan:
        rows = problem.dims.num_heads * problem.dims.seq_len_q
        tiles = -(-problem.planning_max_seq_len // 128)
        wanted = max(1, num_sms // problem.batch_size // (2 * -(-rows // 128)))
        return Plan(num_splits=min(tiles, wanted), workspace_bytes=0)


class Picky(Planning):
    """Takes neither pages of 16 nor, for 128 heads, pages of 32, and gives the LSE in base 2."""

    def supports(self, problem: Problem) -> Support:
        size = problem.page_size
        if problem.lse_base != 2:
            return Support(False)
        return Support(size != 16 and not (size == 32 and problem.dims.num_heads == 128))


KERNELS = {
    "plain": Planning(),
    "careful": Planning(limits=CAREFUL),
    "picky": Picky(dtypes=("bfloat16", "float16")),
}


def pairs(row):
    return itertools.combinations(sorted(row.items(), key=lambda cell: cell[0]), 2)


@pytest.mark.parametrize(
    ("profile", "kernel"),
    [("deep", KERNELS["careful"]), *(("default", kernel) for kernel in KERNELS.values())],
    ids=("deep-careful", *(f"default-{name}" for name in KERNELS)),
)
def test_all_pairs_that_the_kernel_takes_meet(profile, kernel):
    """Every pair of values of two factors is in a row, or in no shape that the kernel takes."""
    wanted = problem_space(profile, kernel)
    met = {pair for row in wanted.rows() for pair in pairs(row)}
    taken = {
        pair
        for shape in wanted.shapes
        for pair in pairs(dict(zip(SHAPE_FACTORS, shape, strict=True)))
    }
    levels = wanted.levels
    for first, second in itertools.combinations(sorted(levels), 2):
        for pair in itertools.product(levels[first], levels[second]):
            cells = ((first, pair[0]), (second, pair[1]))
            impossible = {first, second} <= set(SHAPE_FACTORS) and cells not in taken
            assert (cells in met) != impossible


def test_without_a_row_some_pair_does_not_meet():
    """The rows are no list of everything: most of them are the only one with some pair."""
    rows = list(problem_space("default", Planning()).rows())
    counts = Counter(pair for row in rows for pair in pairs(row))
    needed = [any(counts[pair] == 1 for pair in pairs(row)) for row in rows]
    assert sum(needed) > 0.9 * len(rows)
    levels = LEVELS["default"]
    lower_limit = len(levels["longest"]) * len(levels["values"])  # the two with most values
    assert len(rows) <= 1.3 * lower_limit


def test_smoke_has_every_value_and_few_rows():
    wanted = problem_space("smoke", KERNELS["careful"])
    rows = list(wanted.rows())
    assert 12 <= len(rows) <= 14
    for factor, values in wanted.levels.items():
        assert {row[factor] for row in rows} == set(values)


@pytest.mark.parametrize(
    ("profile", "fewest", "most_shapes"), [("smoke", 8, 12), ("default", 40, 26), ("deep", 120, 80)]
)
def test_problems_are_distinct_and_share_shapes(profile, fewest, most_shapes):
    drawn = covering_array(profile, KERNELS["careful"])
    assert len({json.dumps(problem.to_json()) for problem, _, _ in drawn}) >= fewest
    rows = problem_space(profile, KERNELS["careful"]).rows()
    assert len({tuple(row[factor] for factor in SHAPE_FACTORS) for row in rows}) <= most_shapes


def test_default_covers_what_a_kernel_must_be_judged_on():
    drawn = covering_array("default", KERNELS["careful"])
    problem_list = [problem for problem, _, _ in drawn]
    assert {p.batch_size for p in problem_list} == {1, 2, 3, 4}
    shapes = {(p.dims.num_heads, p.dims.seq_len_q) for p in problem_list}
    assert shapes >= {(128, 1), (64, 2), (16, 4)}
    assert {p.page_size for p in problem_list} == {16, 32, 64, 128}
    lengths = {length for p in problem_list for length in p.seq_lens}
    assert lengths >= {1, 127, 128, 129, 255, 256, 257, 640, 700, 63, 65, 17, 33}
    assert {recipe.page_order for _, recipe, _ in drawn} == {"random"}
    assert {p.mask.window_left for p in problem_list} == {-1, 0, 7, 200}
    assert {p.lse_base for p in problem_list} == {2, "e"}
    assert {recipe.layout for _, recipe, _ in drawn} == {"contiguous", "4-D"}
    assert any(windows_cross_a_tile(problem) for problem in problem_list)
    splits = {Planning().plan(p, choice.num_sms).num_splits for p, _, choice in drawn}
    assert splits >= {1, 2, 3, 8}
    assert len({choice.seed for _, _, choice in drawn}) == len(drawn)


def windows_cross_a_tile(problem: Problem) -> bool:
    """Whether the first token sees the second tile of 128 keys whole, and the last one does not.

    So a mask is needed at its beginning alone.
    """
    tokens, window = problem.dims.seq_len_q, problem.mask.window_left
    return window >= 0 and any(
        keys - tokens - window <= 128 < keys - window - 1 and keys - tokens >= 256
        for keys in problem.seq_lens
    )


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("profile", ["smoke", "default"])
def test_the_array_keeps_to_what_the_kernel_takes(profile, kernel):
    for drawn in covering_array(profile, kernel):
        check_taken(kernel, *drawn)


def check_taken(kernel, problem, recipe, choice):
    assert kernel.supports(problem).ok
    assert recipe.table_tail in kernel.limits.table_tails
    assert kernel.limits.poison or not recipe.poison
    assert recipe.layout in kernel.limits.layouts
    assert 1 <= choice.num_sms <= 148
    assert choice.num_splits is None
    if not kernel.limits.empty_rows:
        for request in range(problem.batch_size):
            assert bool(visible_keys(problem, request).any(1).all())


def test_rows_without_a_key_are_drawn_only_for_kernels_that_cope():
    shortest = {
        name: min(min(problem.seq_lens) for problem, _, _ in covering_array("default", kernel))
        for name, kernel in KERNELS.items()
    }
    assert shortest == {"plain": 0, "careful": 1, "picky": 0}


def test_the_array_is_the_same_in_every_process():
    """Also where Python hashes strings in another way, so that sets have another order."""
    code = (
        "from conformance.strategies import covering_array\n"
        "from tests.conformance.test_strategies import KERNELS\n"
        "print(covering_array('default', KERNELS['careful']))"
    )
    there = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, env={"PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)},
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert there == f"{covering_array('default', KERNELS['careful'])}\n"


def test_an_unknown_profile_and_a_kernel_that_takes_nothing_are_refused():
    with pytest.raises(ValueError, match="'wide' is none of smoke, default, deep"):
        covering_array("wide", Planning())
    with pytest.raises(ValueError, match="none of the shapes of 'smoke' is taken"):
        space("smoke", {}, lambda row: False)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_random_problems_keep_to_what_the_kernel_takes(kernel):
    seen = []

    @settings(max_examples=60, deadline=None, suppress_health_check=tuple(HealthCheck))
    @given(problems(kernel))
    def run(drawn):
        check_taken(kernel, *drawn)
        seen.append(drawn[0])

    run()
    assert len({json.dumps(problem.to_json()) for problem in seen}) > 40


def smallest(condition):
    quiet = settings(
        max_examples=2000, deadline=None, database=None, phases=(Phase.generate, Phase.shrink)
    )
    return find(problems(KERNELS["careful"]), condition, settings=quiet)


def test_everything_shrinks_to_the_simplest_problem():
    problem, recipe, choice = smallest(lambda drawn: True)
    assert (problem.dims.num_heads, problem.dims.seq_len_q) == (1, 1)
    assert problem.seq_lens == (1,)
    assert problem.max_seq_len is None
    assert Planning().plan(problem, choice.num_sms).num_splits == 1
    assert choice.seed == 0
    assert recipe == replace(recipe, magnitude=1.0, table_tail="tile", spare_pages=0, poison=False)


def test_a_failure_shrinks_to_what_it_needs():
    """One that needs two requests, more than a tile of keys and two splits keeps just those."""

    def fails(drawn):
        problem, _, choice = drawn
        splits = Planning().plan(problem, choice.num_sms).num_splits
        return problem.batch_size >= 2 and max(problem.seq_lens) > 128 and splits == 2

    problem, _, choice = smallest(fails)
    assert problem.seq_lens in ((1, 129), (129, 1))
    assert problem.dims.num_heads == 1
    assert choice.seed == 0
