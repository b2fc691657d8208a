"""What a report says, as plain data: the one step between records and the texts made of them.

`summarise` is a pure function; its result is ``signoff.json`` as it stands, and the HTML page and
the Markdown comment are made of nothing else.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from reports.evidence import RATIO_BINS, Evidence, HeatMap, PropertyTally, Source
from reports.policy import Verdict
from reports.records import CaseResult, Measurement

SUMMARY_VERSION = 1

Summary = dict[str, Any]


def summarise(
    evidence: Evidence,
    verdict: Verdict,
    made: datetime,
    baseline: Evidence | None = None,
) -> Summary:
    """Return the report's content as JSON values; ``made`` is when it was made, in UTC."""
    return {
        "summary_version": SUMMARY_VERSION,
        "kernel": evidence.kernel,
        "made": made.isoformat(timespec="seconds"),
        "verdict": verdict.text,
        "signed_off": verdict.signed_off,
        "policy": verdict.policy,
        "rules": [asdict(finding) for finding in verdict.findings],
        "rules_not_asked": list(verdict.not_asked),
        "problems": evidence.problems,
        "verdicts": dict(evidence.verdicts),
        "properties": {name: _tally(tally) for name, tally in evidence.properties.items()},
        "ratio_bins": list(RATIO_BINS),
        "heat_maps": {name: _heat_map(heat) for name, heat in evidence.heat_maps.items()},
        "worst": [_result(result) for result in evidence.worst],
        "bad": [_result(result) for result in evidence.bad],
        "warnings": list(evidence.warnings),
        "sources": [_source(source) for source in evidence.sources],
        "measurements": {
            topic: [_measurement(m) for m in entries.values()]
            for topic, entries in evidence.measurements.items()
        },
        "baseline": None if baseline is None else _baseline(baseline),
    }


def replay_command(result: CaseResult) -> str:
    """Return the command that runs exactly this case again."""
    kernel = shlex.quote(result.case.kernel)
    return f"nox -s conformance -- --kernel {kernel} --replay {result.case.id}"


def printable(text: str) -> str:
    """Return text without what cannot be seen: controls, and marks that turn its direction."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def size_text(problem: Mapping[str, Any]) -> str:
    """Return a problem in a line: dtype, heads, tokens, page, lengths; keys it lacks are left out.

    ``float8_e4m3fn, H 16, S 4, page 64, K 129 0 7``
    """
    dims = problem.get("dims", {})
    parts = [
        str(problem.get("dtype", "")),
        f"H {dims['num_heads']}" if "num_heads" in dims else "",
        f"S {dims['seq_len_q']}" if "seq_len_q" in dims else "",
        f"page {problem['page_size']}" if "page_size" in problem else "",
        _lengths(problem.get("seq_lens", [])),
    ]
    return ", ".join(part for part in parts if part)


def _lengths(lengths: list[int]) -> str:
    shown = " ".join(map(str, lengths[:6]))
    return f"K {shown} and {len(lengths) - 6} more" if len(lengths) > 6 else f"K {shown}"


def _tally(tally: PropertyTally) -> Summary:
    return {
        "verdicts": dict(tally.verdicts),
        "worst_ratio": _number(tally.worst_ratio),
        "ratios": tally.ratios,
    }


def _heat_map(heat: HeatMap) -> Summary:
    cells = [
        [heat.cells.get((row, column), (0, 0)) for column in heat.columns] for row in heat.rows
    ]
    return {
        "rows": list(heat.rows),
        "columns": list(heat.columns),
        "ran": [[ran for ran, _ in row] for row in cells],
        "bad": [[bad for _, bad in row] for row in cells],
    }


def _result(result: CaseResult) -> Summary:
    return {
        **result.to_json(),
        "id": result.case.id,
        "size": size_text(result.case.problem),
        "replay": replay_command(result),
    }


def _source(source: Source) -> Summary:
    return {**asdict(source), "header": source.header.to_json()}


def _measurement(measurement: Measurement) -> Summary:
    values = measurement.to_json()
    del values["kernel"], values["topic"]
    return values


def _baseline(baseline: Evidence) -> Summary:
    return {
        "revisions": list(baseline.revisions),
        "problems": baseline.problems,
        "sources": [_source(source) for source in baseline.sources],
        "benchmark": [_measurement(m) for m in baseline.of("benchmark").values()],
    }


def _number(value: float | None) -> float | str | None:
    return value if value is None or (value == value and abs(value) != float("inf")) else str(value)
