"""A summary as Markdown, for the comment under a pull request and the summary of a CI job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from reports.summary import Summary, printable

LIMIT = 65_000  # characters that a comment may have
CUT = "\n\n*Cut here: a comment may have no more. The HTML report has the rest.*\n"
ROWS = 10  # of a table of cases
SHOWN = 6  # entries of a list in a cell
NAME = 60  # characters of a mangled name


def render(summary: Summary) -> str:
    """Return the text, cut at a line where it would exceed `LIMIT`."""
    text = "\n".join(_lines(summary)) + "\n"
    if len(text) <= LIMIT:
        return text
    kept = text[: LIMIT - len(CUT)]
    return kept[: kept.rindex("\n")] + CUT


def escape(text: object) -> str:
    """Return text that Markdown shows as it is, in a table too: no markup, no link, no mention."""
    shown = printable(str(text).replace("\n", " ")).replace("\\", "\\\\")
    for character in "`*_[]<>|#~":
        shown = shown.replace(character, f"\\{character}")
    # A zero-width space keeps @name and #12 from calling anybody, and addresses from being links.
    return shown.replace("@", "@\u200b").replace("://", ":\u200b//")


def _lines(s: Summary) -> Iterator[str]:
    yield f"## {escape(s['kernel'])}: {s['verdict']}"
    yield ""
    yield f"Policy {escape(s['policy'])}, {s['problems']:,} distinct problems, {s['made']}."
    yield ""
    rules = (
        (
            "yes" if rule["ok"] else "**NO**",
            escape(rule["rule"]),
            escape(rule["limit"]),
            "no evidence" if rule["value"] is None else escape(rule["value"]),
        )
        for rule in sorted(s["rules"], key=lambda rule: rule["ok"])
    )
    yield from _table(("met", "rule", "limit", "value"), rules)
    for warning in s["warnings"]:
        yield f"* {escape(warning)}"
    if s["bad"]:
        yield from ("", "### Bad results", "")
        yield from _table(
            ("case", "verdict", "property", "problem", "reason"),
            (
                (
                    result["id"],
                    result["verdict"],
                    escape(result["case"]["property"]),
                    escape(result["size"]),
                    escape(str(result["reason"] or "")[:200]),
                )
                for result in s["bad"][:ROWS]
            ),
        )
    yield from ("", "### Properties", "")
    yield from _table(
        ("property", "verdicts", "worst error/bound"),
        (
            (escape(name), _pairs(tally["verdicts"]), escape(tally["worst_ratio"]))
            for name, tally in s["properties"].items()
        ),
    )
    yield from _executed(s["measurements"])
    yield from ("", "<details><summary>Provenance</summary>", "")
    yield from _table(
        ("record", "revision", "changed", "device", "SHA-256"),
        (
            (
                escape(source["path"]),
                escape((source["header"]["revision"] or "unknown")[:12]),
                escape(source["header"]["dirty"]),
                escape(source["header"]["device"]),
                source["sha256"][:16],
            )
            for source in s["sources"]
        ),
    )
    yield from ("", "</details>")


def _executed(measurements: Mapping[str, Any]) -> Iterator[str]:
    """What the simulator saw of the PTX: blocks that nobody reached, instruction mix, timeline."""
    covered = measurements.get("coverage", [])
    if covered:
        yield from ("", "### PTX that never ran", "")
        rows = [(m["name"], m["detail"], m["detail"].get("uncovered") or []) for m in covered]
        yield from _table(
            ("kernel", "blocks executed", "not reached"),
            (
                (
                    escape(name[:NAME]),
                    f"{escape(detail.get('executed'))} of {escape(detail.get('blocks'))}",
                    _some([str(region) for region in missing]),
                )
                for name, detail, missing in rows[:ROWS]
            ),
        )
    mixes = measurements.get("instructions", [])
    if mixes:
        yield from ("", "### Instruction mix", "")
        yield from _table(
            ("kernel", "warp-instructions", "by class"),
            (
                (
                    escape(m["name"][:NAME]),
                    escape(f"{m['value']:,.0f}" if isinstance(m["value"], float) else m["value"]),
                    _some([f"{k} {v}" for k, v in (m["detail"].get("classes") or {}).items()]),
                )
                for m in mixes[:ROWS]
            ),
        )
    for drawn in measurements.get("timeline", []):
        if drawn["detail"].get("text"):
            yield from ("", f"Timeline (in the HTML report): {escape(drawn['detail']['text'])}")


def _some(texts: Sequence[str]) -> str:
    """The first entries of a list, and how many more there are."""
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return escape("; ".join(texts[:SHOWN])) + more


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{escape(key)} {value}" for key, value in values.items())
