"""How far a campaign is: what it has reached, and the line that says so while it runs."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from conformance.progress import CLEAR_LINE, PLAIN_SECONDS
from fuzz.jobs import Answer

KINDS = ("block", "edge", "plan")  # of features that count as coverage; a ratio is fitness alone
MOST_POINTS = 400  # of the curve; beyond that every other one is dropped


@dataclass
class Growth:
    """What was reached, and when: cases, coverage, instructions, the worst ratio that passed."""

    cases: int = 0
    worst: float = 0.0
    instructions: int = 0
    seconds: float = 0.0
    _features: set[str] = field(default_factory=set)
    _counts: Counter[str] = field(default_factory=Counter)
    _sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    _points: list[tuple[float, int]] = field(default_factory=list)
    _every: int = 1

    def add(self, answer: Answer, seconds: float) -> bool:
        """Count an answer that came after so many seconds; whether it reached something new."""
        self.cases += 1
        self.seconds = seconds
        self.instructions += answer.instructions
        ratio = answer.result.ratio
        if answer.result.verdict == "passed" and ratio is not None and math.isfinite(ratio):
            self.worst = max(self.worst, ratio)
        new = answer.features - self._features
        self._features |= new
        self._counts.update(feature.partition(" ")[0] for feature in new)
        self._sizes |= answer.sizes
        if self.cases % self._every == 0:
            self._points.append((round(seconds, 2), self.covered))
        if len(self._points) > MOST_POINTS:
            self._points, self._every = self._points[1::2], 2 * self._every
        return bool(new)

    @property
    def covered(self) -> int:
        """Blocks, edges and plans that were reached."""
        return sum(self._counts[kind] for kind in KINDS)

    def points(self) -> list[list[float]]:
        """The curve: pairs of seconds and what was covered by then."""
        return [[seconds, covered] for seconds, covered in self._points]

    def counts(self) -> dict[str, int]:
        """What was reached of each kind, and of how many blocks and edges."""
        return {
            "blocks": self._counts["block"],
            "blocks_of": sum(blocks for blocks, _ in self._sizes.values()),
            "edges": self._counts["edge"],
            "edges_of": sum(edges for _, edges in self._sizes.values()),
            "plans": self._counts["plan"],
        }


@dataclass
class Progress:
    """Says through ``write`` how far a campaign is: one rewritten line on a terminal, else a plain
    line now and then. ``clock`` gives seconds."""

    write: Callable[[str], None]
    is_terminal: bool
    clock: Callable[[], float] = time.monotonic
    _written: float = field(init=False)

    def __post_init__(self) -> None:
        self._written = self.clock()

    def show(self, growth: Growth, findings: int) -> None:
        """Show where the campaign is."""
        if self.is_terminal:
            self.write(f"{CLEAR_LINE}{line(growth, findings)}")
        elif self.clock() - self._written >= PLAIN_SECONDS:
            self._written = self.clock()
            self.write(line(growth, findings) + "\n")

    def tell(self, text: str) -> None:
        """Say something that stays."""
        self.write(f"{CLEAR_LINE if self.is_terminal else ''}{text}\n")


def line(growth: Growth, findings: int) -> str:
    """Cases and their rate, coverage, worst ratio of a right case, findings."""
    seconds = max(growth.seconds, 1e-9)
    found = growth.counts()
    return (
        f"{growth.cases} cases, {int(seconds) // 60}:{int(seconds) % 60:02d}, "
        f"{growth.cases / seconds:.1f}/s, blocks {found['blocks']}/{found['blocks_of']}, "
        f"edges {found['edges']}/{found['edges_of']}, plans {found['plans']}, "
        f"worst ratio {growth.worst:.2f}, findings {findings}"
    )
