"""Two versions of a kernel: what differs is found, and what only adds in another order is not."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conformance.difference import difference
from conformance.kernel import Output, UsageError
from conformance.session import make_subject
from conformance.strategies import Choice
from fuzz.baseline import Baseline, Pair, Speed, find_baseline
from fuzz.jobs import SAME_AS_BASELINE, Bench
from fuzz.worker import ROOT, Limits
from reference.problem import Dims, Problem, Recipe
from reports.records import Case
from tests.fuzz.kernels import NAME

PROBLEM = Problem(Dims(3, 1), "bfloat16", 16, (40, 17), 192**-0.5)


def case(kernel: str, problem: Problem = PROBLEM) -> Case:
    subject = make_subject(NAME.format(kernel), "simulator")
    return subject.case(SAME_AS_BASELINE, (problem, Recipe(), Choice(0, 148, 1)))


def output_of(kernel: str) -> Output:
    answer = Bench(NAME.format(kernel), "simulator").output(case(kernel))
    assert answer.output is not None
    return answer.output


def test_equal_versions_are_equal_in_every_bit() -> None:
    bench = Bench(NAME.format("right_everywhere"), "simulator")
    for bitwise in (False, True):
        answer = bench.same_as(case("right_everywhere"), output_of("right_everywhere"), bitwise)
        assert answer.result.verdict == "passed"
        assert answer.result.case.property == SAME_AS_BASELINE


def test_a_bit_that_differs_counts_where_bits_are_asked_for() -> None:
    bench = Bench(NAME.format("other_bits"), "simulator")
    wanted = output_of("right_everywhere")
    assert bench.same_as(case("other_bits"), wanted, False).result.verdict == "passed"
    found = bench.same_as(case("other_bits"), wanted, True).result
    assert found.verdict == "failed"
    assert found.reason == "lse: 1 bytes differ from those of the baseline"


def test_a_wrong_candidate_is_found_by_what_its_own_judge_says() -> None:
    bench = Bench(NAME.format("wrong_if_large"), "simulator")
    found = bench.same_as(case("wrong_if_large"), output_of("right_everywhere"), False).result
    assert found.verdict == "failed"
    assert (found.reason or "").startswith("matches_float64: lse[")


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_outputs_apart_by_more_than_both_bounds_differ(factor: float) -> None:
    """Half the room that both have passes, three times it does not; the ratio says so."""
    algorithm = Bench(NAME.format("right_everywhere"), "simulator").subject.kernel.algorithm
    output = output_of("right_everywhere")
    same = difference(case("right_everywhere"), algorithm, output, output)
    assert same.holds
    assert same.ratio == 0.0
    nudged = output.lse.clone()
    room = 2.0 * _lse_bound(algorithm)
    nudged[1, 0, 2] += factor * room[1, 0, 2]
    found = difference(case("right_everywhere"), algorithm, replace(output, lse=nudged), output)
    assert found.holds == (factor < 1)
    assert found.ratio == pytest.approx(factor, rel=0.1)
    assert found.element == "lse[1, 0, 2]"


def _lse_bound(algorithm) -> torch.Tensor:
    from conformance.tolerance import bounds
    from reference.inputs import make_inputs

    return bounds(PROBLEM, make_inputs(PROBLEM, Recipe(), 0), algorithm).lse


def test_a_nan_in_one_version_alone_differs() -> None:
    algorithm = Bench(NAME.format("right_everywhere"), "simulator").subject.kernel.algorithm
    output = output_of("right_everywhere")
    spoilt = output.out.clone()
    spoilt[0, 0, 0, 5] = float("nan")
    assert not difference(
        case("right_everywhere"), algorithm, replace(output, out=spoilt), output
    ).holds


def test_a_pair_runs_each_version_in_its_own_process() -> None:
    speed = Speed()
    pair = Pair(
        NAME.format("other_bits"), Baseline(NAME.format("right_everywhere")), "simulator",
        Limits(), bitwise=True, on_both=speed.add,
    )  # fmt: skip
    try:
        found = pair.run(case("other_bits")).result
    finally:
        pair.close()
    assert "differ from those of the baseline" in (found.reason or "")
    assert speed.cases == 1
    assert "warp-instructions" in speed.text()


def test_a_revision_is_checked_out_aside_and_imported_before_today(tmp_path: Path) -> None:
    found = find_baseline("HEAD", "optimized")
    assert found.folder is not None
    revision = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert found.folder.name == revision
    shown = subprocess.run(
        ["git", "-C", ROOT, "show", "HEAD:optimized/plan.py"], capture_output=True, check=True
    ).stdout
    assert (found.folder / "optimized" / "plan.py").read_bytes() == shown
    again = find_baseline(str(found.folder), "optimized")
    assert again.folder == found.folder.resolve()


def test_what_is_no_baseline_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"--baseline: 'nowhere' is no folder that holds"):
        find_baseline("nowhere", "optimized")
