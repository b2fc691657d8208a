"""The count of false alarms: it counts what is refused, and goes on where it stopped."""

import pytest

from conformance.faithful import Emulations
from reports.records import read_records
from tests.conformance import false_alarms
from tests.conformance.false_alarms import ORACLES, draw, judge, main, measure


@pytest.fixture
def few(monkeypatch):
    """Two draws stand for a hundred."""
    monkeypatch.setattr(false_alarms, "HUNDRED", 2)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "bfloat16", "float16"])
def test_right_answers_are_not_refused(few, dtype):
    found = measure(dtype, 3)
    assert found.value == 0
    assert found.detail["draws"] == 2
    assert all(sum(bins) == 2 for bins in found.detail["bins"].values())
    assert 0.0 < max(found.detail["worst"].values()) <= 1.0


def test_a_refused_answer_is_counted(few, monkeypatch):
    nearest = Emulations.nearest

    def far(self, got):
        near = nearest(self, got)
        near.out.add_(1.0)
        return near

    monkeypatch.setattr(Emulations, "nearest", far)
    found = measure("bfloat16", 3)
    assert found.value == 2
    assert [alarm["number"] for alarm in found.detail["alarms"]] == [6, 7]


def test_a_draw_is_always_the_same():
    first, second = draw("float8_e4m3fn", 11), draw("float8_e4m3fn", 11)
    assert judge(first, 11) == judge(second, 11)
    assert tuple(judge(first, 11)) == ORACLES


def test_a_run_goes_on_where_it_stopped(few, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("reports.records._git_state", lambda folder: ("a" * 40, False))
    options = ["--draws", "4", "--dtype", "bfloat16", "--results", str(tmp_path / "first")]
    assert main([*options[:1], "2", *options[2:]]) == 0
    (folder,) = (tmp_path / "first").iterdir()
    made = []
    monkeypatch.setattr(false_alarms, "measure", lambda *a: made.append(a) or measure(*a))
    rest = [*options[:5], str(tmp_path / "second"), "--resume", str(folder)]
    assert main(rest) == 0
    assert made == [("bfloat16", 1)]
    (folder,) = (tmp_path / "second").iterdir()
    measured = read_records(folder / "records.jsonl").measurements
    assert len({one.name for one in measured}) == len(measured) == 2
    assert "0 alarms in 4 draws" in capsys.readouterr().out
