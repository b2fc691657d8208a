"""Plots as SVG text for a page: coloured by the page's own style, readable in light and dark.

matplotlib draws them. Ink takes the colour of the text around it (``currentColor``); areas have
colours of medium lightness, which stand out from both backgrounds. The bytes depend on the data
alone.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

INK = "#010203"  # stands for currentColor until the drawing is text
BLUE, RED, GREEN = "#2f7fd0", "#d1495b", "#2c9a66"
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "mla-testbed",
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "xtick.color": INK,
    "ytick.color": INK,
}


def heat_map(heat: Mapping[str, Any], title: str) -> str:
    """Return a table of cells, darker the more cases ran, red where one was bad."""
    rows, columns = heat["rows"], heat["columns"]
    most = max((count for row in heat["ran"] for count in row), default=1) or 1
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1.6 + 0.55 * len(columns), 0.7 + 0.36 * len(rows)))
        axes = figure.subplots()
        for y, row in enumerate(heat["ran"]):
            for x, ran in enumerate(row):
                bad = heat["bad"][y][x]
                if ran:
                    strength = 0.25 + 0.6 * ran / most
                    colour = RED if bad else BLUE
                    axes.add_patch(_cell(x, y, colour, strength))
                shown = f"{bad}/{ran}" if bad else str(ran or "·")
                axes.text(x, y, shown, ha="center", va="center")
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xticks(range(len(columns)), map(_label, columns), rotation=30, ha="right")
        axes.set_yticks(range(len(rows)), map(_label, rows))
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        return _svg(figure, title)


def ratios(tallies: Mapping[str, Sequence[int]], edges: Sequence[float], title: str) -> str:
    """Return a histogram of error/bound for each property; the last bin is what exceeds it."""
    shown = {name: counts for name, counts in tallies.items() if any(counts)}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 0.5 + 1.5 * max(1, len(shown))))
        all_axes = figure.subplots(max(1, len(shown)), 1, squeeze=False, sharex=True)[:, 0]
        for axes, (name, counts) in zip(all_axes, shown.items(), strict=False):
            width = edges[1] - edges[0]
            starts = [*edges[:-1], edges[-1] + width / 2]
            colours = [BLUE] * (len(counts) - 1) + [RED]
            axes.bar(starts, counts, width=width, align="edge", color=colours)
            axes.axvline(1.0, color=INK, linewidth=1)
            axes.set_title(_label(name), loc="left", fontsize=10)
            axes.set_ylabel("cases")
        all_axes[-1].set_xlabel("error / bound (beyond 1: failures)")
        return _svg(figure, title)


def growth(curves: Mapping[str, Sequence[Sequence[float]]], title: str) -> str:
    """Return the growth of what was covered over the seconds of campaigns."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 2.6))
        axes = figure.subplots()
        for name, points in curves.items():
            axes.step(
                [p[0] for p in points], [p[1] for p in points], where="post", label=_label(name)
            )
        axes.set_xlabel("seconds")
        axes.set_ylabel("covered")
        axes.legend(frameon=False)
        return _svg(figure, title)


def bars(values: Mapping[str, float], unit: str, title: str) -> str:
    """Return one horizontal bar for each value."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 0.7 + 0.32 * len(values)))
        axes: Axes = figure.subplots()
        axes.barh([_label(name) for name in values], list(values.values()), color=GREEN)
        axes.invert_yaxis()
        axes.set_xlabel(_label(unit))
        return _svg(figure, title)


def shares(mixes: Mapping[str, Mapping[str, int]], title: str) -> str:
    """Return one bar for each name, divided by the shares of its classes, the largest first."""
    totals = Counter[str]()
    for mix in mixes.values():
        totals.update(mix)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 1.6 + 0.4 * len(mixes)))
        axes: Axes = figure.subplots()
        begins = dict.fromkeys(mixes, 0.0)
        colours = [matplotlib.colormaps["tab20"](number) for number in range(20)]
        for number, (kind, _) in enumerate(totals.most_common()):
            parts = [mix.get(kind, 0) / max(sum(mix.values()), 1) for mix in mixes.values()]
            axes.barh(
                [_label(name) for name in mixes],
                parts,
                left=list(begins.values()),
                label=_label(kind),
                color=colours[number % len(colours)],
            )
            begins = {n: b + part for (n, b), part in zip(begins.items(), parts, strict=True)}
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.set_xlabel("share of warp-instructions")
        axes.legend(frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.45))
        return _svg(figure, title)


def _label(text: str) -> str:
    """Return what a font can show: a control character would be a warning and an empty box."""
    return "".join(character if character.isprintable() else "?" for character in text)[:40]


def _cell(x: int, y: int, colour: str, strength: float) -> Rectangle:
    return Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=colour, alpha=strength, linewidth=0)


def _svg(figure: Figure, title: str) -> str:
    """Return the drawing alone, without what a file needs around it."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    # Ids are unique in one drawing, and several stand on a page.
    salt = re.sub(r"\W+", "-", title)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{salt}-", text)
    return re.sub(r"<svg ", '<svg aria-hidden="true" focusable="false" ', text, count=1).strip()
