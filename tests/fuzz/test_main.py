"""The command line as a whole, in processes of its own: signals, exit codes, and going on."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fuzz.__main__ import main
from fuzz.worker import ROOT
from reports.records import read_records
from tests.fuzz.kernels import NAME


def started(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fuzz", *arguments]
    folders = ["--corpus", str(tmp_path / "corpus"), "--results", str(tmp_path / "results")]
    return subprocess.Popen(
        [*command, *folders], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
    )  # fmt: skip


def records_of(tmp_path: Path) -> Path:
    """The newest records, once there are some results in them."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for path in sorted((tmp_path / "results").glob("*/records.jsonl"), reverse=True):
            if path.read_text(encoding="ascii").count("\n") > 5:
                return path
        time.sleep(0.1)
    raise AssertionError("no results within two minutes")


def test_sigint_ends_with_a_summary_and_kill_9_loses_only_the_case_in_flight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ("run", "--kernel", NAME.format("right_everywhere"), "--workers", "1")
    first = started(tmp_path, *run)
    path = records_of(tmp_path)
    first.kill()
    first.communicate()
    killed = read_records(path)
    assert killed.summary is None
    assert len(killed.results) >= 4

    second = started(tmp_path, *run, "--seed", "1")
    while records_of(tmp_path) == path:
        time.sleep(0.1)
    second.send_signal(signal.SIGINT)
    said, _ = second.communicate(timeout=120)
    assert second.returncode == 130, said
    assert re.search(r"\d+ cases, \d+:\d\d, .* findings 0\n", said), said
    assert read_records(records_of(tmp_path)).summary is not None


def test_a_cut_campaign_goes_on_with_its_own_sources_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = ["--corpus", str(tmp_path / "corpus"), "--results", str(tmp_path / "results")]
    kernel = ["--kernel", NAME.format("right_everywhere"), "--workers", "1", *folders]
    monkeypatch.setattr("reports.records._git_state", lambda folder: ("0" * 40, False))
    assert main(["run", "--cases", "6", *kernel]) == 0
    (folder,) = (tmp_path / "results").iterdir()
    assert main(["run", "--cases", "9", "--resume", str(folder), *kernel]) == 0
    newest = max((tmp_path / "results").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    results = read_records(newest / "records.jsonl").results
    assert results[:6] == read_records(folder / "records.jsonl").results
    assert len(results) == 9
    monkeypatch.setattr("reports.records._git_state", lambda folder: ("1" * 40, False))
    assert main(["run", "--cases", "9", "--resume", str(folder), *kernel]) == 2
    assert "a run goes on only with the sources it began with" in capsys.readouterr().err


def test_a_finding_is_replayed_minimised_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = ["--corpus", str(tmp_path / "corpus")]
    faulty = ["--kernel", NAME.format("wrong_if_large")]
    budget = ["--stop-at-first", "--shrink-seconds", "0", "--workers", "1"]
    folders = ["--results", str(tmp_path / "results"), *corpus]
    assert main(["run", *faulty, *budget, *folders]) == 1
    paths = sorted((tmp_path / "corpus" / "faults").glob("*/*.json"))
    case_id = paths[0].stem
    assert main(["replay", case_id[:10], *corpus]) == 1
    assert main(["replay", case_id, *corpus, "--kernel", NAME.format("right_everywhere")]) == 0
    assert main(["minimize", case_id, *corpus]) == 0
    assert "minimal: " in capsys.readouterr().out
    cases = tmp_path / "cases"
    assert main(["export", *corpus, "--cases-folder", str(cases)]) == 0
    exported = [json.loads(path.read_text()) for path in cases.glob("*.json")]
    assert len(exported) == len(list(cases.glob("test_*.py"))) == 1
    assert exported[0]["problem"]["dims"]["num_heads"] == 3


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "--kernel", "optimised"], "did you mean optimized?"),
        (["run", "--workers", "0"], "--workers: 0 is below 1"),
        (["diff", "--baseline", "nowhere"], "--baseline: 'nowhere' is no folder"),
        (["replay", "ffff"], "'ffff' is no case and no fault of the corpus"),
        (["run", "--corpus", "pyproject.toml"], "--corpus: pyproject.toml cannot be written"),
        (["run", "--resume", "nowhere"], "--resume: "),
        (["schedule", "--case", "{}"], "--replay: the JSON given: kernel: missing key"),
    ],
)
def test_what_cannot_be_done_is_refused_before_it_begins(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = [] if "--corpus" in arguments else ["--corpus", str(tmp_path / "corpus")]
    assert main([*arguments, *corpus]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.slow
def test_a_ray_campaign_survives_the_loss_of_a_worker(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra 'cluster'")
    run = ("run", "--kernel", NAME.format("slow"), "--workers", "2", "--cases", "60")
    campaign = started(tmp_path, *run, "--ray", "local")
    said: list[str] = []
    assert campaign.stdout is not None
    killed = False
    for text in campaign.stdout:
        said.append(text)
        found = re.match(r"search 0 is process (\d+)", text)
        if found and not killed:
            records_of(tmp_path)
            os.kill(int(found[1]), signal.SIGKILL)
            killed = True
    assert campaign.wait(timeout=120) == 0, "".join(said)
    assert "search 0 is lost: another takes its place\n" in said
    assert sum("search 0 is process" in text for text in said) == 2
    records = read_records(records_of(tmp_path))
    assert records.summary is not None
    assert len(records.results) >= 60
