"""Steps toward a smaller case: all six kinds are there, and a descent ends where none fails."""

from dataclasses import replace

import pytest

from conformance.session import make_subject
from conformance.strategies import Choice
from fuzz.reduce import descend, one_step
from reference.dcp import owned_positions
from reference.problem import Dcp, Dims, Problem, Recipe
from reports.records import Case
from tests.fuzz.kernels import NAME, Any16Bit, is_large

PROBLEM = Problem(Dims(40, 3), "bfloat16", 16, (300, 200, 40), 192**-0.5)
KERNEL = Any16Bit()


def case(problem: Problem, num_splits: int | None = None, num_sms: int = 148) -> Case:
    subject = make_subject(NAME.format("right_everywhere"), "simulator")
    return subject.case("completes", (problem, Recipe(), Choice(0, num_sms, num_splits)))


def problem_of(smaller: Case) -> Problem:
    return Problem.from_json(smaller.problem)


def test_each_step_takes_one_thing_away() -> None:
    steps: dict[str, list[Case]] = {}
    for word, smaller in one_step(case(PROBLEM, num_splits=3), KERNEL):
        steps.setdefault(word, []).append(smaller)
    lengths = {
        word: [problem_of(s).seq_lens for s in steps[word]] for word in ("request", "tile", "page")
    }
    assert lengths == {
        "request": [(200, 40), (300, 40), (300, 200)],
        "tile": [(172, 200, 40), (300, 72, 40), (300, 200, 0)],
        "page": [(284, 200, 40), (300, 184, 40), (300, 200, 24)],
    }
    assert [problem_of(s).dims for s in steps["head"]] == [Dims(39, 3)]
    assert [problem_of(s).dims for s in steps["token"]] == [Dims(40, 2)]
    assert [s.num_splits for s in steps["split"]] == [2]


def test_a_planned_split_fewer_takes_the_most_sms_that_plan_so_many() -> None:
    planned = KERNEL.plan(PROBLEM, 148).num_splits
    (fewer,) = [s for word, s in one_step(case(PROBLEM), KERNEL) if word == "split"]
    assert KERNEL.plan(PROBLEM, fewer.num_sms).num_splits == planned - 1
    assert KERNEL.plan(PROBLEM, fewer.num_sms + 1).num_splits == planned


def test_a_ranks_keys_follow_from_the_context_that_gets_shorter() -> None:
    contexts, dcp = (300, 41), Dcp(4, 3, 4, (300, 41))
    owned = tuple(len(owned_positions(keys, dcp)) for keys in contexts)
    sharded = replace(PROBLEM, seq_lens=owned, dcp=dcp)
    for _, smaller in one_step(case(sharded), KERNEL):
        left = problem_of(smaller)
        assert left.dcp.causal_seqs is not None
        assert left.seq_lens == tuple(
            len(owned_positions(keys, left.dcp)) for keys in left.dcp.causal_seqs
        )


def test_the_smallest_problem_has_no_step_but_to_no_keys() -> None:
    smallest = case(Problem(Dims(1, 1), "bfloat16", 16, (0,), 1.0), num_splits=1)
    assert list(one_step(smallest, KERNEL)) == []


def test_a_descent_ends_where_every_step_passes() -> None:
    tries = 0

    def fails(smaller: Case) -> bool:
        nonlocal tries
        tries += 1
        return is_large(problem_of(smaller))

    found, is_minimal = descend(case(PROBLEM, num_splits=3), KERNEL, fails)
    assert is_minimal
    left = problem_of(found)
    assert left.dims == Dims(3, 1)
    assert sorted(left.seq_lens)[0] == 0
    assert 16 < max(left.seq_lens) <= 32
    assert found.num_splits == 1
    assert not any(is_large(problem_of(s)) for _, s in one_step(found, KERNEL))
    assert tries < 120, "long ways are taken in strides"


def test_a_descent_without_time_is_not_called_minimal() -> None:
    found, is_minimal = descend(case(PROBLEM), KERNEL, lambda smaller: None)
    assert (found, is_minimal) == (case(PROBLEM), False)


@pytest.mark.parametrize("word", ["request", "tile", "page", "head", "token", "split"])
def test_a_step_that_was_forgotten_would_show(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of step is needed: without it the descent stops at something larger."""
    start = case(PROBLEM, num_splits=3)

    def fails(smaller: Case) -> bool:
        left = problem_of(smaller)
        return left.batch_size >= 1 and left.dims.num_heads >= 1

    assert size(descend(start, KERNEL, fails)[0]) == (1, 0, 1, 1, 1)
    monkeypatch.setattr(
        "fuzz.reduce.one_step",
        lambda c, k: (step for step in one_step(c, k) if step[0] not in {word, *near(word)}),
    )
    assert size(descend(start, KERNEL, fails)[0]) != (1, 0, 1, 1, 1)


def near(word: str) -> tuple[str, ...]:
    """Steps that lead to the same smallest problem: a tile and a page both shorten a request."""
    return {"tile": ("page",), "page": ("tile",)}.get(word, ())


def size(smaller: Case) -> tuple[int | None, ...]:
    left = problem_of(smaller)
    return (
        left.batch_size, sum(left.seq_lens), left.dims.num_heads, left.dims.seq_len_q,
        smaller.num_splits,
    )  # fmt: skip
