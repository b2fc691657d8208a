"""Each relation holds for a right kernel, and a kernel with the fault it is for breaks it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from conformance.judge import Judge
from conformance.kernel import Output, RunOptions
from conformance.known_limits import KnownLimit
from conformance.properties import Finding, Observation
from conformance.relations import GPU_RELATIONS, RELATION_NAMES, RELATIONS
from conformance.session import Session
from conformance.strategies import Choice
from reference.decode import decode
from reference.inputs import Inputs
from reference.problem import Dcp, Dims, Mask, Problem, Recipe
from reports.records import Case, CaseResult
from tests.conformance import cases
from tests.conformance.fake_kernel import FakeKernel, right

PROBLEM = Problem(Dims(4, 2), "bfloat16", 16, (70, 33), 192**-0.5, lse_base=2)


@dataclass(frozen=True)
class Exact(FakeKernel):
    """Takes any dtype and any number of splits, and ``compute`` sees the options too."""

    answer: Callable[[Problem, Inputs, RunOptions], Output] = lambda p, i, o: right(p, i)
    dtypes: tuple[str, ...] = ("bfloat16", "float8_e4m3fn", "float16")

    def run(self, problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        return self.answer(problem, inputs, options)


def case(name: str, problem: Problem = PROBLEM, seed: int = 1) -> Case:
    plain = cases.case(1, property_name=name, seed=seed)
    return replace(plain, problem=problem.to_json(), recipe=Recipe(poison=False).to_json())


def verdict(kernel: FakeKernel, name: str, problem: Problem = PROBLEM, seed: int = 1) -> CaseResult:
    return Judge(lambda result: None).judge(cases.subject(kernel), case(name, problem, seed))


def small_pool(monkeypatch) -> None:
    monkeypatch.setattr("conformance.relations.cache.FAR_POOL_ELEMENTS", 2**20)


SIMULATED = tuple(name for name in RELATION_NAMES if name not in GPU_RELATIONS)
OF_HOSTS = (  # in test_host_relations.py
    "outputs_may_be_left_to_the_kernel", "contradictions_are_refused", "an_empty_batch_is_empty",
    "the_plan_fits", "every_access_is_ordered", "what_may_overlap_waits_first",
)  # fmt: skip
SHOWN_HERE = tuple(name for name in SIMULATED if name not in OF_HOSTS)


@pytest.mark.parametrize("name", SHOWN_HERE)
def test_a_right_kernel_has_every_relation(name, monkeypatch):
    small_pool(monkeypatch)
    result = verdict(Exact(), name)
    assert result.verdict == "passed", result.reason


def faulty(change: Callable[[Problem, Inputs, RunOptions, Output], None]) -> Exact:
    """A kernel whose output ``change`` spoils."""

    def answer(problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        output = right(problem, inputs)
        change(problem, inputs, options, output)
        return output

    return Exact(answer=answer)


def first_page_matters(problem, inputs, options, output):
    output.out[0].add_(inputs.kv_cache[0, 0, 0])


def batch_matters(problem, inputs, options, output):
    output.out.mul_(problem.batch_size)


def last_request_is_off(problem, inputs, options, output):
    output.out[-1].mul_(1.5)


def first_request_is_off(problem, inputs, options, output):
    output.out[0].mul_(1.5)


def first_head_is_off(problem, inputs, options, output):
    output.out[:, :, 0].mul_(1.5)


def splits_matter(problem, inputs, options, output):
    if options.num_splits is not None:
        output.out.mul_(1.5)


def all_tokens_see_all(problem, inputs, options, output):
    seen = replace(problem, mask=replace(problem.mask, causal=False))
    output.out.copy_(right(seen, inputs).out)


def ranks_are_ignored(problem, inputs, options, output):
    if problem.dcp.world > 1:
        alone = replace(problem, dcp=Dcp(), mask=Mask(causal=True))
        wrong = decode(alone, inputs)
        output.out.copy_(wrong.out.to(output.out.dtype))
        output.lse.copy_(wrong.lse)


def scale_reaches_the_lse(problem, inputs, options, output):
    output.lse.add_(math.log2(abs(problem.output_scale)))


def hint_is_a_length(problem, inputs, options, output):
    output.lse.add_(problem.planning_max_seq_len)


def schedule_matters(problem, inputs, options, output):
    if options.policy == "random":
        output.out.mul_(1.001 * 1.5)


def far_pages_wrap(problem, inputs, options, output):
    if inputs.kv_cache.numel() > 2**20:
        output.out.mul_(1.5)


def other_pages_are_misread(problem, inputs, options, output):
    if problem.page_size != PROBLEM.page_size:
        output.out.mul_(1.5)


def sms_matter(problem, inputs, options, output):
    output.out.mul_(options.num_sms)


def early_launch_is_wrong(problem, inputs, options, output):
    if problem.enable_pdl:
        output.out.mul_(1.5)


class Keeps:
    """Computes with the parameters of the first call for ever."""

    def __init__(self) -> None:
        self.first: Problem | None = None

    def __call__(self, problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        self.first = self.first or problem
        return right(self.first, inputs)


FAULTS = {
    "pages_may_lie_anywhere": first_page_matters,
    "unseen_slots_do_not_matter": lambda p, i, o, out: out.out.add_(
        i.kv_cache.float().isnan().any().to(out.out.dtype)
    ),
    "batch_may_be_reversed": last_request_is_off,
    "a_request_is_as_good_alone": batch_matters,
    "a_request_may_come_twice": first_request_is_off,
    "heads_may_be_reversed": first_head_is_off,
    "any_number_of_splits_is_right": splits_matter,
    "tokens_are_single_calls": all_tokens_see_all,
    "ranks_merge_to_the_whole": ranks_are_ignored,
    "output_scale_is_a_factor": scale_reaches_the_lse,
    "max_seq_len_is_a_hint": hint_is_a_length,
    "a_repetition_is_equal": schedule_matters,
    "pools_may_be_large": far_pages_wrap,
    "the_right_keys_are_seen": all_tokens_see_all,
    "any_page_size_is_right": other_pages_are_misread,
    "any_number_of_sms_will_do": sms_matter,
    "an_early_launch_changes_nothing": early_launch_is_wrong,
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_it_is_for_breaks_a_relation(name, monkeypatch):
    small_pool(monkeypatch)
    result = verdict(faulty(FAULTS[name]), name)
    assert result.verdict == "failed", result.reason
    assert result.reason


def test_a_kernel_that_keeps_its_first_parameters_leaves_a_trace():
    verdicts = {verdict(Exact(answer=Keeps()), "calls_leave_no_trace", seed=s).verdict
                for s in range(6)}  # fmt: skip
    assert "failed" in verdicts


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        (0, ""),
        (1, "request 1, token 0, head 0 adds what is none of its keys' values"),
        (-1, "request 1, token 0, head 0 counts key 32 0 times, not 1"),
    ],
)
def test_the_keys_that_are_seen_are_read_back(extra, complaint):
    """A length that is one too long or too short for the second request."""
    true = Problem(Dims(4, 1), "bfloat16", 16, (70, 33), 192**-0.5, mask=Mask(causal=False))

    def answer(problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        wrong = replace(problem, seq_lens=(70, 33 + extra))
        lengths = torch.tensor(wrong.seq_lens, dtype=torch.int32)
        return right(wrong, replace(inputs, seq_lens=lengths))

    result = verdict(Exact(answer=answer), "the_right_keys_are_seen", true)
    assert (result.reason or "").startswith(complaint)
    assert result.verdict == ("failed" if complaint else "passed")


@pytest.mark.parametrize("lengths", [(600, 3), (0, 513), (1300, 0, 512)])
def test_keys_are_read_back_where_a_request_has_fewer_than_another(lengths):
    problem = replace(PROBLEM, seq_lens=lengths)
    result = verdict(Exact(), "the_right_keys_are_seen", problem)
    assert result.verdict == "passed", result.reason


@pytest.mark.parametrize("name", ["calls_leave_no_trace", "any_page_size_is_right"])
def test_a_relations_oracle_counts_the_splits_that_were_asked_for(name, monkeypatch):
    """The plan of this kernel is one split; an emulation of one would refuse the right result."""
    emulated: list[int] = []

    def count(run: Observation) -> Finding:
        emulated.append(run.num_splits)
        return Finding()

    monkeypatch.setattr("conformance.relations.question.matches_emulation", count)
    asked = replace(case(name), num_splits=3)
    Judge(lambda result: None).judge(cases.subject(Exact()), asked)
    assert set(emulated) == {3}


def test_every_relation_has_a_fault():
    assert {*FAULTS, "calls_leave_no_trace"} == set(SHOWN_HERE)
    assert all("Kills" in (relation.__doc__ or "") for relation in RELATIONS.values())


def test_a_relation_that_says_nothing_is_skipped_with_a_reason():
    alone = replace(PROBLEM, seq_lens=(70,))
    result = verdict(Exact(), "batch_may_be_reversed", alone)
    assert result.verdict == "skipped"
    assert result.reason == "says nothing of this problem"


def test_a_run_that_fails_by_itself_is_left_to_other_properties():
    def answer(problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        raise RuntimeError("broken")

    result = verdict(Exact(answer=answer), "a_repetition_is_equal")
    assert result.verdict == "skipped"
    assert result.reason == "the run itself: broken"


def test_each_case_of_the_array_has_one_relation():
    subject = cases.subject(FakeKernel())
    session = Session.__new__(Session)
    session.__dict__["_arrays"] = {
        subject.name: [(PROBLEM, Recipe(), Choice(seed, 148)) for seed in range(40)]
    }
    shares = [session.related_cases(subject, name) for name in SIMULATED]
    assert sorted(case.seed for share in shares for case in share) == list(range(40))


@pytest.mark.parametrize("name", GPU_RELATIONS)
def test_what_only_a_gpu_can_show_is_skipped_and_says_so(name):
    result = verdict(Exact(), name)
    assert result.verdict == "skipped"
    assert result.reason == "engine: 'simulator': only a GPU can show this"


def test_a_finished_relation_is_remembered():
    made: list[CaseResult] = []
    one = case("a_repetition_is_equal")
    Judge(made.append).judge(cases.subject(Exact()), one)
    later: list[CaseResult] = []
    judge = Judge(later.append)
    judge.remember(made)
    assert judge.knows(one)
    assert later == made


def test_what_a_relation_asks_for_beyond_a_known_limit_is_skipped():
    """A kernel that cannot do one token says so of its runs; the relation asks for just that."""

    def answer(problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        if problem.dims.seq_len_q == 1:
            raise RuntimeError("no kernel for one token")
        return right(problem, inputs)

    one = case("tokens_are_single_calls")
    limit = KnownLimit(
        id="one-token", reason="", properties=("completes",), when={"seq_len_q": 1}, example=one
    )
    subject = cases.subject(Exact(answer=answer))
    judged = [
        Judge(lambda result: None).judge(given, one)
        for given in (subject, replace(subject, limits=(limit,)))
    ]
    assert [result.verdict for result in judged] == ["error", "skipped"]
    assert judged[1].reason == "what it asks for is beyond known limit one-token"
