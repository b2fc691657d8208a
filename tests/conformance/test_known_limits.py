"""Known limits as data: what they explain, and what the loader refuses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.kernel import REPOSITORY_KERNELS, UsageError, load_kernel
from conformance.known_limits import FOLDER, KnownLimit, expected, facts, load_limits
from conformance.properties import PROPERTY_NAMES
from conformance.replay import find_case
from reference.problem import Dcp, Dims, Problem, Recipe
from reports.records import Case, CaseResult

PROBLEM = Problem(Dims(16, 4), "float8_e4m3fn", 64, (0, 2, 300), 0.1)
CASE = Case(
    kernel="some-kernel",
    engine="simulator",
    arch="sm_100a",
    property="matches_float64",
    problem=PROBLEM.to_json(),
    recipe=Recipe().to_json(),
    seed=0,
    policy="fair",
    policy_seed=0,
    checks=("bounds",),
    num_sms=148,
    num_splits=None,
)
TOML = f"""
[[limit]]
id = "a-limit"
reason = "because"
properties = ["matches_float64"]
when = {{ masked_rows = {{ min = 1 }} }}
example = '{json.dumps(CASE.to_json())}'
"""


def limit(when: dict[str, object], strict: bool = True) -> KnownLimit:
    return KnownLimit("a-limit", "because", ("matches_float64",), when, CASE, strict)


def test_facts_of_a_run() -> None:
    case = replace(CASE, recipe=Recipe(poison=True).to_json(), policy="late")
    run = facts(case, num_splits=8)
    expected = {
        "num_heads": 16,
        "seq_len_q": 4,
        "dtype": "float8_e4m3fn",
        "causal": True,
        "poison": True,
        "table_tail": "tile",
        "num_splits": 8,
        "busy_splits": 3,
        "batch_size": 3,
        "shortest": 0,
        "longest": 300,
        "empty_requests": 1,
        "masked_rows": 2,
        "partial_pages": 2,
        "partial_tiles": 2,
        "keys_past_context": 0,
        "rows": 64,
        "policy": "late",
    }
    assert {name: run[name] for name in expected} == expected


def test_keys_past_the_context_are_counted() -> None:
    dcp = Dcp(world=2, rank=1, causal_seqs=(6, 9))  # positions 1, 3, 5, ...
    problem = Problem(Dims(16, 1), "float8_e4m3fn", 64, (4, 4), 0.1, dcp=dcp)
    run = facts(replace(CASE, problem=problem.to_json()), num_splits=1)
    assert run["keys_past_context"] == 1
    assert run["world"] == 2


@pytest.mark.parametrize(
    ("when", "concerns"),
    [
        ({}, True),
        ({"num_splits": 1}, True),
        ({"num_splits": 2}, False),
        ({"num_heads": [8, 16]}, True),
        ({"num_heads": [8, 32]}, False),
        ({"longest": {"min": 300}}, True),
        ({"longest": {"min": 301}}, False),
        ({"longest": {"max": 299}}, False),
        ({"longest": {"min": 300, "max": 300}, "dtype": "float8_e4m3fn"}, True),
        ({"longest": {"min": 300, "max": 300}, "dtype": "bfloat16"}, False),
    ],
)
def test_every_condition_must_hold(when: dict[str, object], concerns: bool) -> None:
    run = facts(CASE, num_splits=1)
    assert limit(when).concerns("matches_float64", run) is concerns
    assert not limit(when).concerns("inputs_unchanged", run)


def result(verdict: str, error_class: str | None = None) -> CaseResult:
    return CaseResult(CASE, verdict, error_class=error_class, reason="as it is")


@pytest.mark.parametrize(
    ("declared", "before", "after"),
    [
        (None, result("failed"), "expected_failure"),
        (None, result("failed", "Deadlock"), "expected_failure"),
        (None, result("error", "Unsupported"), "error"),
        (None, result("skipped"), "skipped"),
        ("Deadlock", result("failed", "Deadlock"), "expected_failure"),
        ("Deadlock", result("failed", "OutOfBounds"), "failed"),
        ("Deadlock", result("failed"), "failed"),
        ("CompilerError", result("error", "CompilerError"), "expected_failure"),
        ("CompilerError", result("error", "Unsupported"), "error"),
    ],
)
def test_what_a_limit_excuses(declared: str | None, before: CaseResult, after: str) -> None:
    entry = replace(limit({}), error_class=declared)
    seen = expected(before, [entry], facts(CASE, num_splits=1))
    assert seen.verdict == after
    said = "known limit a-limit: because" if after == "expected_failure" else "as it is"
    assert seen.reason == said


def test_a_pass_is_unexpected_where_a_strict_limit_says_failure() -> None:
    run = facts(CASE, num_splits=1)
    lenient, strict = limit({}, strict=False), limit({}, strict=True)
    assert expected(result("passed"), [lenient, strict], run).verdict == "unexpected_pass"
    assert expected(result("passed"), [lenient], run).verdict == "passed"
    assert expected(result("passed"), [limit({"num_splits": 2})], run).verdict == "passed"
    assert expected(result("failed"), [limit({"num_splits": 2})], run).verdict == "failed"


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "some-kernel.toml").write_text(TOML)
    assert load_limits("some-kernel", tmp_path) == (limit({"masked_rows": {"min": 1}}),)
    assert load_limits("another-kernel", tmp_path) == ()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[[limit]]", "[limit", "not a file of"),
        ("[[limit]]", "[[limits]]", "not a file of"),
        ('reason = "because"', "", "limit 1: reason: missing key"),
        ("reason", "raisin", "limit 1: raisin: unknown key"),
        ('"because"', "3", "limit 1: reason: 3 is not of type str"),
        ('["matches_float64"]', '"matches_float64"', "limit 1: properties: 'matches_float64' is"),
        ('["matches_float64"]', '["is_nice"]', "limit 1: properties: 'is_nice' is none of"),
        ("masked_rows", "masked_cows", "limit 1: when: 'masked_cows' is no fact, known are"),
        ("min = 1", "least = 1", "limit 1: when: masked_rows: .* has keys other than min and max"),
        ('"some-kernel"', '"other"', "limit 1: example: its kernel is 'other'"),
        ('"seed"', '"sead"', "limit 1: sead: unknown key"),
        ('"num_heads": 16', '"num_heads": 0', r"limit 1: problem.dims: num_heads must be in \[1"),
    ],
)
def test_a_malformed_file_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "some-kernel.toml"
    path.write_text(TOML.replace(old, new))
    with pytest.raises(UsageError, match=f"^{path}: {message}"):
        load_limits("some-kernel", tmp_path)


def test_every_shipped_file_belongs_to_a_kernel_and_is_well_formed() -> None:
    names = [path.stem for path in FOLDER.glob("*.toml")]
    assert set(names) <= set(REPOSITORY_KERNELS)
    for name in names:
        limits = load_limits(name)
        assert limits
        assert len({entry.id for entry in limits}) == len(limits)
        for entry in limits:
            assert entry.reason
            assert set(entry.properties) <= set(PROPERTY_NAMES)
            case = find_case(json.dumps(entry.example.to_json()), Path("nowhere"))
            assert case.property in entry.properties
            assert load_kernel(name).supports(Problem.from_json(case.problem)).ok
