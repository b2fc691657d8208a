"""The records format: what is written is read back, and what is not a record is refused."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from reports.records import (
    SCHEMA_FILE,
    TOPICS,
    Case,
    CaseResult,
    Measurement,
    RecordError,
    RecordWriter,
    RunHeader,
    RunSummary,
    canonical_json,
    read_records,
)

ROOT = Path(__file__).parents[2]
CASE = Case(
    kernel="some-kernel",
    engine="simulator",
    arch="sm_100a",
    property="matches_float64",
    problem={"seq_lens": [3, 5], "softmax_scale": 0.1},
    recipe={"magnitude": 1.0},
    seed=7,
    policy="fair",
    policy_seed=0,
    checks=("bounds", "deadlock"),
    num_sms=148,
    num_splits=None,
)
PASSED = CaseResult(CASE, "passed", 0.25, "out[0, 0, 1, 2]", -0.5, 1.5)
UNBOUNDED = CaseResult(CASE, "failed", math.inf, "lse[0, 0, 0]", None, reason="lse is +inf")
STOPPED = CaseResult(CASE, "error", error_class="OutOfBounds", ptx_line=812, reason="read past it")


def write(tmp_path: Path, *results: CaseResult) -> Path:
    with RecordWriter("some-tool", tmp_path, device="a laptop") as writer:
        for result in results:
            writer.write(result)
    return writer.path


def with_line(tmp_path: Path, line: str) -> Path:
    """A file whose second line is ``line``."""
    path = write(tmp_path, PASSED)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], line, *lines[2:]]) + "\n")
    return path


def result_line(**changes: object) -> str:
    return json.dumps({"kind": "result", **PASSED.to_json(), **changes})


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    path = write(tmp_path, PASSED, UNBOUNDED, STOPPED)
    records = read_records(path)
    assert records.results == (PASSED, UNBOUNDED, STOPPED)
    assert records.summary == RunSummary(1, {"passed": 1, "failed": 1, "error": 1})
    assert not records.torn
    assert re.fullmatch(r"\d{8}T\d{6}Z-some-tool", path.parent.name)


def test_a_nan_ratio_survives(tmp_path: Path) -> None:
    (result,) = read_records(write(tmp_path, CaseResult(CASE, "failed", math.nan))).results
    assert result.ratio is not None
    assert math.isnan(result.ratio)


def test_measurements_stand_between_results(tmp_path: Path) -> None:
    measured = Measurement("some-kernel", "mutant", "lt-to-le", detail={"status": "killed"})
    unbounded = Measurement("some-kernel", "benchmark", "B1", math.inf, "us")
    with RecordWriter("some-tool", tmp_path) as writer:
        writer.write(PASSED)
        writer.measure(measured)
        writer.measure(unbounded)
        writer.write(STOPPED)
    records = read_records(writer.path)
    assert records.results == (PASSED, STOPPED)
    assert records.measurements == (measured, unbounded)
    schema = json.loads(SCHEMA_FILE.read_text())
    for line in writer.path.read_text().splitlines():
        jsonschema.validate(json.loads(line), schema)


def test_schema_and_module_know_the_same_topics() -> None:
    schema = json.loads(SCHEMA_FILE.read_text())
    assert schema["$defs"]["measurement"]["properties"]["topic"]["enum"] == list(TOPICS)
    with pytest.raises(RecordError, match="topic: 'weather' is none of compilation"):
        Measurement("some-kernel", "weather", "rain")


def test_the_header_says_with_what_the_run_was_made(tmp_path: Path) -> None:
    header = read_records(write(tmp_path)).header
    assert (header.tool, header.device) == ("some-tool", "a laptop")
    assert header.versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "numpy" in header.versions


def test_the_header_names_the_revision_and_whether_files_differ(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    source = tmp_path / "reports" / "records.py"
    source.write_bytes((ROOT / "reports" / "records.py").read_bytes())
    collect = (
        "from reports.records import RunHeader as H; h = H.collect('t', 'd'); "
        "print(h.revision, h.dirty)"
    )

    def header() -> list[str]:
        command = [sys.executable, "-B", "-c", collect]
        output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return output.stdout.split()

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True)

    assert header() == ["None", "None"]
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    revision, dirty = header()
    assert re.fullmatch("[0-9a-f]{40}", revision)
    assert dirty == "False"
    source.write_text(source.read_text() + "\n")
    assert header() == [revision, "True"]


def test_two_runs_of_one_second_get_folders_of_their_own(tmp_path: Path) -> None:
    assert len({write(tmp_path).parent for _ in range(3)}) == 3


def test_every_line_obeys_the_schema(tmp_path: Path) -> None:
    schema = json.loads(SCHEMA_FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    lines = write(tmp_path, PASSED, UNBOUNDED, STOPPED).read_text().splitlines()
    assert len(lines) == 5
    for line in lines:
        jsonschema.validate(json.loads(line), schema)


BAD_RESULTS = [
    (result_line(verdict="fine"), "verdict: 'fine' is none of passed"),
    (result_line(colour="red"), "colour: unknown key"),
    (result_line(case={**CASE.to_json(), "seed": "7"}), "seed: '7' is not of type int"),
    (result_line(case={**CASE.to_json(), "seed": True}), "seed: True is not of type int"),
    (result_line(case={"kernel": "k"}), "engine: missing key"),
    (result_line(ratio="large"), "ratio: 'large' is not of type float"),
    ('{"kind": "result", "verdict": "passed"}', "case: missing key"),
    ('{"kind": "remark"}', "kind: 'remark' is none of header, result, measurement, summary"),
]


@pytest.mark.parametrize(("line", "message"), BAD_RESULTS)
def test_schema_and_reader_refuse_the_same_lines(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(line), json.loads(SCHEMA_FILE.read_text()))
    path = with_line(tmp_path, line)
    with pytest.raises(RecordError, match=rf"^{re.escape(str(path))}:2: {re.escape(message)}"):
        read_records(path)


@pytest.mark.parametrize("line", ['{"kind": "result"', "[1]", "", "\x00", "é"])
def test_a_malformed_line_is_named_by_file_and_line(tmp_path: Path, line: str) -> None:
    path = with_line(tmp_path, line)
    with pytest.raises(RecordError, match=rf"^{re.escape(str(path))}:2: not a JSON object"):
        read_records(path)


def test_an_unknown_schema_version_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, PASSED)
    path.write_text(path.read_text().replace('"schema_version": 3', '"schema_version": 4'))
    with pytest.raises(RecordError, match=r":1: schema_version: 4 is unknown.* knows \(1, 2, 3\)"):
        read_records(path)


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_of_an_earlier_schema_version_is_read(tmp_path: Path, version: int) -> None:
    path = write(tmp_path, PASSED, UNBOUNDED)
    now = read_records(path)
    path.write_text(path.read_text().replace('"schema_version": 3', f'"schema_version": {version}'))
    schema = json.loads((SCHEMA_FILE.parent / f"records-v{version}.schema.json").read_text())
    for line in path.read_text().splitlines():
        jsonschema.validate(json.loads(line), schema)
    assert read_records(path) == now


def test_a_file_without_its_header_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, PASSED)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(RecordError, match=r":1: kind: the first line"):
        read_records(path)
    path.write_text("")
    with pytest.raises(RecordError, match=r":1: the file ends before its header does"):
        read_records(path)


def test_a_torn_last_line_is_dropped_wherever_it_tears(tmp_path: Path) -> None:
    path = write(tmp_path, PASSED, UNBOUNDED)
    header, first, second, _ = path.read_bytes().splitlines(keepends=True)
    for length in range(1, len(second) - 1):
        path.write_bytes(header + first + second[:length])
        records = read_records(path)
        assert records.results == (PASSED,)
        assert records.torn
        assert records.summary is None


def test_a_whole_last_line_counts_without_its_newline(tmp_path: Path) -> None:
    path = write(tmp_path, PASSED)
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    records = read_records(path)
    assert records.summary is not None
    assert not records.torn


def test_a_killed_writer_leaves_every_finished_case(tmp_path: Path) -> None:
    script = (
        "import sys, itertools\n"
        "from reports.records import CaseResult, Case, RecordWriter\n"
        f"case = Case.from_json({CASE.to_json()!r})\n"
        f"with RecordWriter('killed', {str(tmp_path)!r}) as writer:\n"
        "    for ratio in itertools.count():\n"
        "        writer.write(CaseResult(case, 'passed', float(ratio)))\n"
        "        print(ratio, flush=True)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    for reported in child.stdout:
        if int(reported) >= 50:
            break
    os.kill(child.pid, signal.SIGKILL)
    reported_last = int((child.stdout.read().splitlines() or [reported])[-1])
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    records = read_records(next(tmp_path.glob("*-killed/records.jsonl")))
    ratios = [result.ratio for result in records.results]
    assert ratios == list(range(len(ratios)))
    assert len(ratios) > reported_last
    assert records.summary is None


def test_an_exception_still_writes_the_summary(tmp_path: Path) -> None:
    writer = RecordWriter("stopped", tmp_path)
    writer.write(PASSED)
    with pytest.raises(KeyboardInterrupt), writer:
        raise KeyboardInterrupt
    assert read_records(writer.path).summary == RunSummary(1, {"passed": 1})


def test_a_value_json_cannot_hold_is_refused_before_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(tmp_path, CaseResult(CASE, "passed", seconds=math.nan))


def test_the_id_depends_on_values_and_not_on_the_order_of_keys() -> None:
    values = CASE.to_json()
    shuffled = {key: values[key] for key in reversed(values)}
    assert Case.from_json(shuffled).id == CASE.id
    assert re.fullmatch("[0-9a-f]{16}", CASE.id)
    assert Case.from_json({**values, "seed": 8}).id != CASE.id


def test_the_id_is_pinned() -> None:
    # Names under results/ and fuzz/cases/ would all change with it.
    assert canonical_json(CASE.problem) == (
        '{"seq_lens":[3,5],"softmax_scale":"0x1.999999999999ap-4"}'
    )
    assert CASE.id == "092364b87de67a63"


def test_problems_are_counted_once(tmp_path: Path) -> None:
    values = CASE.to_json()
    same = Case.from_json({**values, "seed": 8})
    other = Case.from_json({**values, "problem": {"seq_lens": [4]}})
    results = [CaseResult(case, "passed") for case in (CASE, same, other)]
    assert RunSummary.of(results) == RunSummary(2, {"passed": 3})


def test_the_module_imports_the_standard_library_only() -> None:
    script = (
        "import sys; before = set(sys.modules); import reports.records; "
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    )
    output = subprocess.run(
        [sys.executable, "-S", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    foreign = set(output.stdout.split()) - set(sys.stdlib_module_names) - {"reports"}
    assert not foreign


def test_a_header_can_be_made_by_hand() -> None:
    header = RunHeader("tool", None, None, {}, "cpu", "2026-01-01T00:00:00+00:00")
    assert RunHeader.from_json(header.to_json()) == header
