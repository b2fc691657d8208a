"""The page of a recorded run says what the records say, and nothing else."""

from pathlib import Path

import pytest

from reports.records import CaseResult, RecordError
from reports.run_document import document, main
from tests.reports import samples


def result(verdict: str = "passed", ratio: float = 0.25, **changes: object) -> CaseResult:
    return CaseResult(samples.case(**changes), verdict, ratio=ratio, seconds=30.0)


def test_a_run_is_counted_once_and_by_each_value(tmp_path: Path) -> None:
    path = samples.write(
        tmp_path,
        result(),
        result(property="completes"),
        result(ratio=0.75, seed=1),
        result(dtype="bfloat16", seed=2),
    )
    page = document("ours", path)
    assert "2 distinct problems, 4 judgements" in page
    assert "2 minutes of runs" in page
    assert "the run ended by itself" in page
    assert "| matches_float64 | 3 passed | 0.7500 |" in page
    assert "| dtype | bfloat16: 1, float8_e4m3fn: 2 |" in page


def test_what_is_bad_shows(tmp_path: Path) -> None:
    bad = result("failed", 1.5, dtype="bfloat16", seed=2)
    page = document("ours", samples.write(tmp_path, result(), bad, ended=False))
    assert "| matches_float64 | 1 passed, 1 failed | 1.5000 |" in page
    assert "| dtype | bfloat16: 1 (1 bad), float8_e4m3fn: 1 |" in page
    assert "the run was cut short" in page


def test_another_kernel_s_records_make_no_page(tmp_path: Path) -> None:
    path = samples.write(tmp_path, result())
    with pytest.raises(RecordError, match="must hold one run of theirs, not 0"):
        document("theirs", path)


def test_it_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = samples.write(tmp_path, result())
    assert main(["ours", str(path)]) == 0
    assert capsys.readouterr().out == document("ours", path)
