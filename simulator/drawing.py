"""Timelines as Chrome trace JSON, which Perfetto and chrome://tracing open, and as SVG.

Source of the JSON: "Trace Event Format", the Chromium project: complete events (``X``) of one
thread nest, asynchronous ones (``b`` and ``e``, paired by ``cat`` and ``id``) may overlap, metadata
events (``M``) name processes and threads. Times are microseconds there; a step is shown as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, Final

from simulator.machine.cluster import Dim3
from simulator.timeline import ENGINES, Slice, Timeline

AXIS: Final = "simulated steps, not cycles"
WIDTH: Final = 1280
LEFT: Final = 150  # px for the names of tracks
ROW, LANE, GAP = 15, 7, 4  # px: a warp, one of an engine's operations in flight, between tracks
MOST_LANES: Final = 6
KINDS: Final = ("run", "wait", "load", "store", "copy", "query", "mma")
_STYLE: Final = """
svg { background: #ffffff; font: 11px system-ui, sans-serif; } text { fill: #1c2126; }
.run { fill: #2c9a66; } .wait { fill: #c9d1d9; } .load { fill: #2f7fd0; } .store { fill: #8250df; }
.copy { fill: #1b7c83; } .query { fill: #9a6700; } .mma { fill: #d1495b; }
.line { stroke: #d0d7de; }
@media (prefers-color-scheme: dark) {
  svg { background: #0f1419; } text { fill: #e6edf3; } .wait { fill: #3d444d; }
  .line { stroke: #30363d; }
}
"""


def chrome_trace(timelines: Sequence[Timeline]) -> dict[str, Any]:
    """The JSON object of the trace: a process for each CTA, a thread for each warp and engine."""
    events: list[dict[str, Any]] = []
    for number, timeline in enumerate(timelines):
        events += _events(timeline, number)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"time_axis": f"{AXIS}; one step is shown as one microsecond"},
    }


def _events(timeline: Timeline, number: int) -> Iterator[dict[str, Any]]:
    places: dict[tuple[Dim3, str], tuple[int, int]] = {}
    processes: dict[Dim3, int] = {}
    for cta, track in timeline.tracks:
        if cta not in processes:
            processes[cta] = pid = 1000 * number + len(processes) + 1
            name = f"{short_name(timeline.kernel)} CTA {cta}"
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        places[cta, track] = pid, tid = processes[cta], len(places) + 1
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": track}}
        order = {"sort_index": tid}
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": order}
    for index, one in enumerate(timeline.slices):
        pid, tid = places[one.cta, one.track]
        common = {"name": one.name, "cat": one.kind, "pid": pid, "tid": tid}
        details = {"source": one.source}
        if one.track in ENGINES:
            pair = {**common, "id": f"{number}.{index}"}
            yield {**pair, "ph": "b", "ts": one.begin, "args": details}
            yield {**pair, "ph": "e", "ts": one.end}
        else:
            counted = {**details, "warp_instructions": one.instructions}
            length = one.end - one.begin
            yield {**common, "ph": "X", "ts": one.begin, "dur": length, "args": counted}


def description(timeline: Timeline) -> str:
    """The timeline in two sentences, for those who cannot see it."""
    warps = sum(track not in ENGINES for _, track in timeline.tracks)
    load, mma = timeline.busy("load"), timeline.busy("mma")
    return (
        f"{short_name(timeline.kernel)}: one cluster, {warps} warps, {timeline.steps} steps "
        f"({AXIS}). TMA loads are in flight in {len(load)} of them, MMAs in {len(mma)}, both in "
        f"{len(load & mma)}."
    )


def svg(timeline: Timeline) -> str:
    """A drawing of ``WIDTH`` px: a row for each warp, and operations in flight for each engine."""
    scale = (WIDTH - LEFT - 10) / max(timeline.steps, 1)
    parts, top = [_legend()], 40
    for cta, track in timeline.tracks:
        own = [s for s in timeline.slices if (s.cta, s.track) == (cta, track)]
        lanes = _lanes(own) if track in ENGINES else [own]
        height = max(LANE * len(lanes), ROW) if track in ENGINES else ROW
        label = f"CTA {','.join(map(str, cta))} {track}"
        parts.append(f'<text x="4" y="{top + 11}">{escape(label)}</text>')
        for lane, slices in enumerate(lanes):
            size = height / len(lanes) - 1
            for kind, begin, end in _merged(slices, 0.5 / scale):
                x, width = LEFT + begin * scale, max((end - begin) * scale, 0.5)
                parts.append(
                    f'<rect class="{kind}" x="{x:.1f}" y="{top + lane * (size + 1):.1f}" '
                    f'width="{width:.1f}" height="{size:.1f}"/>'
                )
        top += height + GAP
    parts.append(_axis(timeline.steps, scale, top))
    words = escape(description(timeline))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 34}" '
        f'width="{WIDTH}" height="{top + 34}" role="img" aria-label="{words}">'
        f"<title>{escape(short_name(timeline.kernel))}</title><desc>{words}</desc>"
        f"<style>{_STYLE}</style>{''.join(parts)}</svg>\n"
    )


def short_name(kernel: str) -> str:
    """The part of a mangled name that its author would know it by."""
    name = kernel.removeprefix("kernel_cutlass_")
    return name if len(name) <= 40 else name[:37] + "..."


def _legend() -> str:
    parts = []
    for number, kind in enumerate(KINDS):
        x = LEFT + 90 * number
        parts.append(f'<rect class="{kind}" x="{x}" y="8" width="12" height="12"/>')
        parts.append(f'<text x="{x + 16}" y="18">{kind}</text>')
    return "".join(parts)


def _axis(steps: int, scale: float, top: int) -> str:
    tick = next(t for n in range(12) for t in (10**n, 2 * 10**n, 5 * 10**n) if steps / t <= 12)
    parts = []
    for step in range(0, steps + 1, tick):
        x = LEFT + step * scale
        parts.append(f'<line class="line" x1="{x:.1f}" y1="32" x2="{x:.1f}" y2="{top}"/>')
        parts.append(f'<text x="{x:.1f}" y="{top + 12}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{LEFT}" y="{top + 28}">{AXIS}</text>')
    return "".join(parts)


def _lanes(slices: Sequence[Slice]) -> list[list[Slice]]:
    """The slices in rows in which they do not overlap; beyond the last row they lie over others."""
    lanes: list[list[Slice]] = []
    for one in slices:
        free = next((lane for lane in lanes if lane[-1].end <= one.begin), None)
        if free is not None:
            free.append(one)
        elif len(lanes) < MOST_LANES:
            lanes.append([one])
        else:
            lanes[-1].append(one)
    return lanes or [[]]


def _merged(slices: Sequence[Slice], gap: float) -> Iterator[tuple[str, float, float]]:
    """Kind, begin and end, with neighbours of a kind that no eye could tell apart made one."""
    last: tuple[str, float, float] | None = None
    for one in slices:
        if last is not None and last[0] == one.kind and one.begin - last[2] <= gap:
            last = (one.kind, last[1], max(last[2], one.end))
            continue
        if last is not None:
            yield last
        last = (one.kind, one.begin, one.end)
    if last is not None:
        yield last
