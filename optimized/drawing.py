"""How one tile of keys travels through the kernel: ``python -m optimized.drawing docs/sm100``.

The drawings are made from the kernel's own configuration, edges and layouts, so that they cannot
show what is not there. Nothing is compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optimized.sm100.config import Config

KINDS = {
    "fp8-128": ("float8_e4m3fn", 128, "FP8, 128 rows on two CTAs"),
    "fp8-64": ("float8_e4m3fn", 64, "FP8, 64 rows on one CTA"),
    "half-128": ("bfloat16", 128, "FP16 and BF16, 128 rows on two CTAs"),
}
ACTORS = ("load keys", "load values", "mma", "softmax", "correction")
WIDTH, MARGIN, HEAD, STEP, BAR = 1000, 20, 110, 34, 34
FILLS = ("#cfe3f7", "#f9dcc4", "#d5ecd4", "#e7d9f0", "#f3efc9", "#f6d5dc", "#e3e3e3")
STYLE = "font-family:sans-serif;font-size:12px"


@dataclass(frozen=True)
class Message:
    """One arrow of the sequence: an edge, and what it says in this configuration."""

    source: str
    target: str
    text: str


def svg(name: str) -> str:
    """Return the drawing of one of `KINDS`: warps and edges in time, then memory to scale."""
    from optimized.sm100.config import Config

    dtype, tile_m, title = KINDS[name]
    config = Config(dtype, tile_m, 64)
    messages = list(_messages(config))
    lines = HEAD + STEP * len(messages)
    body = [*_actors(config, lines), *_arrows(messages)]
    for row, (label, limit, regions) in enumerate(_memories(config)):
        body += _bar(lines + 50 + row * 80, label, limit, regions)
    height = lines + 50 + 2 * 80 + 10
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'role="img" aria-label="{escape(title)}" style="{STYLE}">',
            f"<title>{escape(title)}: one tile of 128 keys</title>",
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            _text(MARGIN, 24, f"{title}: one tile of 128 keys", size=16),
            *body,
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
            'markerHeight="8" orient="auto"><path d="M0,0 L8,4 L0,8 z"/></marker></defs>',
            "</svg>",
            "",
        ]
    )


def _messages(config: Config) -> Iterator[Message]:
    """Yield the arrows in the order of time; the first and the last belong to a piece of work."""
    from optimized.sm100.smem import SharedLayout

    edges = SharedLayout(config).edges
    shared = config.shares_values

    def of(name: str, what: str) -> Iterator[Message]:
        edge = edges[name]
        text = f"{name}: {what} ({_many(edge.stages, 'stage')}, {_many(edge.arrivals, 'arrival')})"
        for source in _who(edge.producer):
            for target in _who(edge.consumer):
                yield Message(source, target, text)
                text = name  # the second arrow of an edge of both

    yield from of("query", "once for a piece of work, to smem")
    chunk = f"{config.key_chunks} x {config.key_chunk_bytes:,} B a CTA by TMA"
    yield from of("keys", chunk)
    if not shared:
        yield from of("keys_free", "S = Q K multiplied")
    yield from of("scores", "S in TMEM")
    yield from of("rescale", "factors in smem")
    yield from of("ready", "P in smem, O rescaled")
    if not shared:
        chunk = f"{config.value_chunks} x {config.value_chunk_bytes:,} B a CTA by TMA"
        yield from of("values", chunk)
        yield from of("values_free", "O += P V multiplied")
    else:
        yield from of("keys_free", "O += P V multiplied: keys are values too")
    yield from of("output", "O in TMEM")
    yield from of("final", "row sums, once for a piece of work")


def _many(count: int, name: str) -> str:
    return f"{count} {name}{'s' if count > 1 else ''}"


def _who(name: str) -> tuple[str, ...]:
    return ("softmax", "correction") if name == "both" else (name,)


def _actors(config: Config, bottom: int) -> Iterator[str]:
    """Yield the head and the lifeline of each warp role."""
    from optimized.sm100 import warps

    places = {
        "load keys": f"warp {warps.LOAD_KEYS_WARP}",
        "load values": "-" if config.shares_values else f"warp {warps.LOAD_VALUES_WARP}",
        "mma": f"warp {warps.MMA_WARP}" + (", even CTA" if config.num_ctas == 2 else ""),
        "softmax": f"warps {warps.SOFTMAX_WARPS.start}-{warps.SOFTMAX_WARPS.stop - 1}",
        "correction": f"warps {warps.CORRECTION_WARPS.start}-{warps.CORRECTION_WARPS.stop - 1}",
    }
    for fill, actor in zip(FILLS, ACTORS, strict=False):
        x = _x(actor)
        yield f'<rect x="{x - 70}" y="40" width="140" height="40" rx="4" fill="{fill}"/>'
        yield _text(x, 57, actor, anchor="middle")
        yield _text(x, 73, places[actor], anchor="middle")
        yield f'<line x1="{x}" y1="80" x2="{x}" y2="{bottom - 10}" stroke="#999"/>'


def _arrows(messages: Sequence[Message]) -> Iterator[str]:
    for at, message in enumerate(messages):
        y, start, end = HEAD + STEP * at, _x(message.source), _x(message.target)
        yield (
            f'<line x1="{start}" y1="{y}" x2="{end}" y2="{y}" stroke="black" '
            'marker-end="url(#tip)"/>'
        )
        middle = min(max((start + end) / 2, 210), WIDTH - 210)
        yield _text(middle, y - 5, message.text, anchor="middle")


def _memories(config: Config) -> Iterator[tuple[str, int, list[tuple[str, int, int]]]]:
    """Yield shared and tensor memory: label, size, and (name, start, end) of what lies there."""
    from optimized.sm100 import tmem
    from optimized.sm100.smem import LIMIT_BYTES, SharedLayout

    layout = SharedLayout(config)
    starts = [
        ("Q", layout.query),
        ("P", layout.probabilities),
        (f"keys x {config.key_stages}", layout.keys),
        (f"values x {config.value_stages}", layout.values),
        ("rest", layout.exchange),
        ("", layout.num_bytes),
    ]
    regions = [(name, start, end) for (name, start), (_, end) in pairwise(starts) if end > start]
    yield f"shared memory of a CTA: {layout.num_bytes:,} of {LIMIT_BYTES:,} B", LIMIT_BYTES, regions
    columns = [
        ("S, even tiles", tmem.SCORES, tmem.SCORES + tmem.SCORES_COLS),
        ("S, odd tiles", tmem.SCORES + tmem.SCORES_COLS, tmem.OUTPUT),
        ("O, columns 0-255", tmem.OUTPUT, tmem.OUTPUT + tmem.OUTPUT_COLS),
        ("O, columns 256-511", tmem.OUTPUT + tmem.OUTPUT_COLS, tmem.USED_COLUMNS),
    ]
    label = f"tensor memory: {tmem.USED_COLUMNS} of {tmem.COLUMNS} columns, 128 lanes"
    yield label, tmem.COLUMNS, columns


def _bar(y: int, label: str, limit: int, regions: list[tuple[str, int, int]]) -> Iterator[str]:
    scale = (WIDTH - 2 * MARGIN) / limit
    yield _text(MARGIN, y - 8, label)
    yield (
        f'<rect x="{MARGIN}" y="{y}" width="{WIDTH - 2 * MARGIN}" height="{BAR}" '
        'fill="none" stroke="#999"/>'
    )
    for fill, (name, start, end) in zip(FILLS, regions, strict=False):
        x, width = MARGIN + start * scale, (end - start) * scale
        shown = f"{name}: {end - start:,}" if width > 90 else name if width > 28 else ""
        yield f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{fill}"/>'
        yield _text(x + width / 2, y + 21, shown, anchor="middle")


def _x(actor: str) -> float:
    return MARGIN + 80 + ACTORS.index(actor) * (WIDTH - 2 * MARGIN - 160) / (len(ACTORS) - 1)


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
    )


def main(folder: Path) -> None:
    """Write every drawing into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in KINDS:
        (folder / f"{name}.svg").write_text(svg(name), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
