"""The whole range of the contract: all pairs meet, and every row is a problem of its own."""

import itertools
from collections import Counter

from conformance import matrix
from conformance.strategies import covering_array
from optimized.plan import specialisation_key
from reference.inputs import make_inputs
from reference.paging import gather
from reference.problem import Problem
from tests.conformance.fake_kernel import FakeKernel


def test_all_pairs_of_values_meet():
    met = {
        pair
        for row in matrix.rows()
        for pair in itertools.combinations([(factor, row[factor]) for factor in matrix.LEVELS], 2)
    }
    for first, second in itertools.combinations(matrix.LEVELS, 2):
        for values in itertools.product(matrix.LEVELS[first], matrix.LEVELS[second]):
            assert ((first, values[0]), (second, values[1])) in met


def test_two_thousand_distinct_problems_need_few_compilations():
    problems = {matrix.problem(row, seed) for seed, row in enumerate(matrix.rows())}
    assert len(problems) >= 2000
    assert len({specialisation_key(problem) for problem in problems}) <= 150


def test_every_degenerate_kind_occurs():
    drawn = covering_array("matrix", FakeKernel())
    kinds = Counter[str]()
    for problem, recipe, choice in drawn:
        kinds["no key in a request"] += 0 in problem.seq_lens
        kinds["no key in any request"] += not any(problem.seq_lens)
        kinds["fewer keys than tokens"] += min(problem.seq_lens) < problem.dims.seq_len_q
        kinds["unlike lengths"] += len(set(problem.seq_lens)) > 1
        kinds["more splits than tiles"] += (choice.num_splits or 0) * 128 > max(problem.seq_lens)
        kinds["a rank without keys"] += problem.dcp.world > 1 and 0 in problem.seq_lens
        kinds["poison"] += recipe.poison
        kinds["minimal tables"] += recipe.table_tail == "minimal"
        kinds["race check"] += "races" in choice.checks
    assert len(kinds) == 9
    assert min(kinds.values()) >= 15


def test_a_layout_changes_strides_and_no_value():
    problem, recipe, choice = next(
        drawn
        for drawn in covering_array("matrix", FakeKernel())
        if drawn[1].layout == "gapped" and drawn[0].batch_size > 1 and max(drawn[0].seq_lens) > 200
    )
    plain = make_inputs(problem, with_layout(recipe, "contiguous"), choice.seed)
    for layout in ("strided", "gapped", "4-D"):
        other = make_inputs(problem, with_layout(recipe, layout), choice.seed)
        assert equal_values(plain.query, other.query)
        assert (plain.block_tables == other.block_tables).all()
        for request, keys in enumerate(problem.seq_lens):
            row = plain.block_tables[request]
            assert equal_values(
                gather(plain.kv_cache, row, keys), gather(other.kv_cache, row, keys)
            )
        assert other.query.is_contiguous() == (layout == "4-D")
        assert (other.kv_cache.dim() == 4) == (layout == "4-D")
        heads = problem.dims.num_heads
        token_major = other.query.stride(1) == heads * other.query.stride(2)
        assert token_major == (layout != "gapped")


def with_layout(recipe, layout):
    return type(recipe).from_json(recipe.to_json() | {"layout": layout})


def equal_values(first, second):
    return bool(((first.double() == second.double()) | first.isnan() & second.isnan()).all())


def test_rows_are_always_the_same():
    first = matrix.problem(matrix.rows()[0], 0)
    matrix.rows.cache_clear()
    assert matrix.problem(matrix.rows()[0], 0) == first
    assert Problem.from_json(first.to_json()) == first
