"""What the warps and asynchronous engines of a launch did, step by step.

The time axis counts **simulated steps, not cycles**: in one step every warp has at most one turn,
which the policy makes a number of basic blocks. Lengths of slices say who waits for whom and what
is in flight at once; they say nothing about durations on a device. Each cluster begins at step 0.

``Recorders`` is given to a launch as ``watch``; ``simulator.drawing`` turns what it saw into Chrome
trace JSON and SVG.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from simulator.errors import Location
from simulator.events import Observer
from simulator.machine.cluster import Dim3
from simulator.machine.warp import Warp

RUN, WAIT = "run", "wait"
ENGINES: Final = ("TMA loads", "TMA stores", "cp.async", "tensor core", "launch control")
_UNITS: Final = {
    "bulk load": ("TMA loads", "load"),
    "bulk store": ("TMA stores", "store"),
    "cp.async": ("cp.async", "copy"),
    "tensor core": ("tensor core", "mma"),
    "launch control": ("launch control", "query"),
}
MOST_SLICES: Final = 1_000_000
"""Slices that a recorder keeps; a launch with more is refused by name, not cut short."""


@dataclass(frozen=True)
class Slice:
    """Something that lasts from step ``begin`` until before step ``end``.

    ``track`` is who does it: a warp, or one of ``ENGINES``, from issue to completion. ``kind`` is
    run or wait of a warp, else load, store, copy, mma or query. ``cta`` is the CTA's index,
    ``source`` where in the program it began.
    """

    cta: Dim3
    track: str
    kind: str
    name: str
    begin: int
    end: int
    source: str
    instructions: int = 0


@dataclass(frozen=True)
class Timeline:
    """The slices of one cluster, in the order of their begin, and the steps that it took."""

    kernel: str
    slices: tuple[Slice, ...]
    steps: int

    @property
    def tracks(self) -> tuple[tuple[Dim3, str], ...]:
        """Who acted: CTA by CTA, its warps by number, then its engines."""
        found = dict.fromkeys((s.cta, s.track) for s in self.slices)
        return tuple(sorted(found, key=lambda track: (track[0][::-1], _order(track[1]))))

    def busy(self, kind: str) -> set[int]:
        """The steps in which something of a kind goes on anywhere in the cluster."""
        return {step for s in self.slices if s.kind == kind for step in range(s.begin, s.end)}


def _order(track: str) -> tuple[int, int]:
    """Warps by number first, then the engines."""
    if track in ENGINES:
        return 1, ENGINES.index(track)
    return 0, int(track.rpartition(" ")[2])


@dataclass
class _Open:
    """A warp's slice that may still grow."""

    kind: str
    name: str
    begin: int
    end: int
    source: str
    instructions: int = 0


@dataclass(frozen=True)
class _Issue:
    """When work was given to an engine, and by which CTA."""

    step: int
    cta: Dim3


class Recorder(Observer):
    """Watches one cluster."""

    def __init__(self) -> None:
        self.kernel = ""
        self._slices: list[Slice] = []
        self._step = 0
        self._moved: set[Warp] = set()
        self._acting: Warp | None = None
        self._before = 0
        self._site = Location()
        self._open: dict[Warp, _Open] = {}

    def turn(self, warp: Warp) -> None:
        """A warp has its turn; what the one before it did is known now."""
        self._settle()
        if warp in self._moved:
            self._step += 1
            self._moved.clear()
        self._moved.add(warp)
        self.kernel = warp.cta.program.kernel.name
        self._acting, self._before = warp, warp.instructions
        self._site = warp.cta.cluster.site(warp, 0)

    def issue(self, engine: Hashable) -> _Issue:
        """The acting warp gives work to an engine."""
        assert self._acting is not None
        return _Issue(self._step, self._acting.cta.index)

    def begin(self, engine: Hashable, token: _Issue, location: Location) -> None:
        """The work completes. An arrival that only announces the end of other work is none."""
        opcode = (location.ptx_text or "").split(" ")[0]
        if "commit" in opcode or "arrive" in opcode:
            return
        name = str(engine)
        track, kind = next(unit for start, unit in _UNITS.items() if name.startswith(start))
        end = max(self._step, token.step) + 1
        self._keep(Slice(token.cta, track, kind, name, token.step, end, _where(location)))

    def timeline(self) -> Timeline:
        """All that was seen so far."""
        self._settle()
        self._acting = None
        for warp in list(self._open):
            self._close(warp, self._step + 1)
        ordered = sorted(self._slices, key=lambda s: (s.begin, s.cta, _order(s.track), s.end))
        return Timeline(self.kernel, tuple(ordered), self._step + 1)

    def _settle(self) -> None:
        """Add what the acting warp did in its turn, and what it now waits for, to its slices."""
        warp = self._acting
        if warp is None:
            return
        executed, moved = warp.instructions - self._before, warp.advanced or warp.done
        if moved:
            self._go_on(warp, RUN, _where(self._site), self._step).instructions += executed
        if warp.waiting is not None and not warp.done:
            barrier, what = warp.waiting
            name = f"waits for {what} of {_name(barrier.describe())}"
            self._go_on(warp, WAIT, name, self._step + moved)
        self._acting = None

    def _go_on(self, warp: Warp, kind: str, name: str, begin: int) -> _Open:
        """The warp's open slice of this kind; what was open before ends."""
        last = self._open.get(warp)
        same = last is not None and last.kind == kind and (kind == RUN or last.name == name)
        if last is None or not same or (kind == RUN and last.end < begin):
            self._close(warp, begin)
            source = _where(self._site)
            last = self._open[warp] = _Open(kind, name, begin, begin, source)
        last.end = max(last.end, begin + 1)
        return last

    def _close(self, warp: Warp, step: int) -> None:
        """Keep a warp's open slice; a wait lasts until ``step``."""
        last = self._open.pop(warp, None)
        if last is None:
            return
        end = step if last.kind == WAIT else last.end
        if end > last.begin:
            self._keep(
                Slice(
                    warp.cta.index, f"warp {warp.rank}", last.kind, last.name, last.begin, end,
                    last.source, last.instructions,
                )
            )  # fmt: skip

    def _keep(self, one: Slice) -> None:
        if len(self._slices) >= MOST_SLICES:
            raise ValueError(f"timeline: more than {MOST_SLICES} slices; trace a smaller problem")
        self._slices.append(one)


class Recorders:
    """Makes what watches each cluster of a call: the first ``clusters`` of each kernel are kept."""

    def __init__(self, clusters: int = 1) -> None:
        self._clusters = clusters
        self._made: list[Recorder] = []

    def __call__(self) -> Recorder:
        """The recorder of the next cluster; those of other clusters before it that are too many go.

        What ran in a cluster is known only after it.
        """
        self._made = self._kept()
        self._made.append(Recorder())
        return self._made[-1]

    @property
    def timelines(self) -> tuple[Timeline, ...]:
        """What was seen, in the order in which the clusters ran."""
        return tuple(recorder.timeline() for recorder in self._kept())

    def _kept(self) -> list[Recorder]:
        seen: dict[str, int] = {}
        kept = []
        for recorder in self._made:
            seen[recorder.kernel] = seen.get(recorder.kernel, 0) + 1
            if seen[recorder.kernel] <= self._clusters:
                kept.append(recorder)
        return kept


def _where(location: Location) -> str:
    """The source line if it is known, else the PTX line."""
    if location.source:
        return "/".join(location.source.split("/")[-2:])
    return f"PTX line {location.ptx_line}"


def _name(description: str) -> str:
    """A barrier without its state, which changes while one waits."""
    return description.split(" in phase ")[0].split(" (")[0]
