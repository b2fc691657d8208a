"""A summary as one HTML page that needs nothing else: no script, no request, no font."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from reports import plots
from reports.summary import Summary, printable

TEMPLATES = Path(__file__).parent / "templates"
SHORT = 12  # digits of a revision that are shown

# For each topic of the measurements: name, caption, and heading -> key of the detail.
TOPICS: Mapping[str, tuple[str, str, Mapping[str, str]]] = {
    "sanitizer": ("Checks", "Findings of each check", {"runs": "runs", "findings": "findings"}),
    "compilation": (
        "Compiled kernels",
        "Registers and memory of each specialisation, and the hash of its PTX",
        {
            "registers": "registers",
            "spill bytes": "spill_bytes",
            "local bytes": "local_bytes",
            "TMEM columns": "tmem_cols",
            "SHA-256 of the PTX": "ptx_sha256",
        },
    ),
    "coverage": (
        "PTX that never ran",
        "Basic blocks of each compiled kernel over all judged runs on the simulator, and the "
        "source lines of those that none reached",
        {"blocks": "blocks", "executed": "executed", "not reached": "uncovered"},
    ),
    "instructions": (
        "Instruction mix",
        "Warp-instructions that one launch executed, counted by the simulator; no timing",
        {
            "problem": "problem",
            "by class": "classes",
            "special functions": "special_functions",
            "FLOP of MMAs": "mma_flop",
            "worst bank conflict": "worst_bank_conflict",
        },
    ),
    "mutant": (
        "Mutants",
        "What became of each mutant; survivors first",
        {"status": "status", "by": "by", "cases": "cases", "where": "where", "reason": "reason"},
    ),
    "false_alarms": ("False alarms", "Right answers that were refused", {"draws": "draws"}),
    "fuzz": ("Fuzzing", "Campaigns", {"cases": "cases", "findings": "findings"}),
    "benchmark": ("Speed", "Each benchmark, and the baseline's", {"baseline": "baseline"}),
    "timeline": ("Timeline", "Simulated runs that were drawn", {"in words": "text"}),
}


def render(summary: Summary, drawings: Mapping[str, str] | None = None) -> str:
    """Return the page; ``drawings`` maps the name of a timeline to its SVG text."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    topics = [_topic(summary, topic, drawings or {}) for topic in TOPICS]
    fixed = ["rules", "provenance", "properties", "factors", "worst"]
    names = ["Rules", "Provenance", "Properties", "Coverage", "Worst cases"]
    return environment.get_template("signoff.html.jinja").render(
        s=summary,
        sections=[*zip(fixed, names, strict=True), *((t["id"], t["name"]) for t in topics)],
        provenance=[_provenance(source) for source in summary["sources"]],
        hashes=[
            (source["path"], source["sha256"], _pairs(source["header"]["versions"]))
            for source in summary["sources"]
        ],
        properties=[
            (name, _pairs(tally["verdicts"]), _shown(tally["worst_ratio"]))
            for name, tally in summary["properties"].items()
        ],
        ratio_plot=_ratio_plot(summary),
        heat_maps=[
            (name, Markup(plots.heat_map(heat, name)))
            for name, heat in summary["heat_maps"].items()
        ],
        topics=topics,
    )


def _ratio_plot(summary: Summary) -> Markup | None:
    tallies = {name: tally["ratios"] for name, tally in summary["properties"].items()}
    if not any(any(counts) for counts in tallies.values()):
        return None
    return Markup(plots.ratios(tallies, summary["ratio_bins"], "error over bound"))


def _topic(summary: Summary, topic: str, drawings: Mapping[str, str]) -> dict[str, Any]:
    """Return one section of measurements: its table, and a plot where there is one to draw."""
    name, caption, keys = TOPICS[topic]
    entries = sorted(summary["measurements"].get(topic, []), key=_survivors_first)
    before = {m["name"]: m["value"] for m in (summary["baseline"] or {}).get("benchmark", [])}
    rows = [
        (
            entry["name"],
            f"{_shown(entry['value'])} {entry['unit']}".strip(),
            *(
                _shown(before.get(entry["name"]) if key == "baseline" else entry["detail"].get(key))
                for key in keys.values()
            ),
        )
        for entry in entries
    ]
    plot, text = _plot(topic, entries)
    return {
        "id": topic,
        "name": name,
        "caption": caption,
        "headings": ["name", "value", *keys],
        "rows": rows,
        "plot": plot,
        "plot_text": text,
        "drawings": [
            # As an image: text of a drawing that a tool left beside its records runs nothing.
            (
                Markup('<img alt="" src="data:image/svg+xml;base64,{}">').format(
                    base64.b64encode(drawings[entry["name"]].encode()).decode()
                ),
                str(entry["detail"].get("text") or "Timeline of one simulated run"),
            )
            for entry in entries
            if topic == "timeline" and entry["name"] in drawings
        ],
    }


def _plot(topic: str, entries: Sequence[Mapping[str, Any]]) -> tuple[Markup | None, str]:
    if topic == "fuzz":
        curves = {e["name"]: e["detail"]["growth"] for e in entries if e["detail"].get("growth")}
        if curves:
            text = "Growth of what fuzzing covered, over time"
            return Markup(plots.growth(curves, "growth")), text
    if topic == "instructions":
        mixes = {e["name"]: e["detail"]["classes"] for e in entries if e["detail"].get("classes")}
        if mixes:
            text = "Share of each class of instructions; the table has the counts"
            return Markup(plots.shares(mixes, "instructions")), text
    if topic == "benchmark":
        values = {e["name"]: e["value"] for e in entries if isinstance(e["value"], int | float)}
        units = {e["unit"] for e in entries if e["name"] in values}
        if values and len(units) == 1:
            text = "Each benchmark; shorter is faster where the unit is a time"
            return Markup(plots.bars(values, units.pop(), "benchmarks")), text
    return None, ""


def _survivors_first(entry: Mapping[str, Any]) -> tuple[int, str]:
    order = {"survived": 0, "equivalent": 1, "killed": 2}
    return order.get(str(entry["detail"].get("status")), 0), str(entry["name"])


def _provenance(source: Mapping[str, Any]) -> tuple[Any, ...]:
    header = source["header"]
    return (
        source["path"],
        header["tool"],
        (header["revision"] or "unknown")[:SHORT],
        {True: "yes", False: "no", None: "unknown"}[header["dirty"]],
        header["device"],
        header["started"],
        source["results"],
        source["measurements"],
        f"{source['seconds']:.1f}",
        "yes" if source["ended"] else "no",
    )


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _shown(value: object) -> str:
    """Return a value as text: numbers short, lists an entry a line, nothing as a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return "; ".join(_shown(entry) for entry in value[:20]) + (
            f"; and {len(value) - 20} more" if len(value) > 20 else ""
        )
    if isinstance(value, dict):
        return _pairs(value)
    return str(value)
