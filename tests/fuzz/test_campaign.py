"""A campaign finds what is planted, makes it small, keeps it, and loses nothing when it is cut."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.relations import RELATION_NAMES
from conformance.schedules import PROPERTY
from conformance.session import make_subject
from conformance.strategies import Choice
from fuzz.campaign import FOUND, INTERRUPTED, NOTHING_FOUND, STORAGE_FULL, Budget
from fuzz.corpus import Corpus, StorageError
from fuzz.draw import FIXED_POLICIES, scheduled
from fuzz.jobs import Bench
from fuzz.reduce import one_step
from reference.problem import Dims, Problem, Recipe
from reports.records import Case, CaseResult, read_records
from tests.fuzz.in_process import campaign, hunt
from tests.fuzz.kernels import NAME, is_large


def test_a_right_kernel_gives_no_finding(tmp_path: Path) -> None:
    made = campaign(tmp_path, "right_everywhere", Budget(cases=60))
    assert made.run(workers=2) == NOTHING_FOUND
    records = read_records(made.records)
    assert len(records.results) == made.growth.cases >= 60
    assert records.summary is not None
    assert made.growth.counts()["plans"] > 1


def test_a_fault_is_found_and_its_smallest_case_is_one(tmp_path: Path) -> None:
    said: list[str] = []
    budget = Budget(cases=400, stop_at_first=True, shrink_seconds=600)
    made = campaign(tmp_path, "wrong_if_large", budget, said=said)
    assert made.run(workers=1) == FOUND
    smallest = made.minimal[0]
    assert smallest.is_minimal
    assert is_large(Problem.from_json(smallest.case.problem))
    bench = Bench(NAME.format("wrong_if_large"), "simulator")
    for word, smaller in one_step(smallest.case, bench.subject.kernel):
        assert not bench.do(smaller).result.is_bad, word
    problem = Problem.from_json(smallest.case.problem)
    assert (problem.dims.num_heads, problem.dims.seq_len_q, problem.batch_size) == (3, 1, 2)
    kept = list(Corpus(tmp_path / "corpus", pytest.fail).entries())
    assert smallest in kept
    assert any("minimal" in words for words in said)


@pytest.mark.slow
def test_two_faults_are_told_apart_and_both_shrunk(tmp_path: Path) -> None:
    """One kernel is wrong in its LSE and raises elsewhere: neither hides the other."""
    made = campaign(tmp_path, "two_faults", Budget(cases=150, shrink_seconds=20))
    assert made.run(workers=1) == FOUND
    kinds = {entry.signature.kind for entry in made.minimal}
    assert {("matches_float64", "failed"), ("completes", "OutOfBounds")} <= kinds


def test_the_measurement_tells_cases_findings_and_growth(tmp_path: Path) -> None:
    made = campaign(tmp_path, "right_everywhere", Budget(cases=20))
    made.run(workers=1)
    last = read_records(made.records).measurements[-1]
    assert (last.topic, last.detail["cases"], last.detail["findings"]) == ("fuzz", 20, 0)
    seconds = [point[0] for point in last.detail["growth"]]
    covered = [point[1] for point in last.detail["growth"]]
    assert len(covered) == 20
    assert seconds == sorted(seconds)
    assert covered == sorted(covered)


def test_a_campaign_goes_on_where_another_was_cut(tmp_path: Path) -> None:
    first = campaign(tmp_path, "right_everywhere", Budget(cases=20))
    first.run(workers=1)
    earlier = read_records(first.records).results
    said: list[str] = []
    second = campaign(
        tmp_path, "right_everywhere", Budget(cases=35), said=said, earlier=earlier,
        seconds_before=7.0,
    )  # fmt: skip
    second.run(workers=1)
    results = read_records(second.records).results
    assert results[:20] == earlier
    assert len(results) == 35
    assert read_records(second.records).measurements[-1].detail["seconds"] >= 7.0


def test_each_result_is_on_disk_before_the_next_case_begins(tmp_path: Path) -> None:
    """So whoever kills a campaign loses the case in flight and nothing else."""
    begun = 0

    def look(case: Case) -> None:
        nonlocal begun
        (path,) = (tmp_path / "results").glob("*/records.jsonl")
        assert len(read_records(path).results) == begun
        begun += 1

    made = campaign(tmp_path, "", Budget(cases=15), hunt=hunt("right_everywhere", look))
    assert made.run(workers=1) == NOTHING_FOUND
    assert begun == 15


def test_ctrl_c_ends_with_a_summary_and_a_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = campaign(tmp_path, "right_everywhere", Budget())
    waited = threading.Event()

    def interrupted(threads: object) -> None:
        while made.growth.cases < 5:
            waited.wait(0.05)
        raise KeyboardInterrupt

    monkeypatch.setattr(made, "_wait", interrupted)
    assert made.run(workers=2) == INTERRUPTED
    records = read_records(made.records)
    assert records.summary is not None
    assert len(records.results) == made.growth.cases >= 5


@pytest.mark.parametrize("place", ["records", "corpus"])
def test_a_full_disk_ends_the_campaign_and_says_what_was_not_kept(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    corpus = Corpus(tmp_path / "corpus", said.append)
    made = campaign(tmp_path, "wrong_if_large", Budget(cases=400), said=said, corpus=corpus)

    def full(*given: object) -> None:
        raise StorageError("corpus/faults/x.json cannot be written: No space left on device")

    def full_file(result: CaseResult) -> None:
        raise OSError(28, "No space left on device")

    if place == "corpus":
        monkeypatch.setattr(corpus, "add", full)
    else:
        monkeypatch.setattr(made._records, "write", full_file)
    assert made.run(workers=2) == STORAGE_FULL
    assert "No space left on device" in said[-1]


def test_a_search_that_breaks_ends_the_campaign_with_its_error(tmp_path: Path) -> None:
    def breaks(case: Case) -> None:
        raise LookupError("the executor is broken")

    made = campaign(tmp_path, "", Budget(), hunt=hunt("right_everywhere", breaks))
    with pytest.raises(LookupError, match="the executor is broken"):
        made.run(workers=1)


def test_what_was_kept_is_where_the_next_campaign_begins(tmp_path: Path) -> None:
    """The second campaign's first cases are the buffers that reached something in the first."""
    first = campaign(tmp_path, "right_everywhere", Budget(cases=40))
    first.run(workers=1)
    reached = first.growth.counts()["plans"]
    seen: list[Case] = []
    again = campaign(
        tmp_path, "", Budget(cases=40), seed=9, hunt=hunt("right_everywhere", seen.append)
    )
    again.run(workers=1)
    earlier = {call_of(result.case) for result in read_records(first.records).results}
    repeated = [call_of(case) in earlier for case in seen]
    known = repeated.index(False)
    assert known >= 5
    assert not all(repeated)
    assert again.growth.counts()["plans"] >= reached


def test_a_schedule_that_fails_is_found_and_replays_from_its_seed(tmp_path: Path) -> None:
    """Wrong for a quarter of random seeds; no fixed order shows it."""
    subject = make_subject(NAME.format("unlucky"), "simulator")
    plain = hunt("unlucky")
    base = replace(one_case("unlucky"), property=PROPERTY, policy="fair")
    bench = Bench(NAME.format("unlucky"), "simulator")
    for policy in ("fair", *FIXED_POLICIES):
        assert not bench.do(replace(base, policy=policy)).result.is_bad
    wanted = replace(plain, name="schedule", strategy=scheduled(base, 100), kernel=subject.kernel)
    made = campaign(
        tmp_path, "", Budget(cases=200, stop_at_first=True, shrink_seconds=10), hunt=wanted
    )
    assert made.run(workers=1) == FOUND
    found = made.minimal[0].case
    assert found.policy == "random"
    assert found.policy_seed == 3, "the least seed that fails"
    assert bench.do(found).result.is_bad


def call_of(case: Case) -> str:
    """The id of a case but for its property: a result names the one that decided."""
    return replace(case, property="" if case.property not in RELATION_NAMES else case.property).id


def one_case(kernel: str) -> Case:
    problem = Problem(Dims(2, 1), "bfloat16", 16, (20,), 192**-0.5)
    subject = make_subject(NAME.format(kernel), "simulator")
    return subject.case("completes", (problem, Recipe(), Choice(0, 148)))
