"""Rules: each is met, is not met, and is not met without evidence."""

import math
import re
from pathlib import Path

import pytest

from reports.evidence import Evidence, gather
from reports.policy import RULES, NamesRule, PolicyError, Verdict, judge, read_policy
from reports.records import CaseResult, Measurement
from tests.reports.samples import case, write

ROOT = Path(__file__).parents[2]
PASSED = [CaseResult(case(seed=seed), "passed", 0.5) for seed in range(3)]


def measured(topic: str, name: str = "one", value: float | None = None, **detail: object):
    return Measurement("ours", topic, name, value, detail=dict(detail))


COMPILED = {"registers": 96, "spill_bytes": 0, "local_bytes": 0}
GOOD = [
    *PASSED,
    measured("sanitizer", "races", 0.0, runs=4),
    measured("compilation", **COMPILED),
    measured("coverage", blocks=100, executed=99),
    measured("instructions", value=100.0, classes={"fp32": 60, "integer": 40}),
    measured("timeline", file="timeline.svg"),
    *(measured("mutant", f"m{i}", status="killed") for i in range(9)),
    measured("mutant", "same", status="equivalent"),
    measured("false_alarms", "bfloat16, hundred 0", 0.0, draws=10_000),
    measured("fuzz", "night", cases=5000, findings=0),
    measured("benchmark", "B1", 30.0),
]
LIMITS = {
    "bad_results": 0.0,
    "expected_failures": 0.0,
    "distinct_problems": 1.0,
    "worst_ratio": 1.0,
    "properties": ("matches_float64",),
    "revisions": 1.0,
    "changed_checkouts": 1.0,
    "killed_runs": 0.0,
    "sanitizers": ("races",),
    "sanitizer_findings": 0.0,
    "compilations": 1.0,
    "registers": 255.0,
    "spill_bytes": 0.0,
    "local_bytes": 0.0,
    "block_coverage": 0.95,
    "instruction_mixes": 1.0,
    "timelines": 1.0,
    "mutants": 10.0,
    "mutation_score": 1.0,
    "raw_mutation_score": 0.9,
    "false_alarm_draws": 10_000.0,
    "false_alarms": 0.0,
    "fuzz_cases": 1000.0,
    "fuzz_findings": 0.0,
    "slowdown": 1.05,
}


def evidence_of(tmp_path: Path, *lines: object) -> Evidence:
    return gather("ours", [write(tmp_path, *lines)])  # type: ignore[arg-type]


def verdict_of(tmp_path: Path, *lines: object) -> Verdict:
    base = evidence_of(tmp_path / "before", GOOD[-1])
    return judge("all", LIMITS, evidence_of(tmp_path, *lines), base)


def test_every_rule_is_tried_here() -> None:
    assert LIMITS.keys() == RULES.keys()


def test_good_evidence_is_signed_off(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, *GOOD)
    assert verdict.signed_off, [finding for finding in verdict.findings if not finding.ok]
    assert verdict.text == "SIGNED OFF"
    assert not verdict.not_asked


def test_without_evidence_no_rule_is_met(tmp_path: Path) -> None:
    empty = gather("nobody", [write(tmp_path, *GOOD)])
    verdict = judge("all", LIMITS, empty)
    assert not any(finding.ok for finding in verdict.findings)
    assert all(finding.value is None for finding in verdict.findings)
    assert verdict.text == "NOT SIGNED OFF"


BAD: dict[str, object] = {
    "bad_results": CaseResult(case(seed=9), "failed", 0.5),
    "expected_failures": CaseResult(case(seed=9), "expected_failure", 3.0),
    "worst_ratio": CaseResult(case(seed=9), "passed", 1.5),
    "sanitizer_findings": measured("sanitizer", "bounds", 2.0),
    "registers": measured("compilation", "big", registers=300, spill_bytes=0, local_bytes=0),
    "spill_bytes": measured("compilation", "big", registers=96, spill_bytes=8, local_bytes=0),
    "local_bytes": measured("compilation", "big", registers=96, spill_bytes=0, local_bytes=8),
    "block_coverage": measured("coverage", "big", blocks=100, executed=10),
    "mutation_score": measured("mutant", "alive", status="survived"),
    "raw_mutation_score": measured("mutant", "alive", status="survived"),
    "false_alarms": measured("false_alarms", "float16", 1.0, draws=1),
    "fuzz_findings": measured("fuzz", "day", cases=1, findings=1),
    "slowdown": measured("benchmark", "B1", 60.0),
}


@pytest.mark.parametrize("rule", BAD)
def test_one_bad_line_fails_its_rule(tmp_path: Path, rule: str) -> None:
    verdict = verdict_of(tmp_path, *GOOD, BAD[rule])
    (finding,) = (finding for finding in verdict.findings if finding.rule == rule)
    assert not finding.ok
    assert finding.value is not None
    assert not verdict.signed_off


def test_too_little_evidence_fails_too(tmp_path: Path) -> None:
    fewer = [line for line in GOOD if getattr(line, "topic", "") != "mutant"]
    verdict = verdict_of(tmp_path, *fewer, measured("mutant", status="killed"))
    few = {finding.rule: finding for finding in verdict.findings}
    assert not few["mutants"].ok
    assert few["mutation_score"].ok
    both = {"properties": ("matches_float64", "completes")}
    other = judge("one", both, evidence_of(tmp_path, *GOOD))
    assert other.findings[0].value == "missing: completes"
    assert not other.signed_off


def test_a_killed_run_and_a_second_revision_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reports.records._git_state", lambda folder: ("a" * 40, False))
    first = write(tmp_path, *PASSED)
    monkeypatch.setattr("reports.records._git_state", lambda folder: ("b" * 40, True))
    second = write(tmp_path, *PASSED, ended=False)
    verdict = judge(
        "runs",
        {"revisions": 1.0, "changed_checkouts": 0.0, "killed_runs": 0.0},
        gather("ours", [first, second]),
    )
    assert [finding.value for finding in verdict.findings] == ["2", "1", "1"]
    assert not any(finding.ok for finding in verdict.findings)


def test_a_number_that_is_missing_or_none_meets_nothing(tmp_path: Path) -> None:
    for line in (measured("compilation", spill_bytes="?"), measured("compilation")):
        finding = judge("one", {"spill_bytes": 0.0}, evidence_of(tmp_path, line)).findings[0]
        assert not finding.ok
        assert finding.value == "nan"
    nan = CaseResult(case(), "failed", math.nan)
    assert not judge("one", {"worst_ratio": 1.0}, evidence_of(tmp_path, nan)).signed_off


def test_a_policy_without_rules_signs_nothing_off(tmp_path: Path) -> None:
    assert not judge("empty", {}, evidence_of(tmp_path, *GOOD)).signed_off


def test_the_repository_s_policies_are_read() -> None:
    smoke = read_policy(ROOT / "signoff.toml", "smoke")
    full = read_policy(ROOT / "signoff.toml", "full")
    assert smoke.keys() < full.keys()
    for name, limit in {**smoke, **full}.items():
        assert isinstance(RULES[name], NamesRule) == isinstance(limit, tuple)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a", "is not TOML"),
        ("[b]\n", "policy: 'a' is none of b in"),
        ("[a]\nbad_result = 0\n", "a.bad_result: unknown rule; did you mean bad_results?"),
        ("[a]\nworst_ratio = '1'\n", "a.worst_ratio: '1' is not a number"),
        ("[a]\nworst_ratio = nan\n", "a.worst_ratio: nan is not a number"),
        ("[a]\nworst_ratio = true\n", "a.worst_ratio: True is not a number"),
        ("[a]\nproperties = []\n", "a.properties: [] is not a list of names"),
    ],
)
def test_a_malformed_policy_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "signoff.toml"
    path.write_text(text)
    with pytest.raises(PolicyError, match=re.escape(message)):
        read_policy(path, "a")
    with pytest.raises(PolicyError, match="cannot be read: No such file"):
        read_policy(tmp_path / "nowhere", "a")
