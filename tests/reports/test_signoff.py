"""The report: its texts from gold files, hostile strings, the command, and a real browser."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from reports import html, markdown
from reports.__main__ import main
from reports.diff import diff
from reports.evidence import gather
from reports.policy import judge
from reports.records import CaseResult, Measurement
from reports.summary import Summary, summarise
from tests.reports.samples import case, write

ROOT = Path(__file__).parents[2]
GOLD = Path(__file__).parent / "gold"
CHROMIUM = shutil.which("chromium")
MADE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LIMITS = {"bad_results": 0.0, "properties": ("matches_float64",), "mutants": 1.0}
HOSTILE = "<script>alert(1)</script> ](http://evil) @everyone | `x` #1 \u202e \x00"
GROWTH = [[0, 1], [9, 4]]
MISSING = [f"sm100/role.py:{n} (PTX {n}-{n + 2})" for n in range(10, 18)]
COVERAGE = {"blocks": 300, "executed": 292, "uncovered": MISSING}
MIX = {"problem": "H 16", "classes": {"integer": 900, "fp32": 600}, "mma_flop": {"f16": 2048}}
LINES = [
    CaseResult(case(seed=1), "passed", 0.5, "out[0, 1]", seconds=2.0),
    CaseResult(case(seed=2, dtype="bfloat16"), "passed", 0.25, "out[3]", seconds=1.0),
    CaseResult(case(seed=3), "failed", 7.0, "lse[1]", reason="lse is off\nby much"),
    Measurement("ours", "benchmark", "B1", 30.5, "us"),
    Measurement("ours", "fuzz", "night", detail={"cases": 5, "findings": 0, "growth": GROWTH}),
    Measurement("ours", "mutant", "alive", detail={"status": "survived", "where": "plan.py:3"}),
    Measurement("ours", "timeline", "one run", detail={"file": "t.svg", "text": "9 steps"}),
    Measurement("ours", "coverage", "split_kv", detail=COVERAGE),
    Measurement("ours", "instructions", "split_kv", 1500.0, "warp-instructions", MIX),
]  # fmt: skip


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A record whose every byte is known but for the versions installed."""
    monkeypatch.setattr("reports.records._git_state", lambda folder: ("a" * 40, False))
    monkeypatch.setattr("reports.records._versions", lambda: {"python": "3.11.0"})
    path = write(tmp_path, *LINES)
    text = re.sub(r'"started": "[^"]*"', '"started": "2026-01-01T00:00:00+00:00"', path.read_text())
    path = tmp_path / "records.jsonl"
    path.write_text(text)
    return path


def summary_of(record: Path) -> Summary:
    evidence = gather("ours", [record], MADE)
    summary = summarise(evidence, judge("short", LIMITS, evidence), MADE, evidence)
    for part in (summary, summary["baseline"]):
        for source in part["sources"]:
            source["path"] = "results/run/records.jsonl"
    return summary


@pytest.mark.parametrize("name", ["signoff.md", "signoff.html"])
def test_the_texts_are_those_of_the_gold_files(record: Path, name: str) -> None:
    summary = summary_of(record)
    text = markdown.render(summary) if name.endswith("md") else html.render(summary)
    # Glyph positions differ from one release of the plot library to the next.
    text = re.sub(r"<svg.*?</svg>", "<svg/>", text, flags=re.S)
    gold = GOLD / name
    if not gold.exists():
        gold.parent.mkdir(exist_ok=True)
        gold.write_text(text, encoding="utf-8")
        pytest.fail(f"{gold.name} was not there and is written: look at it")
    assert text == gold.read_text(encoding="utf-8")


def hostile_summary(tmp_path: Path) -> Summary:
    strange = case(seed=1, dtype=HOSTILE, property=HOSTILE)
    lines = [
        CaseResult(strange, "failed", 2.0, HOSTILE, reason=HOSTILE),
        Measurement("ours", "mutant", HOSTILE, unit=HOSTILE, detail={"where": HOSTILE}),
    ]
    evidence = gather("ours", [write(tmp_path, *lines)], MADE)
    return summarise(evidence, judge(HOSTILE, LIMITS, evidence), MADE)


def test_hostile_strings_stay_text(tmp_path: Path) -> None:
    summary = hostile_summary(tmp_path)
    page = html.render(summary, {HOSTILE: "<svg onload='alert(1)'/>"})
    assert "<script" not in page
    assert "onload" not in page
    text = markdown.render(summary)
    assert not re.search(r"(?<!\\)<script", text)
    assert not re.search(r"(?<!\\)\]\(http", text)
    assert "\u202e" not in text + page
    assert "@everyone" not in text
    for line in text.splitlines():
        assert len(re.findall(r"(?<!\\)\|", line)) in (0, 4, 5, 6)


def test_the_comment_stays_short_enough(record: Path) -> None:
    summary = summary_of(record)
    summary["warnings"] = [f"warning {number}" for number in range(10_000)]
    text = markdown.render(summary)
    assert len(text) < 65_000
    assert text.endswith("The HTML report has the rest.*\n")


def test_a_drawing_is_shown_as_an_image(record: Path) -> None:
    page = html.render(summary_of(record), {"one run": "<svg>drawn</svg>"})
    assert "data:image/svg+xml;base64," in page
    assert "http" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.S)


def test_a_difference_is_told_line_by_line(record: Path) -> None:
    before = summary_of(record)
    assert diff(before, before) == "Nothing changed.\n"
    after = json.loads(json.dumps(before))
    after["verdict"] = "SIGNED OFF"
    after["rules"][0]["ok"] = True
    after["bad"] = []
    after["measurements"]["benchmark"][0]["value"] = 99.0
    del after["measurements"]["mutant"]
    text = diff(before, after)
    assert "verdict: NOT SIGNED OFF -> SIGNED OFF" in text
    assert "rule bad_results: 1, limit ≤ 0, NOT met -> 1, limit ≤ 0, met" in text
    assert f"no longer bad, or no longer run: {before['bad'][0]['id']}" in text
    assert "benchmark B1: 30.5 us -> 99.0 us" in text
    assert "mutant alive: survived -> -" in text


def policy_file(tmp_path: Path, ratio: float) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(f"[mine]\nworst_ratio = {ratio}\n")
    return path


def test_the_command_writes_three_files_and_its_exit_code_is_the_verdict(
    record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["signoff", "--kernel", "ours", "--records", str(record), "--policy", "mine"]
    for ratio, code in ((10.0, 0), (1.0, 1)):
        folder = tmp_path / str(ratio)
        policy = ["--policy-file", str(policy_file(tmp_path, ratio)), "--to", str(folder)]
        assert main([*common, *policy]) == code
        assert sorted(path.name for path in folder.iterdir()) == [
            "signoff.html",
            "signoff.json",
            "signoff.md",
        ]
    out = capsys.readouterr().out
    assert "ours: SIGNED OFF by policy mine" in out
    assert "not met: worst_ratio is 7, must be ≤ 1" in out
    signoffs = [str(tmp_path / name / "signoff.json") for name in ("10.0", "1.0")]
    assert main(["diff", *signoffs]) == 0
    assert "verdict: SIGNED OFF -> NOT SIGNED OFF" in capsys.readouterr().out


def test_wrong_use_is_answered_in_a_line(
    record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in (
        (["signoff", "--kernel", "k", "--records", "nowhere"], "no file or folder nowhere"),
        (["signoff", "--kernel", "k", "--records", str(record), "--policy", "x"], "'x' is none of"),
        (["diff", str(record), str(record)], ""),
        (["validate", str(tmp_path / "none.jsonl")], "no file or folder"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert message in error
        assert error.count("\n") == 1
    assert main(["validate", str(record)]) == 0
    assert "3 CaseResult, 6 Measurement, 1 RunSummary" in capsys.readouterr().out


def test_a_record_of_an_unknown_version_is_named(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record.write_text(record.read_text().replace('"schema_version": 3', '"schema_version": 9'))
    assert main(["signoff", "--kernel", "ours", "--records", str(record)]) == 2
    assert f"{record}:1: schema_version: 9 is unknown" in capsys.readouterr().err


def test_help_says_what_each_command_is_for() -> None:
    command = [sys.executable, "-m", "reports", "signoff", "--help"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for word in ("--kernel", "--records", "--baseline", "--policy", "exits with 0 if signed off"):
        assert word in text


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("chromium is not on PATH")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


CONTRAST = """() => {
  const linear = v => v <= 10 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const light = colour => { const [r, g, b] = colour.match(/[\\d.]+/g).map(Number);
    return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b); };
  const page = light(getComputedStyle(document.body).backgroundColor);
  const texts = document.querySelectorAll("p, td, th, h1, h2, h3, a, caption, figcaption, summary");
  const inks = [...texts].map(text => light(getComputedStyle(text).color));
  return Math.min(...inks.map(ink => (Math.max(ink, page) + .05) / (Math.min(ink, page) + .05)));
}"""
"""The least contrast of any text with the page. Source: WCAG 2.2, contrast ratio."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_every_section(
    browser: Any, record: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    path = tmp_path / "signoff.html"
    path.write_text(html.render(summary_of(record), {"one run": "<svg/>"}), encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    assert not said
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
    sections = page.locator("section")
    assert sections.count() == 14
    for index in range(sections.count()):
        assert sections.nth(index).bounding_box()["height"] > 40
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) >= 4.5
    # Every link, drawer and table that scrolls is reached by the Tab key.
    wanted = page.locator("a, summary, .wide:not(details .wide)").count()
    reached = 0
    for _ in range(wanted):
        page.keyboard.press("Tab")
        reached += page.evaluate("document.activeElement !== document.body")
    assert reached == wanted
    page.close()
