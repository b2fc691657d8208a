"""What changed between two sign-offs, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reports.summary import Summary


def diff(before: Summary, after: Summary) -> str:
    """Return what changed, a line each; a sentence where nothing did."""
    lines = list(_lines(before, after))
    return "\n".join(lines or ["Nothing changed."]) + "\n"


def _lines(before: Summary, after: Summary) -> Iterator[str]:
    yield from _change("kernel", before["kernel"], after["kernel"])
    yield from _change("verdict", before["verdict"], after["verdict"])
    yield from _change("policy", before["policy"], after["policy"])
    yield from _change("revisions", _revisions(before), _revisions(after))
    yield from _change("distinct problems", before["problems"], after["problems"])
    old, new = ({rule["rule"]: rule for rule in s["rules"]} for s in (before, after))
    for name in {**old, **new}:
        yield from _change(f"rule {name}", _rule(old.get(name)), _rule(new.get(name)))
    for name in {**before["properties"], **after["properties"]}:
        for key in ("verdicts", "worst_ratio"):
            then, now = (s["properties"].get(name, {}).get(key) for s in (before, after))
            yield from _change(f"property {name}, {key}", then, now)
    bad = {result["id"] for result in before["bad"]}
    for result in after["bad"]:
        if result["id"] not in bad:
            property_name = result["case"]["property"]
            yield f"new bad result: {result['id']} {property_name} {result['size']}"
    gone = bad - {result["id"] for result in after["bad"]}
    for case_id in sorted(gone):
        yield f"no longer bad, or no longer run: {case_id}"
    yield from _measurements(before, after)


def _measurements(before: Summary, after: Summary) -> Iterator[str]:
    for topic in {**before["measurements"], **after["measurements"]}:
        old, new = (
            {m["name"]: m for m in s["measurements"].get(topic, [])} for s in (before, after)
        )
        for name in {**old, **new}:
            then, now = _measured(old.get(name)), _measured(new.get(name))
            yield from _change(f"{topic} {name}", then, now)


def _change(what: str, then: object, now: object) -> Iterator[str]:
    if then != now:
        yield f"{what}: {_shown(then)} -> {_shown(now)}"


def _shown(value: object) -> str:
    return "-" if value is None else str(value)


def _rule(rule: Mapping[str, Any] | None) -> str | None:
    if rule is None:
        return None
    value = "no evidence" if rule["value"] is None else rule["value"]
    return f"{value}, limit {rule['limit']}, {'met' if rule['ok'] else 'NOT met'}"


def _measured(measurement: Mapping[str, Any] | None) -> str | None:
    if measurement is None:
        return None
    status = measurement["detail"].get("status", "")
    value = "" if measurement["value"] is None else measurement["value"]
    return f"{value} {measurement['unit']} {status}".strip() or "there"


def _revisions(summary: Summary) -> list[str]:
    return sorted({s["header"]["revision"] or "unknown" for s in summary["sources"]})
