"""The search for a small failure: it finds one, shrinks it, keeps to its time, and repeats."""

from dataclasses import replace

import pytest
from hypothesis import strategies as st

from conformance.judge import Judge, Subject
from conformance.kernel import Kernel, Output
from conformance.profiles import PROFILES
from conformance.search import smallest_failure
from conformance.strategies import Choice, Drawn
from reference.inputs import Inputs
from reference.problem import Problem, Recipe
from reports.records import Case, CaseResult
from tests.conformance import cases, fake_kernel

PROFILE = replace(PROFILES["smoke"], random_problems=20)
SEED = 1


def few_keys(kernel: Kernel, profile: str) -> st.SearchStrategy[Drawn]:
    """Up to three requests of up to 60 keys."""
    lengths = st.lists(st.integers(1, 60), min_size=1, max_size=3)
    return st.builds(
        lambda keys, seed: (
            cases.problem(*keys, heads=1),
            Recipe(),
            Choice(seed=seed, num_sms=148),
        ),
        lengths,
        st.integers(0, 1000),
    )


@pytest.fixture(autouse=True)
def _few_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.search.problems", few_keys)


def wrong_from(keys: int) -> Subject:
    """A kernel whose result is wrong for requests of ``keys`` keys and more."""

    def compute(problem: Problem, inputs: Inputs) -> Output:
        output = fake_kernel.right(problem, inputs)
        return replace(output, lse=output.lse + 1.0) if max(problem.seq_lens) >= keys else output

    return cases.subject(fake_kernel.FakeKernel(compute))


def search(subject: Subject, shrink_seconds: float = 30.0) -> tuple[CaseResult | None, list[Case]]:
    """The smallest failure, and the cases that ran."""
    ran: list[CaseResult] = []
    profile = replace(PROFILE, shrink_seconds=shrink_seconds)
    found = smallest_failure(Judge(ran.append), subject, "matches_float64", profile, SEED)
    return found, [result.case for result in ran if result.case.property == "completes"]


def test_a_right_kernel_has_no_failure() -> None:
    found, ran = search(cases.subject(fake_kernel.healthy()))
    assert found is None
    assert 0 < len(ran) <= PROFILE.random_problems


def test_a_failure_shrinks_to_one_request_of_the_fewest_keys() -> None:
    found, _ = search(wrong_from(17))
    assert found is not None
    assert found.verdict == "failed"
    assert found.case.problem["seq_lens"] == [17]
    assert found.case.seed == 0


def test_without_time_the_first_failure_stands() -> None:
    found, ran = search(wrong_from(17), shrink_seconds=-1.0)
    assert found is not None
    assert replace(found.case, property="completes") == ran[-1]


def test_the_same_seed_draws_the_same_problems() -> None:
    first, second = (search(cases.subject(fake_kernel.healthy()))[1] for _ in range(2))
    assert first == second


def test_properties_share_the_runs() -> None:
    subject, results = cases.subject(fake_kernel.healthy()), list[CaseResult]()
    judge = Judge(results.append)
    recorded = set[int]()
    for name in ("completes", "matches_float64", "inputs_unchanged"):
        assert smallest_failure(judge, subject, name, PROFILE, SEED) is None
        recorded.add(len(results))
    assert len(recorded) == 1


def test_problems_that_the_kernel_does_not_take_are_drawn_again() -> None:
    subject = cases.subject(replace(fake_kernel.healthy(), most_keys=20))
    _, ran = search(subject)
    assert ran
    assert all(max(case.problem["seq_lens"]) <= 20 for case in ran)
