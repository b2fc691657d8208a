"""The page counts each mutant once and shows what was not killed, with its reason."""

from __future__ import annotations

from mutation.table import main, page
from reports.records import Measurement, RecordWriter

REASON = "in all 5 recorded schedules the same"


def measured(name: str, status: str, by: str = "", reason: str = "") -> Measurement:
    detail = {"status": status, "by": by, "cases": 1, "reason": reason, "where": "PTX line 7"}
    detail |= {"kind": name.split("-")[0], "before": f"{name} before; // a remark", "after": ""}
    return Measurement("k fp8", "mutant", name, float(bool(by)), "killed", detail)


def written(folder, *found: Measurement):
    with RecordWriter("mutation", folder) as records:
        for one in found:
            records.measure(one)
        return records.path


def test_the_page_has_counts_killers_survivors_and_reasons(tmp_path):
    path = written(
        tmp_path,
        measured("wait-1-remove", "killed", "races"),
        measured("wait-2-remove", "survived"),
        measured("bar-1-remove", "equivalent", reason=REASON),
    )
    text = page([path])
    assert "| wait | 2 | 1 | 0 | 1 |" in text
    assert "| bar | 1 | 0 | 1 | 0 |" in text
    assert "| all | 3 | 1 | 1 | 1 |" in text
    assert "| races | 1 |" in text
    assert "- `wait-2-remove`, PTX line 7: `wait-2-remove before;`" in text
    assert "In all 5 recorded schedules the same:\n\n- `bar-1-remove`" in text
    assert "`wait-1-remove`" not in text


def test_of_a_mutant_in_two_records_the_last_counts(tmp_path, capsys):
    first = written(tmp_path / "a", measured("wait-1-remove", "survived"))
    second = written(tmp_path / "b", measured("wait-1-remove", "killed", "Deadlock"))
    main([str(first), str(second)])
    text = capsys.readouterr().out
    assert "| all | 1 | 1 | 0 | 0 |" in text
    assert "### Survivors" not in text
