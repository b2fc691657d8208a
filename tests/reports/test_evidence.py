"""What records say of a kernel: counted over files, and what is odd about them said in words."""

import json
import math
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from reports.evidence import RATIO_BINS, gather, record_files
from reports.records import CaseResult, Measurement, RecordError
from tests.reports.samples import CASE, RECIPE, case, write

ROOT = Path(__file__).parents[2]
PASSED = CaseResult(CASE, "passed", 0.52, seconds=1.5)
FAILED = CaseResult(case(seed=1, dtype="bfloat16"), "failed", 3.0, "out[0]", reason="off")


def test_verdicts_add_up_over_files_and_other_kernels_are_left_out(tmp_path: Path) -> None:
    files = [
        write(tmp_path, PASSED, FAILED),
        write(tmp_path, CaseResult(case(seed=2), "passed", 0.9)),
        write(tmp_path, CaseResult(case(kernel="theirs"), "failed", 9.0)),
    ]
    evidence = gather("ours", files)
    assert evidence.verdicts == {"passed": 2, "failed": 1}
    assert evidence.problems == 2
    assert len(evidence.sources) == 2
    assert [result.ratio for result in evidence.worst] == [3.0, 0.9, 0.52]
    assert evidence.bad == (FAILED,)
    assert not evidence.warnings
    tally = evidence.properties["matches_float64"]
    assert tally.worst_ratio == 3.0
    assert sum(tally.ratios) == 3
    assert tally.ratios[-1] == 1  # above the bound
    assert tally.ratios[RATIO_BINS.index(0.5)] == 1


def test_a_ratio_that_is_no_number_is_the_worst(tmp_path: Path) -> None:
    nothing = CaseResult(case(seed=3), "failed", math.nan)
    evidence = gather("ours", [write(tmp_path, FAILED, nothing)])
    assert evidence.worst[0].case == nothing.case
    assert evidence.properties["matches_float64"].worst_ratio == math.inf


def test_expected_failures_say_nothing_of_the_error(tmp_path: Path) -> None:
    known = CaseResult(case(seed=4), "expected_failure", 100.0)
    evidence = gather("ours", [write(tmp_path, PASSED, known)])
    assert evidence.properties["matches_float64"].worst_ratio == 0.52
    assert len(evidence.worst) == 1


def test_heat_maps_count_what_ran_and_what_was_bad(tmp_path: Path) -> None:
    skipped = CaseResult(case(seed=5), "skipped")
    heat = gather("ours", [write(tmp_path, PASSED, FAILED, skipped)]).heat_maps["dtype x heads"]
    assert heat.rows == ("bfloat16", "float8_e4m3fn")
    assert heat.cells == {("bfloat16", "16"): (1, 1), ("float8_e4m3fn", "16"): (1, 0)}


def test_the_last_measurement_of_a_name_counts(tmp_path: Path) -> None:
    files = [write(tmp_path, Measurement("ours", "benchmark", "B1", t, "us")) for t in (5.0, 4.0)]
    assert gather("ours", files).of("benchmark")["B1"].value == 4.0
    assert gather("ours", files).of("fuzz") == {}


def test_a_killed_run_is_said_to_be_one(tmp_path: Path) -> None:
    path = write(tmp_path, PASSED, ended=False)
    assert "no summary; its run was killed" in gather("ours", [path]).warnings[0]
    with path.open("a") as file:
        file.write('{"kind": "resu')
    assert "the last line is torn" in gather("ours", [path]).warnings[0]


def test_a_clock_that_went_backwards_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, PASSED)
    yesterday = datetime.now(UTC) - timedelta(days=1)
    (warning,) = gather("ours", [path], now=yesterday).warnings
    assert "a clock went backwards" in warning
    started = json.loads(path.read_text().splitlines()[0])["started"]
    path.write_text(path.read_text().replace(started, "yesterday"))
    assert "started 'yesterday' is no time" in gather("ours", [path]).warnings[0]


def test_a_problem_that_is_not_ours_is_counted_all_the_same(tmp_path: Path) -> None:
    strange = CaseResult(case(problem={"seq_lens": None}), "passed", 0.1)
    evidence = gather("ours", [write(tmp_path, strange)])
    assert evidence.heat_maps["dtype x heads"].cells == {("?", "?"): (1, 0)}


def test_records_are_found_in_folders(tmp_path: Path) -> None:
    path = write(tmp_path / "results", PASSED)
    assert record_files([tmp_path]) == [path]
    assert record_files([path, path]) == [path]
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordError, match=r"no records.jsonl in .*empty"):
        record_files([tmp_path / "empty"])
    with pytest.raises(RecordError, match="there is no file or folder nowhere"):
        record_files([Path("nowhere")])


def test_a_hundred_thousand_cases_take_seconds_and_little_memory(tmp_path: Path) -> None:
    path = write(tmp_path, ended=False)
    lines = [
        json.dumps(
            {
                "kind": "result",
                **CaseResult(
                    case(seed=seed, seq_lens=[seed], recipe=RECIPE), "passed", seed / 1000
                ).to_json(),
            }
        )
        for seed in range(1000)
    ]
    with path.open("a") as file:
        for _ in range(100):
            file.write("\n".join(lines) + "\n")
    # VmHWM begins anew with the program; ru_maxrss would keep what this process held at the fork.
    script = (
        "import re, sys, time; from pathlib import Path; from reports.evidence import gather\n"
        "e = gather('ours', [Path(sys.argv[1])])\n"
        "peak = re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]\n"
        "print(sum(e.verdicts.values()), time.process_time(), peak)"
    )
    command = [sys.executable, "-c", script, str(path)]

    def measured() -> tuple[float, ...]:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return tuple(map(float, run.stdout.split()))

    # The better of two: the first one may have shared its core with somebody.
    cases, seconds, kilobytes = min(measured(), measured(), key=lambda run: run[1])
    assert cases == 100_000
    assert seconds < 10
    assert kilobytes < 2**20
