"""The rules that a kernel is signed off by: thresholds from ``signoff.toml``, each judged alone.

A policy is a table of that file, rule -> limit. Missing evidence fails its rule: what nobody looked
for was not found absent. Rules that the policy does not name are not judged; the report lists them.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reports.evidence import Evidence
from reports.records import BAD_VERDICTS, Measurement

Limit = float | tuple[str, ...]


class PolicyError(ValueError):
    """A policy that cannot be used; the message names file, rule, value and what is allowed."""


@dataclass(frozen=True)
class Finding:
    """One rule judged: ``value`` is None where there is no evidence, which is never ``ok``."""

    rule: str
    asks: str
    limit: str
    value: str | None
    ok: bool


@dataclass(frozen=True)
class Verdict:
    """All rules of a policy, judged; signed off only if each is met and there is at least one."""

    policy: str
    findings: tuple[Finding, ...]
    not_asked: tuple[str, ...]

    @property
    def signed_off(self) -> bool:
        """Whether every rule is met."""
        return bool(self.findings) and all(finding.ok for finding in self.findings)

    @property
    def text(self) -> str:
        """The verdict in capitals, as it stands on the report."""
        return "SIGNED OFF" if self.signed_off else "NOT SIGNED OFF"


Measured = Callable[[Evidence, Evidence | None], float | None]
Named = Callable[[Evidence], Sequence[str] | None]


@dataclass(frozen=True)
class Rule:
    """What one rule asks for; ``measure`` gives the number that the limit bounds, or None."""

    asks: str
    is_minimum: bool
    measure: Measured

    def judge(self, name: str, limit: float, evidence: Evidence, base: Evidence | None) -> Finding:
        """Return the finding for ``limit``; a NaN meets nothing."""
        value = self.measure(evidence, base)
        met = value is not None and (value >= limit if self.is_minimum else value <= limit)
        sign = "≥" if self.is_minimum else "≤"
        shown = None if value is None else f"{value:.6g}"
        return Finding(name, self.asks, f"{sign} {limit:.6g}", shown, met)


@dataclass(frozen=True)
class NamesRule:
    """A rule whose limit is a list of names, all of which ``present`` must have."""

    asks: str
    present: Named

    def judge(self, name: str, limit: tuple[str, ...], evidence: Evidence) -> Finding:
        """Return the finding: which of the names are missing."""
        present = self.present(evidence)
        if present is None:
            return Finding(name, self.asks, ", ".join(limit), None, False)
        missing = [wanted for wanted in limit if wanted not in present]
        shown = f"missing: {', '.join(missing)}" if missing else "all"
        return Finding(name, self.asks, ", ".join(limit), shown, not missing)


def _if_ran(value: Callable[[Evidence], float]) -> Measured:
    """A number that means something only where cases were judged."""
    return lambda evidence, _: value(evidence) if evidence.problems else None


def _bad(evidence: Evidence) -> float:
    return sum(evidence.verdicts[verdict] for verdict in BAD_VERDICTS)


def _worst_ratio(evidence: Evidence, _: Evidence | None) -> float | None:
    ratios = [t.worst_ratio for t in evidence.properties.values() if t.worst_ratio is not None]
    return max(ratios, default=None)


def _detail(measurement: Measurement, key: str) -> float:
    """A number of the detail; NaN, which meets no limit, where it is none."""
    value = measurement.detail.get(key)
    return float(value) if isinstance(value, int | float) else math.nan


def _total(topic: str, key: str | None = None) -> Measured:
    """The sum over a topic's measurements of their value, or of a key of their detail."""

    def measure(evidence: Evidence, _: Evidence | None) -> float | None:
        entries = evidence.of(topic).values()
        if not entries:
            return None
        return sum(
            (math.nan if m.value is None else m.value) if key is None else _detail(m, key)
            for m in entries
        )

    return measure


def _mutants(evidence: Evidence, *statuses: str) -> int:
    return sum(m.detail.get("status") in statuses for m in evidence.of("mutant").values())


def _mutants_judged(evidence: Evidence, _: Evidence | None) -> float | None:
    return len(evidence.of("mutant")) or None


def _mutation_score(evidence: Evidence, _: Evidence | None) -> float | None:
    """Killed of those that are not equivalent."""
    judged = len(evidence.of("mutant")) - _mutants(evidence, "equivalent")
    return _mutants(evidence, "killed") / judged if judged else None


def _raw_mutation_score(evidence: Evidence, _: Evidence | None) -> float | None:
    """Killed of all, equivalent ones counted as survivors."""
    judged = len(evidence.of("mutant"))
    return _mutants(evidence, "killed") / judged if judged else None


def _block_coverage(evidence: Evidence, _: Evidence | None) -> float | None:
    entries = evidence.of("coverage").values()
    blocks = sum(_detail(m, "blocks") for m in entries)
    return sum(_detail(m, "executed") for m in entries) / blocks if entries and blocks else None


def _number_of(topic: str) -> Measured:
    """How many measurements of a topic there are; None where there is none."""
    return lambda evidence, _: len(evidence.of(topic)) or None


def _compilations(evidence: Evidence, _: Evidence | None) -> float | None:
    return len(evidence.of("compilation")) or None


def _registers(evidence: Evidence, _: Evidence | None) -> float | None:
    entries = evidence.of("compilation").values()
    return max((_detail(m, "registers") for m in entries), default=None)


def _slowdown(evidence: Evidence, base: Evidence | None) -> float | None:
    """The worst ratio of a benchmark to the baseline's of the same name and unit."""
    before = {(m.name, m.unit): m.value for m in (base.of("benchmark") if base else {}).values()}
    ratios = []
    for now in evidence.of("benchmark").values():
        then = before.get((now.name, now.unit))
        if now.value is not None and then:
            ratios.append(now.value / then)
    return max(ratios, default=None)


RULES: Mapping[str, Rule | NamesRule] = {
    "bad_results": Rule("cases that failed or ended in an error", False, _if_ran(_bad)),
    "expected_failures": Rule(
        "cases that fail as a named limit of the kernel says",
        False,
        _if_ran(lambda e: e.verdicts["expected_failure"]),
    ),
    "distinct_problems": Rule(
        "distinct problems that were run", True, _if_ran(lambda e: e.problems)
    ),
    "worst_ratio": Rule("largest error over its bound", False, _worst_ratio),
    "properties": NamesRule(
        "properties with a passed case",
        lambda e: [n for n, t in e.properties.items() if t.verdicts["passed"]] or None,
    ),
    "revisions": Rule(
        "revisions that the records come from",
        False,
        lambda e, _: len(e.revisions) or None,
    ),
    "changed_checkouts": Rule(
        "runs of a checkout with uncommitted changes, or of none",
        False,
        lambda e, _: sum(s.header.dirty is not False for s in e.sources) if e.sources else None,
    ),
    "killed_runs": Rule(
        "runs that did not end by themselves",
        False,
        lambda e, _: sum(not s.ended for s in e.sources) if e.sources else None,
    ),
    "sanitizers": NamesRule("checks that ran", lambda e: list(e.of("sanitizer")) or None),
    "sanitizer_findings": Rule("findings of all checks", False, _total("sanitizer")),
    "compilations": Rule("specialisations compiled and looked at", True, _compilations),
    "registers": Rule("registers a thread, most of all specialisations", False, _registers),
    "spill_bytes": Rule("bytes of spilled registers", False, _total("compilation", "spill_bytes")),
    "local_bytes": Rule("bytes of local memory", False, _total("compilation", "local_bytes")),
    "block_coverage": Rule("share of PTX basic blocks that ran", True, _block_coverage),
    "instruction_mixes": Rule(
        "launches whose instructions were counted", True, _number_of("instructions")
    ),
    "timelines": Rule("runs whose timeline was drawn", True, _number_of("timeline")),
    "mutants": Rule("mutants judged", True, _mutants_judged),
    "mutation_score": Rule("share of non-equivalent mutants killed", True, _mutation_score),
    "raw_mutation_score": Rule("share of all mutants killed", True, _raw_mutation_score),
    "false_alarm_draws": Rule(
        "right answers judged for false alarms", True, _total("false_alarms", "draws")
    ),
    "false_alarms": Rule("right answers refused", False, _total("false_alarms")),
    "fuzz_cases": Rule("cases fuzzed", True, _total("fuzz", "cases")),
    "fuzz_findings": Rule("findings of fuzzing", False, _total("fuzz", "findings")),
    "slowdown": Rule("worst benchmark over the baseline's", False, _slowdown),
}
"""Every rule that a policy may name."""


def read_policy(path: Path, name: str) -> dict[str, Limit]:
    """Return the rules of policy ``name``: rule -> limit, a number or a tuple of names.

    Raises PolicyError, naming file, policy and rule, for anything that is not a policy.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PolicyError(f"policy: {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise PolicyError(f"policy: {path} is not TOML: {error}") from error
    table = tables.get(name)
    if not isinstance(table, dict):
        raise PolicyError(f"policy: {name!r} is none of {', '.join(tables)} in {path}")
    return {rule: _limit(f"{path}: {name}.{rule}", rule, limit) for rule, limit in table.items()}


def _limit(place: str, rule: str, limit: object) -> Limit:
    """Return a limit of the kind that the rule takes."""
    if rule not in RULES:
        close = difflib.get_close_matches(rule, RULES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"rules are {', '.join(RULES)}"
        raise PolicyError(f"{place}: unknown rule; {hint}")
    if isinstance(RULES[rule], NamesRule):
        if isinstance(limit, list) and limit and all(isinstance(entry, str) for entry in limit):
            return tuple(limit)
        raise PolicyError(f"{place}: {limit!r} is not a list of names")
    if isinstance(limit, int | float) and not isinstance(limit, bool) and math.isfinite(limit):
        return float(limit)
    raise PolicyError(f"{place}: {limit!r} is not a number")


def judge(
    policy: str, limits: Mapping[str, Limit], evidence: Evidence, baseline: Evidence | None = None
) -> Verdict:
    """Return the verdict of a policy's rules on the evidence, in the order of the policy."""
    findings = []
    for name, limit in limits.items():
        rule = RULES[name]
        if isinstance(rule, NamesRule):
            assert isinstance(limit, tuple)
            findings.append(rule.judge(name, limit, evidence))
        else:
            assert isinstance(limit, float)
            findings.append(rule.judge(name, limit, evidence, baseline))
    return Verdict(policy, tuple(findings), tuple(name for name in RULES if name not in limits))
