"""What a sign-off is told beside judged cases: compilations, and findings where there are any."""

import math
from dataclasses import dataclass, replace

import pytest

from conformance.adapters.optimized import Optimized
from conformance.evidence import compilations, executions, runnable, sanitizers
from conformance.known_limits import load_limits
from conformance.strategies import Choice, covering_array
from reference.problem import Dims, Problem, Recipe
from simulator.checks import CHECKS
from simulator.errors import Deadlock, Location, OutOfBounds, Unsupported
from tests.conformance import cases
from tests.conformance.fake_kernel import FakeKernel

pytestmark = pytest.mark.filterwarnings("ignore")  # the DSL's own, when it compiles
PROBLEM = Problem(Dims(16, 2), "float8_e4m3fn", 64, (130,), softmax_scale=1 / math.sqrt(192))
DRAWN = [(PROBLEM, Recipe(), Choice(0, 1))]


@dataclass(frozen=True)
class Ends(FakeKernel):
    """A kernel whose every run ends with an error."""

    error: Exception | None = None

    def run(self, problem, inputs, options):
        raise self.error or Unsupported("no such instruction")


def found(kernel) -> dict[str, float | None]:
    measured = sanitizers(cases.subject(kernel), DRAWN)
    return {measurement.name: measurement.value for measurement in measured}


def test_a_run_that_ends_well_finds_nothing():
    assert found(FakeKernel()) == dict.fromkeys(CHECKS, 0.0)


@pytest.mark.parametrize(
    ("error", "check"),
    [(OutOfBounds("past the end", Location()), "bounds"), (Deadlock("stuck"), "deadlock")],
)
def test_an_error_is_a_finding_of_its_check(error, check):
    assert found(Ends(error=error)) == dict.fromkeys(CHECKS, 0.0) | {check: 1.0}


def test_what_the_testbed_cannot_run_is_no_evidence():
    with pytest.raises(Unsupported, match="no such instruction"):
        found(Ends())


def test_a_fence_taken_out_of_a_real_kernel_is_found():
    assert found(Optimized()) == dict.fromkeys(CHECKS, 0.0)
    without = Optimized(transform=lambda ptx: ptx.replace("fence.proxy.async.shared::cta;", ""))
    assert found(without)["proxy"] > 0


@pytest.mark.slow
def test_no_check_reports_anything_of_our_kernels():
    subject = cases.subject(Optimized())
    drawn = covering_array("default", subject.kernel)
    measured = list(sanitizers(subject, drawn, most=100))
    assert {one.name: one.value for one in measured} == dict.fromkeys(CHECKS, 0.0)
    assert all(one.detail["runs"] >= 12 for one in measured)  # of two kernels each


def test_each_kernel_of_a_compilation_is_looked_at():
    split, combine = sorted(
        compilations(cases.subject(Optimized()), DRAWN), key=lambda m: "combine" in m.name
    )
    assert combine.name.endswith("combine_splits")
    assert split.detail["registers"] > combine.detail["registers"] > 0
    assert split.detail["local_bytes"] == 0
    assert split.detail["tmem_cols"] == 512
    assert len(split.detail["ptx_sha256"]) == 64


def test_a_problem_that_a_known_limit_stops_is_left_out():
    fp8 = "tokenspeed-mla-2.0.4-fp8"
    subject = replace(cases.subject(FakeKernel()), limits=load_limits(fp8))
    stopped = replace(PROBLEM, page_size=128)
    drawn = [(PROBLEM, Recipe(), Choice(0, 1)), (stopped, Recipe(), Choice(0, 1))]
    assert runnable(subject, drawn) == (drawn[0],)
    assert runnable(cases.subject(FakeKernel()), drawn) == tuple(drawn)


def test_one_problem_is_counted_and_drawn(tmp_path):
    *mixes, drawn = executions(cases.subject(Optimized()), DRAWN, tmp_path)
    assert {mix.topic for mix in mixes} == {"instructions"}
    split = next(mix for mix in mixes if mix.name == "split_kv")
    assert sum(split.detail["classes"].values()) == split.value > 1000
    assert split.detail["mma_flop"]["f8f6f4"] > 0
    assert drawn.topic == "timeline"
    assert "simulated steps, not cycles" in drawn.detail["text"]
    assert (tmp_path / drawn.detail["file"]).read_text().startswith("<svg")


def test_a_kernel_that_is_not_simulated_has_no_executions(tmp_path):
    assert not list(executions(cases.subject(FakeKernel()), DRAWN, tmp_path))
