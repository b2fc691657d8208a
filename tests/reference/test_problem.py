"""Problems and recipes: JSON and back, and what is refused with which words."""

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.problem import Dcp, Dims, Mask, Problem, Recipe
from tests.reference import tiny

DIMS = Dims(num_heads=16, seq_len_q=2)
PLAIN = Problem(dims=DIMS, dtype="float16", page_size=32, seq_lens=(5, 0, 700), softmax_scale=0.125)
SHARED = dataclasses.replace(PLAIN, dcp=Dcp(4, 3, 2, (9, 9, 9)), max_seq_len=4096)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def through_text(data: dict[str, Any]) -> Any:
    return json.loads(json.dumps(data, allow_nan=False))


@settings(deadline=None)
@given(problem=tiny.problems(), softmax_scale=FINITE.map(abs), output_scale=FINITE)
def test_problem_returns_from_json(
    problem: Problem, softmax_scale: float, output_scale: float
) -> None:
    problem = dataclasses.replace(problem, softmax_scale=softmax_scale, output_scale=output_scale)
    data = problem.to_json()
    assert Problem.from_json(through_text(data)) == problem
    assert through_text(data) == data
    back = Problem.from_json(through_text(data))
    assert back.softmax_scale.hex() == softmax_scale.hex()
    assert back.output_scale.hex() == output_scale.hex()  # == would not see the sign of zero


@settings(deadline=None)
@given(recipe=tiny.RECIPES)
def test_recipe_returns_from_json(recipe: Recipe) -> None:
    assert Recipe.from_json(through_text(recipe.to_json())) == recipe


def test_equal_problems_are_written_alike() -> None:
    whole_number = dataclasses.replace(PLAIN, softmax_scale=1, output_scale=-2)
    fraction = dataclasses.replace(PLAIN, softmax_scale=1.0, output_scale=-2.0)
    assert whole_number == fraction
    assert json.dumps(whole_number.to_json()) == json.dumps(fraction.to_json())


def test_derived_values() -> None:
    assert DIMS.qk_head_dim == 576
    assert PLAIN.batch_size == 3
    assert PLAIN.planning_max_seq_len == 700
    assert SHARED.planning_max_seq_len == 4096
    assert dataclasses.replace(PLAIN, seq_lens=()).planning_max_seq_len == 1
    assert dataclasses.replace(PLAIN, seq_lens=(0,)).planning_max_seq_len == 1
    assert [PLAIN.context_len(request) for request in range(3)] == [5, 0, 700]
    assert SHARED.context_len(1) == 9
    outputs = [
        dataclasses.replace(PLAIN, dtype=dtype).output_dtype
        for dtype in ("float16", "bfloat16", "float8_e4m3fn")
    ]
    assert outputs == ["float16", "bfloat16", "bfloat16"]


REFUSED_VALUES: list[tuple[Any, dict[str, Any], str]] = [
    (DIMS, {"num_heads": 0}, "num_heads must be in [1, 128], got 0"),
    (DIMS, {"num_heads": 129}, "num_heads must be in [1, 128], got 129"),
    (DIMS, {"seq_len_q": 0}, "seq_len_q must be in [1, 2147483647], got 0"),
    (DIMS, {"kv_lora_rank": 0}, "kv_lora_rank must be in [1, 2147483647], got 0"),
    (DIMS, {"qk_rope_head_dim": -1}, "qk_rope_head_dim must be in [1, 2147483647], got -1"),
    (Mask(), {"window_left": -2}, "window_left must be in [-1, 2147483647], got -2"),
    (Dcp(), {"world": 0}, "cp_world must be in [1, 2147483647], got 0"),
    (Dcp(), {"world": 2}, "cp_world must be 1 without causal_seqs, got 2"),
    (Dcp(), {"rank": 1}, "cp_rank must be in [0, 0], got 1"),
    (SHARED.dcp, {"rank": 4}, "cp_rank must be in [0, 3], got 4"),
    (SHARED.dcp, {"rank": -1}, "cp_rank must be in [0, 3], got -1"),
    (Dcp(), {"interleave_size": 0}, "cp_interleave_size must be in [1, 2147483647], got 0"),
    (Dcp(), {"causal_seqs": (3, -1)}, "causal_seqs[1] must be in [0, 2147483647], got -1"),
    (PLAIN, {"dtype": "float32"}, "dtype must be one of ('float16', 'bfloat16', 'float8_e4m3fn')"),
    (PLAIN, {"page_size": 1}, "page_size must be one of (2, 4, 8, 16, 32, 64, 128), got 1"),
    (PLAIN, {"page_size": 48}, "page_size must be one of (2, 4, 8, 16, 32, 64, 128), got 48"),
    (PLAIN, {"lse_base": 10}, "lse_base must be one of (2, 'e'), got 10"),
    (PLAIN, {"lse_base": "2"}, "lse_base must be one of (2, 'e'), got '2'"),
    (PLAIN, {"seq_lens": (1, 2**31)}, "seq_lens[1] must be in [0, 2147483647], got 2147483648"),
    (PLAIN, {"softmax_scale": -0.5}, "softmax_scale must be finite and at least 0.0, got -0.5"),
    (PLAIN, {"softmax_scale": math.nan}, "softmax_scale must be finite and at least 0.0, got nan"),
    (PLAIN, {"output_scale": math.inf}, "output_scale must be finite, got inf"),
    (PLAIN, {"max_seq_len": 0}, "max_seq_len must be in [700, 2147483647], got 0"),
    (PLAIN, {"max_seq_len": 699}, "max_seq_len must be in [700, 2147483647], got 699"),
    (PLAIN, {"dcp": Dcp(causal_seqs=(1,))}, "causal_seqs must have one entry per request, 3, got"),
    (Recipe(), {"magnitude": -1.0}, "magnitude must be finite and at least 0.0, got -1.0"),
    (
        Recipe(),
        {"page_order": "up"},
        "page_order must be one of ('random', 'identity', 'reversed')",
    ),
    (Recipe(), {"table_tail": "no"}, "table_tail must be one of ('minimal', 'tile', 'wild')"),
    (Recipe(), {"spare_pages": -1}, "spare_pages must be in [0, 2147483647], got -1"),
]


@pytest.mark.parametrize(("record", "change", "message"), REFUSED_VALUES)
def test_value_outside_its_limit_is_refused(
    record: Any, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        dataclasses.replace(record, **change)
    assert message in str(caught.value)


REFUSED_TYPES: list[tuple[Any, dict[str, Any], str]] = [
    (DIMS, {"num_heads": True}, "num_heads must be an int, got True"),
    (DIMS, {"num_heads": 16.0}, "num_heads must be an int, got 16.0"),
    (Mask(), {"causal": 1}, "causal_mask must be a bool, got 1"),
    (Dcp(), {"causal_seqs": [1]}, "causal_seqs must be a tuple of int, got [1]"),
    (PLAIN, {"dims": (16, 2)}, "dims must be a Dims, got (16, 2)"),
    (PLAIN, {"mask": None}, "mask must be a Mask, got None"),
    (PLAIN, {"seq_lens": [5, 0]}, "seq_lens must be a tuple of int, got [5, 0]"),
    (PLAIN, {"seq_lens": (5, 0.0)}, "seq_lens[1] must be an int, got 0.0"),
    (PLAIN, {"softmax_scale": "1"}, "softmax_scale must be a float, got '1'"),
    (PLAIN, {"softmax_scale": True}, "softmax_scale must be a float, got True"),
    (PLAIN, {"output_scale": 10**400}, "output_scale must be a float, got 1000"),
    (PLAIN, {"enable_pdl": 0}, "enable_pdl must be a bool, got 0"),
    (PLAIN, {"max_seq_len": 700.0}, "max_seq_len must be an int, got 700.0"),
    (Recipe(), {"values": 3}, "values must be the name of a value generator, got 3"),
    (Recipe(), {"poison": "yes"}, "poison must be a bool, got 'yes'"),
]


@pytest.mark.parametrize(("record", "change", "message"), REFUSED_TYPES)
def test_value_of_the_wrong_type_is_refused(
    record: Any, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError) as caught:
        dataclasses.replace(record, **change)
    assert message in str(caught.value)


def edited(path: str, value: Any) -> dict[str, Any]:
    """SHARED as JSON with the key at a dotted path replaced, or dropped for the value `del`."""
    data = SHARED.to_json()
    *parents, last = path.split(".")
    place = data
    for name in parents:
        place = place[name]
    if value is del_:
        del place[last]
    else:
        place[last] = value
    return data


del_ = object()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "problem must be an object with the keys ['dims', 'dtype',"),
        (edited("dims", 3), "problem.dims must be an object with the keys ['num_heads',"),
        (edited("colour", 1), "problem has the unknown key 'colour'"),
        (edited("dims.depth", 1), "problem.dims has the unknown key 'depth'"),
        (edited("mask.causal", del_), "problem.mask lacks the key 'causal'"),
        (edited("output_scale", del_), "problem lacks the key 'output_scale'"),
        (edited("seq_lens", 5), "problem.seq_lens must be a list of int, got 5"),
        (edited("seq_lens", [5, "6"]), "problem: seq_lens[1] must be an int, got '6'"),
        (edited("dcp.causal_seqs", {}), "problem.dcp.causal_seqs must be a list of int, got {}"),
        (edited("dcp.rank", 9), "problem.dcp: cp_rank must be in [0, 3], got 9"),
        (edited("dims.num_heads", 0), "problem.dims: num_heads must be in [1, 128], got 0"),
        (edited("softmax_scale", math.nan), "problem: softmax_scale must be finite and at least"),
        (edited("lse_base", 2.0), "problem: lse_base must be one of (2, 'e'), got 2.0"),
    ],
)
def test_malformed_json_is_refused(data: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        Problem.from_json(data)
    assert message in str(caught.value)


def test_malformed_recipe_is_refused() -> None:
    with pytest.raises(ValueError, match="recipe lacks the key 'magnitude'"):
        Recipe.from_json({"values": "normal"})
    with pytest.raises(ValueError, match="recipe: poison must be a bool, got 1"):
        Recipe.from_json(Recipe().to_json() | {"poison": 1})
