"""What campaigns draw: everything that decides a case, within what the kernel takes."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import find, settings

from conformance.properties import COMPLETES
from conformance.relations import GPU_RELATIONS, RELATION_NAMES
from conformance.session import make_subject
from fuzz.draw import FIXED_POLICIES, PROFILES, cases, scheduled
from fuzz.search import BUFFER_BYTES, holds
from reference.problem import Problem, Recipe
from reports.records import Case
from tests.conformance.fake_kernel import FakeKernel
from tests.fuzz.kernels import NAME, right_everywhere

SUBJECT = make_subject(NAME.format("right_everywhere"), "simulator")


def drawn(strategy, number: int) -> Iterator[Case]:
    """Cases that fresh buffers give, as a search draws them."""
    found: list[Case] = []
    test = holds(strategy, found.append, None, (), 1)
    feed: Callable[[bytes], bytes | None] = test.hypothesis.fuzz_one_input  # type: ignore[attr-defined]
    rng = random.Random(1)
    while len(found) < number:
        feed(rng.randbytes(BUFFER_BYTES))
    yield from found


def test_everything_that_decides_a_case_varies() -> None:
    found = list(drawn(cases(SUBJECT), 200))
    assert {case.property for case in found} > {COMPLETES}
    assert {case.policy.partition(":")[0] for case in found} == {
        "fair", *FIXED_POLICIES, "delay", "random", "pct",
    }  # fmt: skip
    problems = [Problem.from_json(case.problem) for case in found]
    assert {p.dtype for p in problems} == {"float16", "bfloat16", "float8_e4m3fn"}
    assert {p.page_size for p in problems} == {2, 4, 8, 16, 32, 64, 128}
    assert {p.batch_size for p in problems} == {1, 2, 3}
    assert len({p.dims.num_heads for p in problems}) > 20
    assert {p.dcp.world for p in problems} == {1, 2, 4, 8}
    assert len({case.seed for case in found}) > 150
    recipes = [Recipe.from_json(case.recipe) for case in found]
    for name in ("values", "table_tail", "layout", "poison", "spare_pages", "page_order"):
        assert len({getattr(recipe, name) for recipe in recipes}) > 1, name


def test_most_cases_are_runs_and_every_relation_has_its_turn() -> None:
    found = [case.property for case in drawn(cases(SUBJECT), 400)]
    assert 0.6 < found.count(COMPLETES) / len(found) < 0.85
    left_out = {"pools_may_be_large", *GPU_RELATIONS}
    assert set(found) == {COMPLETES, *RELATION_NAMES} - left_out


@pytest.mark.parametrize("profile", PROFILES)
def test_only_what_the_kernel_takes_is_drawn(profile: str) -> None:
    kernel = right_everywhere()
    object.__setattr__(kernel, "dtypes", ("bfloat16",))
    object.__setattr__(kernel, "limits", replace(kernel.limits, empty_rows=False, poison=False))
    for case in drawn(cases(replace(SUBJECT, kernel=kernel), profile), 40):
        problem = Problem.from_json(case.problem)
        assert problem.dtype == "bfloat16"
        assert min(problem.seq_lens) >= 1
        assert not Recipe.from_json(case.recipe).poison


def test_few_shapes_leave_everything_else_free() -> None:
    found = [Problem.from_json(c.problem) for c in drawn(cases(SUBJECT, shapes=2, seed=5), 150)]
    assert len({(p.dtype, p.page_size) for p in found}) == 2
    assert {p.dcp.world for p in found} == {1, 2, 4, 8}
    assert len({p.dims.num_heads for p in found}) > 15


def test_a_problem_shrinks_to_the_smallest_one() -> None:
    smallest = find(
        cases(SUBJECT), lambda case: True, settings=settings(database=None, deadline=None)
    )
    problem = Problem.from_json(smallest.problem)
    assert (problem.dims.num_heads, problem.dims.seq_len_q, problem.seq_lens) == (1, 1, (0,))
    assert (smallest.property, smallest.policy, smallest.seed) == (COMPLETES, "fair", 0)


def test_a_schedule_changes_nothing_but_the_schedule() -> None:
    base = next(drawn(cases(SUBJECT), 1))
    found = list(drawn(scheduled(base, 77), 200))
    assert {replace(case, policy="", policy_seed=0) for case in map(frozen, found)} == {
        replace(frozen(base), policy="", policy_seed=0)
    }
    delays = [case.policy.split(":")[1:] for case in found if case.policy.startswith("delay")]
    assert all(0 <= int(step) < 77 for steps in delays for step in steps)
    assert all(steps == sorted(steps, key=int) for steps in delays)
    assert all(case.policy.endswith(":77") for case in found if case.policy.startswith("pct"))


def frozen(case: Case) -> Case:
    """A case without its dictionaries, so that a set can hold it."""
    return replace(case, problem=str(case.problem), recipe=str(case.recipe))  # type: ignore[arg-type]


def test_the_gpu_has_no_schedules() -> None:
    on_gpu = replace(SUBJECT, engine=replace(SUBJECT.engine, engine="cuda"))
    assert {case.policy for case in drawn(cases(on_gpu), 60)} == {"fair"}


def test_the_fake_kernel_takes_what_is_drawn() -> None:
    assert isinstance(SUBJECT.kernel, FakeKernel)
