"""The sweep over schedules: a kernel that depends on the schedule is found, and a run goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance import schedules
from conformance.kernel import Output, RunOptions
from reports.records import read_records
from simulator.errors import Deadlock
from tests.conformance.fake_kernel import FakeKernel, right

SEEDS = 14


class Depends(FakeKernel):
    """Its last element differs, or it hangs, under one policy."""

    def run(self, problem, inputs, options: RunOptions) -> Output:
        output = right(problem, inputs)
        if options.policy == "late":
            output.lse[-1, -1, -1] += 1
        if options.policy == "pct:1":
            raise Deadlock("no warp can go on")
        return output


def swept(monkeypatch, tmp_path: Path, kernel: FakeKernel, *more: str) -> tuple[int, list]:
    monkeypatch.setattr(schedules, "load_kernel", lambda name: kernel)
    folder = tmp_path / "results"
    before = set(folder.glob("*"))
    status = schedules.main(["--seeds", str(SEEDS), "--results", str(folder), *more])
    (made,) = set(folder.glob("*")) - before
    return status, list(read_records(made / "records.jsonl").results)


def test_a_kernel_that_heeds_no_schedule_passes(monkeypatch, tmp_path):
    status, results = swept(monkeypatch, tmp_path, FakeKernel())
    assert status == 0
    assert len({result.case.id for result in results}) == SEEDS
    assert {result.verdict for result in results} == {"passed"}
    assert {result.case.policy for result in results} == set(schedules.POLICIES)


def test_what_depends_on_the_schedule_is_found(monkeypatch, tmp_path):
    status, results = swept(monkeypatch, tmp_path, Depends())
    assert status == 1
    failed = {r.case.policy: r for r in results if r.verdict == "failed"}
    assert failed.keys() == {"late", "pct:1"}
    assert "lse: " in failed["late"].reason
    assert failed["pct:1"].error_class == "Deadlock"
    assert all((r.case.policy in failed) == (r.verdict == "failed") for r in results)


def test_a_run_that_was_cut_short_goes_on(monkeypatch, tmp_path):
    _, results = swept(monkeypatch, tmp_path, FakeKernel())
    monkeypatch.setattr(schedules, "_earlier", lambda folder: {r.case.id: r for r in results[:-3]})
    calls = []
    judge = schedules.judge
    monkeypatch.setattr(
        schedules, "judge", lambda *a: calls.append(json.dumps(a[1].to_json())) or judge(*a)
    )
    _, again = swept(monkeypatch, tmp_path, FakeKernel(), "--resume", "earlier")
    assert len(calls) == 3
    assert [r.case.id for r in again] == [r.case.id for r in results]


def test_a_kernel_that_takes_none_of_the_problems_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(schedules, "load_kernel", lambda name: FakeKernel(dtypes=("float16",)))
    assert schedules.main([]) == 2
    assert "takes none" in capsys.readouterr().err


@pytest.mark.parametrize("number", range(len(schedules.PROBLEMS)))
def test_each_problem_has_two_tiles_in_a_split(number):
    problem, splits = schedules.PROBLEMS[number]
    assert -(-problem.seq_lens[0] // 128) >= 2 * splits
