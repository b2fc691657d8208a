"""The text at the end of a session: a table, each failure's smallest case, and what was counted.

Pure functions from results to text.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence

from reports.records import BAD_VERDICTS, VERDICTS, CaseResult, RunSummary

HEADINGS = ("kernel", "engine", "property", "cases", "worst error/bound", "verdict")
REASON_LINES = 30
OTHERS = 10

Group = tuple[str, str, str]  # kernel, engine, property


def summary(results: Sequence[CaseResult], interrupted: bool = False) -> str:
    """Return the whole text; ``interrupted`` says that the session did not end by itself."""
    parts = [failure_text(group) for group in grouped(r for r in results if r.is_bad).values()]
    counts = RunSummary.of(results)
    ending = "interrupted, what ran so far: " if interrupted else ""
    parts += [
        table(results),
        f"{ending}{counts.distinct_problems} distinct problems, {verdict_counts(results)}",
    ]
    return "\n\n".join(parts)


def table(results: Sequence[CaseResult]) -> str:
    """Return one line for each kernel, engine and property, under headings."""
    rows = [HEADINGS]
    for (kernel, engine, property_name), group in grouped(results).items():
        ran = [result for result in group if result.verdict != "skipped"]
        ratios = [result.ratio for result in ran if result.ratio is not None and _judged(result)]
        worst = f"{max(ratios):.3g}" if ratios else "-"
        rows.append((kernel, engine, property_name, str(len(ran)), worst, verdict_counts(group)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def failure_text(results: Sequence[CaseResult]) -> str:
    """Return the smallest of one property's failures in full, and the ids of others."""
    first, *others = sorted(results, key=size)
    case = first.case
    lines = (first.reason or first.verdict).splitlines()
    if len(lines) > REASON_LINES:
        lines = [*lines[:REASON_LINES], f"... and {len(lines) - REASON_LINES} lines in the record"]
    text = [
        f"{first.verdict.upper().replace('_', ' ')} {case.kernel} ({case.engine}) {case.property}, "
        f"smallest of {len(results)} cases:",
        *(f"  {line}" for line in lines),
        f"  case:   {json.dumps(case.to_json())}",
        f"  replay: {replay_command(first)}",
    ]
    if others:
        ids = ", ".join(other.case.id for other in others[:OTHERS])
        more = f" and {len(others) - OTHERS} in the records" if len(others) > OTHERS else ""
        text.append(f"  others: {ids}{more}")
    return "\n".join(text)


def replay_command(result: CaseResult) -> str:
    """Return the command that runs exactly this case again."""
    kernel = shlex.quote(result.case.kernel)
    return f"nox -s conformance -- --kernel {kernel} --replay {result.case.id}"


def verdict_counts(results: Iterable[CaseResult]) -> str:
    """Return the verdicts in words, the bad ones first, as ``2 failed, 40 passed``."""
    counts = Counter(result.verdict for result in results)
    order = sorted(VERDICTS, key=lambda verdict: verdict not in BAD_VERDICTS)
    return ", ".join(f"{counts[v]} {v.replace('_', ' ')}" for v in order if counts[v])


def size(result: CaseResult) -> tuple[int, int, int, int, str]:
    """Return a key that orders cases from small to large: keys, requests, query rows, splits."""
    problem = result.case.problem
    lengths, dims = problem["seq_lens"], problem["dims"]
    rows = dims["num_heads"] * dims["seq_len_q"]
    return sum(lengths), len(lengths), rows, result.case.num_splits or 0, result.case.id


def grouped(results: Iterable[CaseResult]) -> dict[Group, list[CaseResult]]:
    """Return the results by kernel, engine and property, in the order they came."""
    groups: dict[Group, list[CaseResult]] = {}
    for result in results:
        key = (result.case.kernel, result.case.engine, result.case.property)
        groups.setdefault(key, []).append(result)
    return groups


def _judged(result: CaseResult) -> bool:
    """Whether the ratio says something about the kernel: an expected failure's does not."""
    return result.verdict in ("passed", "failed", "unexpected_pass")
