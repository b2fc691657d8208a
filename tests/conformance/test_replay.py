"""Finding a case to run again: where it may be, and what is said of one that is malformed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from conformance.kernel import UsageError
from conformance.replay import find_case
from reports.records import CaseResult, RecordWriter
from tests.conformance import cases

CASE = cases.case(3, 40)


def test_json_is_a_case(tmp_path: Path) -> None:
    assert find_case(json.dumps(CASE.to_json()), tmp_path) == CASE


def test_a_file_holds_a_case(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_text(json.dumps(CASE.to_json(), indent=2))
    assert find_case(str(path), tmp_path) == CASE


def test_a_line_of_the_records_is_a_case(tmp_path: Path) -> None:
    line = json.dumps({"kind": "result", **CaseResult(CASE, "passed").to_json()})
    assert find_case(line, tmp_path) == CASE


def test_an_id_is_found_in_the_records(tmp_path: Path) -> None:
    with RecordWriter("one", tmp_path) as writer:
        writer.write(CaseResult(cases.case(7), "passed"))
    with RecordWriter("two", tmp_path) as writer:
        writer.write(CaseResult(CASE, "passed"))
    broken = tmp_path / "20990101T000000Z-three"
    broken.mkdir()
    (broken / "records.jsonl").write_text("not a record\n")
    assert find_case(CASE.id, tmp_path) == CASE


def test_an_id_is_found_among_the_kept_cases(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "a.json").write_text("{}")
    (kept / "b.json").write_text(json.dumps(CASE.to_json()))
    assert find_case(CASE.id, tmp_path, kept) == CASE


def test_an_id_that_is_nowhere_is_refused(tmp_path: Path) -> None:
    with RecordWriter("one", tmp_path) as writer:
        writer.write(CaseResult(CASE, "passed"))
    with pytest.raises(UsageError, match=r"^--replay: no case 0123456789abcdef among the 1 under"):
        find_case("0123456789abcdef", tmp_path, tmp_path / "none")


@pytest.mark.parametrize("text", ["no/such/file.json", "0123", ""])
def test_what_is_no_case_at_all_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="is no file, no JSON object and no case id"):
        find_case(text, tmp_path)


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"seed": None}, "seed: None is not of type int"),
    ({"colour": 1}, "colour: unknown key, known are kernel, engine"),
    ({"property": "is_nice"}, "property: 'is_nice' is none of completes, matches_float64"),
    ({"engine": "gpu"}, "engine: 'gpu' is none of simulator, cuda"),
    ({"policy": "lucky"}, "policy 'lucky' is not one of fair"),
    ({"num_splits": 300}, "num_splits: 300 is outside [1, 256]"),
    ({"problem": {}}, "problem lacks the key 'dims'"),
    ({"problem": {**CASE.problem, "page_size": 48}}, "page_size must be one of (2, 4, 8, 16, 32"),
    ({"problem": {**CASE.problem, "seq_lens": [-1]}}, "seq_lens[0] must be in [0, 2147483647]"),
    ({"recipe": {**CASE.recipe, "page_order": "sorted"}}, "page_order must be one of ('random'"),
    ({"recipe": {**CASE.recipe, "values": "odd"}}, "recipe: values must be one of"),
]


@pytest.mark.parametrize(("changes", "message"), MALFORMED)
def test_a_malformed_case_is_refused_by_key_value_and_limit(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = tmp_path / "case.json"
    path.write_text(json.dumps({**CASE.to_json(), **changes}))
    with pytest.raises(UsageError, match=f"^--replay: .*{re.escape(message)}"):
        find_case(str(path), tmp_path)


def test_broken_json_is_refused_by_file_and_place(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_text('{"kernel": }')
    with pytest.raises(UsageError, match=f"^--replay: {path}: Expecting value: line 1 column 12"):
        find_case(str(path), tmp_path)
