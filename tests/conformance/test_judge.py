"""The judge, both ways: a right kernel passes, and each fault fails the property that it breaks."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from conformance.judge import Judge
from conformance.kernel import Output, UsageError
from conformance.known_limits import KnownLimit
from conformance.properties import PROPERTY_NAMES
from reference.inputs import Inputs
from reference.problem import Problem
from reports.records import CaseResult
from simulator.errors import Deadlock, SimulationError, SimulatorBug, Unsupported
from tests.conformance import cases, fake_kernel

ORACLES = {"matches_float64", "matches_emulation"}
LENGTHS = ((3,), (40, 129), (1, 33, 64))


def verdicts(
    kernel: fake_kernel.FakeKernel, *seq_lens: int, limits: tuple[KnownLimit, ...] = ()
) -> dict[str, CaseResult]:
    """The result for each property of one run."""
    results: list[CaseResult] = []
    Judge(results.append).judge(cases.subject(kernel, *limits), cases.case(*seq_lens))
    return {result.case.property: result for result in results}


@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_right_kernel_has_every_property(lengths: tuple[int, ...]) -> None:
    results = verdicts(fake_kernel.healthy(), *lengths)
    assert tuple(results) == PROPERTY_NAMES
    assert {result.verdict for result in results.values()} == {"passed"}
    ratio = results["matches_float64"].ratio
    assert ratio is not None
    assert 0 < ratio < 1


FAULTS = [
    (fake_kernel.zero_output, "matches_float64"),
    (fake_kernel.key_fewer, "matches_float64"),
    (fake_kernel.key_more, "matches_float64"),
    (fake_kernel.natural_lse, "matches_float64"),
    (fake_kernel.output_off, "matches_emulation"),
    (fake_kernel.unwritten_head, "every_element_written"),
    (fake_kernel.modified_input, "inputs_unchanged"),
    (fake_kernel.raises, "completes"),
]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("fault", "property_name"), FAULTS)
def test_a_fault_fails_the_property_that_it_breaks(
    fault: Callable[[], fake_kernel.FakeKernel], property_name: str, lengths: tuple[int, ...]
) -> None:
    results = verdicts(fault(), *lengths)
    failed = {name for name, result in results.items() if result.is_bad}
    # An element that nobody wrote is a NaN, which is wrong as a value too.
    assert failed - ORACLES == {property_name} - ORACLES
    assert property_name in failed
    assert results[property_name].reason


def test_the_emulation_sees_what_the_exact_bound_must_admit() -> None:
    results = verdicts(fake_kernel.output_off(), 640, 513)
    failed = {name for name, result in results.items() if result.is_bad}
    assert failed == {"matches_emulation"}


def test_what_is_wrong_is_named() -> None:
    unwritten = verdicts(fake_kernel.unwritten_head(), 3, 5)["every_element_written"]
    assert unwritten.element == "out[1, 0, 7, 0]"
    assert unwritten.reason == "out[1, 0, 7, 0] and 511 other elements not written"
    modified = verdicts(fake_kernel.modified_input(), 3, 5)["inputs_unchanged"]
    assert modified.element == "seq_lens[0]"
    zero = verdicts(fake_kernel.zero_output(), 3)["matches_float64"]
    assert zero.element is not None
    assert zero.element.startswith("out[0, 0, ")


def test_a_run_that_does_not_end_well_says_where() -> None:
    results = verdicts(fake_kernel.raises(), 3)
    ended = results.pop("completes")
    assert (ended.verdict, ended.error_class, ended.ptx_line) == ("failed", "OutOfBounds", 17)
    assert {result.verdict for result in results.values()} == {"skipped"}


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (Deadlock("all wait"), "failed"),
        (Unsupported("an opcode"), "error"),
        (SimulatorBug("this cannot be"), "error"),
        (ZeroDivisionError("in a wrapper"), "error"),
        (UsageError("num_splits: 3: this kernel takes none"), "skipped"),
    ],
)
def test_who_is_to_blame_for_an_error(error: Exception, verdict: str) -> None:
    def compute(problem: Problem, inputs: Inputs) -> Output:
        raise error

    result = verdicts(fake_kernel.FakeKernel(compute), 3)["completes"]
    assert result.verdict == verdict
    assert result.reason is not None
    assert str(error).splitlines()[0] in result.reason
    if isinstance(error, SimulationError):
        assert result.error_class == type(error).__name__


def test_an_output_of_another_shape_is_an_error_of_the_property() -> None:
    def compute(problem: Problem, inputs: Inputs) -> Output:
        output = fake_kernel.right(problem, inputs)
        return replace(output, lse=output.lse[0])

    results = verdicts(fake_kernel.FakeKernel(compute), 3)
    assert results["matches_float64"].verdict == "error"
    assert results["matches_float64"].error_class == "ValueError"


def test_a_problem_that_the_kernel_does_not_take_is_skipped_with_its_reason() -> None:
    kernel = replace(fake_kernel.healthy(), dtypes=("bfloat16",))
    results = verdicts(kernel, 3)
    assert {result.verdict for result in results.values()} == {"skipped"}
    assert results["completes"].reason == "dtype must be one of bfloat16, got float8_e4m3fn"


def test_the_kernel_runs_before_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    exact = fake_kernel.decode

    def oracle(*arguments: object) -> object:
        ran.append("oracle")
        return exact(*arguments)  # type: ignore[arg-type]

    def compute(problem: Problem, inputs: Inputs) -> Output:
        ran.append("kernel")
        return fake_kernel.right(problem, inputs)

    monkeypatch.setattr("conformance.properties.decode", oracle)
    verdicts(fake_kernel.FakeKernel(compute), 3)
    assert ran == ["kernel", "oracle"]


def test_properties_share_a_run() -> None:
    ran: list[Problem] = []

    def compute(problem: Problem, inputs: Inputs) -> Output:
        ran.append(problem)
        return fake_kernel.right(problem, inputs)

    judge = Judge(lambda result: None)
    for name in PROPERTY_NAMES:
        case = cases.case(3, property_name=name)
        judge.judge(cases.subject(fake_kernel.FakeKernel(compute)), case)
        assert judge.knows(case)
    assert len(ran) == 1
    assert not judge.knows(cases.case(3, seed=1))


def limit(strict: bool = True, **when: object) -> KnownLimit:
    return KnownLimit("a-limit", "because", ("matches_float64",), when, cases.case(3), strict)


def test_a_failure_that_a_limit_explains_is_expected() -> None:
    explains = limit(longest={"max": 3})
    result = verdicts(fake_kernel.zero_output(), 3, limits=(explains,))["matches_float64"]
    assert result.verdict == "expected_failure"
    assert result.reason == "known limit a-limit: because"
    assert not result.is_bad
    other = verdicts(fake_kernel.zero_output(), 4, limits=(explains,))["matches_float64"]
    assert other.verdict == "failed"


def test_a_limit_does_not_excuse_another_property() -> None:
    results = verdicts(fake_kernel.unwritten_head(), 3, limits=(limit(),))
    assert results["every_element_written"].verdict == "failed"


def test_a_limit_does_not_excuse_an_error_of_the_testbed() -> None:
    results = verdicts(
        replace(fake_kernel.raises(), compute=lambda problem, inputs: 1 // 0),
        3,
        limits=(replace(limit(), properties=("completes",)),),
    )
    assert results["completes"].verdict == "error"


def test_a_pass_where_a_limit_says_failure_is_a_failure() -> None:
    result = verdicts(fake_kernel.healthy(), 3, limits=(limit(),))["matches_float64"]
    assert result.verdict == "unexpected_pass"
    assert result.is_bad
    lenient = verdicts(fake_kernel.healthy(), 3, limits=(limit(strict=False),))
    assert lenient["matches_float64"].verdict == "passed"
