"""The command: what it judges, what it records, and how it goes on after an interruption."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from conformance.kernel import Compiled
from mutation import __main__ as command
from mutation.ptx import Mutation
from mutation.trial import Verdict
from reports.records import read_records
from tests.conformance.fake_kernel import FakeKernel

TEXT = """bar.sync 0;
mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0;
bar.sync 1;
griddepcontrol.launch_dependents;"""


@dataclass(frozen=True)
class Made(FakeKernel):
    """A kernel that knows which change it has; ``wait-1-remove`` is the one that is noticed."""

    change: str = ""

    def compile(self, problem, arch) -> Compiled:
        return Compiled(TEXT, b"", "")


class Trial:
    """Judges by the name of the change; line 3 is not executed."""

    cases = ("one",)
    refused = ()

    def __init__(self, *_: object) -> None:
        self.judged = []

    def executed_lines(self, kernel) -> frozenset[int]:
        return frozenset({1, 2, 4})

    def judge(self, mutant: Made) -> Verdict:
        TRIED.append(mutant.change)
        return Verdict("Deadlock", 1, "why") if mutant.change == "wait-1-remove" else Verdict("", 1)


TRIED: list[str] = []


@pytest.fixture
def ran(monkeypatch, tmp_path: Path):
    def load(name: str, transform: Mutation | None = None) -> Made:
        return Made(change="" if transform is None else transform.id)

    monkeypatch.setattr(command, "load_kernel", load)
    monkeypatch.setattr(command, "Trial", Trial)
    TRIED.clear()

    def run(*more: str) -> tuple[int, dict[str, object]]:
        before = set(tmp_path.glob("*"))
        status = command.main(
            ["--kernel", "k", "--synchronisation", "--results", str(tmp_path), *more]
        )
        (folder,) = set(tmp_path.glob("*")) - before
        found = read_records(folder / "records.jsonl").measurements
        return status, {m.name: m for m in found}

    return run


def test_each_executed_statement_is_judged_and_recorded(ran, capsys):
    status, found = ran()
    assert status == 1
    assert {name: m.detail["status"] for name, m in found.items()} == {
        "wait-1-remove": "killed",
        "wait-1-parity": "survived",
        "bar-1-remove": "survived",
        "pdl_launch-1-remove": "equivalent",
    }
    killed = found["wait-1-remove"]
    assert (killed.topic, killed.value, killed.detail["by"]) == ("mutant", 1.0, "Deadlock")
    assert killed.detail["where"] == "PTX line 2"
    assert killed.detail["before"] == TEXT.split("\n")[1]
    assert "PTX ISA" in found["pdl_launch-1-remove"].detail["reason"]
    text = capsys.readouterr().out
    assert "1 of 4 killed" in text
    assert "survived: bar-1-remove, PTX line 1: bar.sync 0;" in text


def test_parts_share_the_mutants(ran):
    names = [set(ran("--part", f"{part}/2")[1]) for part in (1, 2)]
    assert not names[0] & names[1]
    assert len(names[0] | names[1]) == 4


@pytest.mark.parametrize("part", ["0/2", "3/2", "x"])
def test_a_part_that_is_none_is_refused(ran, part, capsys):
    with pytest.raises(SystemExit):
        ran("--part", part)
    assert "--part" in capsys.readouterr().err


def test_a_run_goes_on_with_what_was_judged(ran, monkeypatch, tmp_path):
    monkeypatch.setattr("reports.records._git_state", lambda folder: ("a" * 40, False))
    _, found = ran()
    (folder,) = tmp_path.glob("*")
    path = folder / "records.jsonl"
    kept = [line for line in path.read_text().splitlines() if "bar-1-remove" not in line]
    path.write_text("\n".join(kept) + "\n")
    TRIED.clear()
    _, again = ran("--resume", str(folder))
    assert TRIED == ["bar-1-remove"]
    assert again == found


def test_a_run_of_other_sources_is_not_gone_on_with(ran, monkeypatch, tmp_path, capsys):
    ran()
    (folder,) = tmp_path.glob("*")
    monkeypatch.setattr("reports.records._git_state", lambda folder: ("b" * 40, False))
    for text, message in ((folder, "goes on only with the sources"), ("nowhere", "No such file")):
        arguments = ["--kernel", "k", "--synchronisation", "--results", str(tmp_path)]
        assert command.main([*arguments, "--resume", str(text)]) == 2
        assert message in capsys.readouterr().err
