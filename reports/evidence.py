"""Everything that a set of records says about one kernel, gathered in one pass over each file.

A file is read as a stream, so 100,000 cases cost time and little memory. Verdicts add up over runs
and machines: a failure anywhere stays a failure. Of measurements with one topic and name the last
run's counts.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from reports.records import (
    RECORDS_FILE,
    Case,
    CaseResult,
    Measurement,
    RecordError,
    RunHeader,
    RunSummary,
    TornLine,
    scan,
)

WORST_CASES = 10
_ENCODER = json.JSONEncoder(sort_keys=True)
BAD_CASES = 100
RATIO_BINS = tuple(index / 20 for index in range(21))
"""Edges of the bins that error/bound is counted in; what lies above the last is a failure."""


@dataclass(frozen=True)
class Source:
    """One records file: where from, made by what, and whether its run ended by itself."""

    path: str
    sha256: str
    header: RunHeader
    results: int
    measurements: int
    seconds: float
    ended: bool


@dataclass(frozen=True)
class HeatMap:
    """How often two factors met: ``cells`` maps (row, column) to judgements and bad ones."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], tuple[int, int]]


@dataclass
class PropertyTally:
    """Verdicts of one property; ``ratios`` counts error/bound in `RATIO_BINS`."""

    verdicts: Counter[str] = field(default_factory=Counter)
    ratios: list[int] = field(default_factory=lambda: [0] * len(RATIO_BINS))
    worst_ratio: float | None = None

    def add(self, result: CaseResult) -> None:
        """Count one result; ratios of expected failures say nothing of the kernel."""
        self.verdicts[result.verdict] += 1
        ratio = result.ratio
        if ratio is None or result.verdict not in ("passed", "failed", "unexpected_pass"):
            return
        bounded = ratio if math.isfinite(ratio) else math.inf
        self.worst_ratio = max(bounded, self.worst_ratio or 0.0)
        last = len(RATIO_BINS) - 1
        self.ratios[last if bounded > 1 else min(int(bounded * last), last - 1)] += 1


@dataclass(frozen=True)
class Evidence:
    """What is known of ``kernel``; ``warnings`` are sentences about the records themselves."""

    kernel: str
    sources: tuple[Source, ...]
    warnings: tuple[str, ...]
    problems: int
    properties: Mapping[str, PropertyTally]
    heat_maps: Mapping[str, HeatMap]
    worst: tuple[CaseResult, ...]
    bad: tuple[CaseResult, ...]
    measurements: Mapping[str, Mapping[str, Measurement]]

    @property
    def verdicts(self) -> Counter[str]:
        """Verdicts of all properties together."""
        return sum((tally.verdicts for tally in self.properties.values()), Counter())

    @property
    def revisions(self) -> tuple[str, ...]:
        """The git revisions that the records come from; ``unknown`` stands for none."""
        return tuple(sorted({source.header.revision or "unknown" for source in self.sources}))

    def of(self, topic: str) -> Mapping[str, Measurement]:
        """The measurements of one topic, by name."""
        return self.measurements.get(topic, {})


def record_files(paths: Iterable[Path]) -> list[Path]:
    """Return the records files among ``paths``, folders searched; RecordError where one has none.

    They come in the order of their folders' names, which begin with the time.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise RecordError(f"records: there is no file or folder {path}")
        files = sorted(path.rglob(RECORDS_FILE)) if path.is_dir() else [path]
        if not files:
            raise RecordError(f"records: no {RECORDS_FILE} in {path}")
        found += files
    return list(dict.fromkeys(found))


def gather(kernel: str, paths: Iterable[Path], now: datetime | None = None) -> Evidence:
    """Return what the records files at ``paths`` say of ``kernel``; ``now`` is the time of reading.

    Files that say nothing of it are left out. Raises RecordError for a file that is no record.
    """
    gathering = _Gathering(kernel, now or datetime.now(UTC))
    for path in paths:
        gathering.read(path)
    return gathering.evidence()


class _Gathering:
    """The pass over the files."""

    def __init__(self, kernel: str, now: datetime) -> None:
        self.kernel = kernel
        self.now = now
        self.sources: list[Source] = []
        self.warnings: list[str] = []
        self.problems = set[bytes]()
        self.properties: defaultdict[str, PropertyTally] = defaultdict(PropertyTally)
        self.cells: dict[str, defaultdict[tuple[str, str], list[int]]] = {
            name: defaultdict(lambda: [0, 0]) for name in HEAT_MAPS
        }
        self.worst: list[tuple[float, int, CaseResult]] = []
        self.bad: list[CaseResult] = []
        self.measurements: defaultdict[str, dict[str, Measurement]] = defaultdict(dict)
        self.count = 0

    def read(self, path: Path) -> None:
        header: RunHeader | None = None
        results, measurements, seconds = 0, 0, 0.0
        ended = torn = False
        for line in scan(path):
            match line:
                case RunHeader():
                    header = line
                case CaseResult() if line.case.kernel == self.kernel:
                    self._take(line)
                    results += 1
                    seconds += line.seconds
                case Measurement() if line.kernel == self.kernel:
                    self.measurements[line.topic][line.name] = line
                    measurements += 1
                case RunSummary():
                    ended = True
                case TornLine():
                    torn = True
        assert header is not None
        if results or measurements:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            source = Source(str(path), digest, header, results, measurements, seconds, ended)
            self.sources.append(source)
            self._warn(source, torn)

    def _take(self, result: CaseResult) -> None:
        self.count += 1
        self.problems.add(_digest(result.case.problem))
        self.properties[result.case.property].add(result)
        if result.verdict == "skipped":
            return
        factors = {name: factor(FACTORS[name], result.case) for name in MAPPED}
        for name, (row, column) in HEAT_MAPS.items():
            cell = self.cells[name][factors[row], factors[column]]
            cell[0] += 1
            cell[1] += result.is_bad
        if result.is_bad and len(self.bad) < BAD_CASES:
            self.bad.append(result)
        if result.ratio is not None and result.verdict != "expected_failure":
            ratio = math.inf if math.isnan(result.ratio) else result.ratio
            keep = heapq.heappush if len(self.worst) < WORST_CASES else heapq.heappushpop
            keep(self.worst, (ratio, -self.count, result))

    def _warn(self, source: Source, torn: bool) -> None:
        if torn:
            self.warnings.append(f"{source.path}: the last line is torn; its run was killed")
        elif not source.ended:
            self.warnings.append(f"{source.path}: no summary; its run was killed or still goes on")
        started = _time(source.header.started)
        if started is None:
            self.warnings.append(f"{source.path}: started {source.header.started!r} is no time")
        elif started > self.now:
            self.warnings.append(
                f"{source.path}: started {source.header.started}, which is after this report "
                f"({self.now.isoformat(timespec='seconds')}): a clock went backwards"
            )

    def evidence(self) -> Evidence:
        return Evidence(
            self.kernel,
            tuple(self.sources),
            tuple(self.warnings),
            len(self.problems),
            dict(self.properties),
            {name: _heat_map(cells) for name, cells in self.cells.items() if cells},
            tuple(result for _, _, result in sorted(self.worst, key=lambda w: (-w[0], -w[1]))),
            tuple(self.bad),
            {topic: dict(entries) for topic, entries in self.measurements.items()},
        )


def factor(value: Callable[[Case], str], case: Case) -> str:
    """Return the factor's value; a problem of another tool may lack what it is read from."""
    try:
        return value(case)
    except (KeyError, TypeError):
        return "?"


def _keys(case: Case) -> str:
    """The longest request's keys, as the power of two that holds them."""
    longest = max(case.problem["seq_lens"], default=0)
    return "0" if longest == 0 else f"≤{1 << (longest - 1).bit_length()}"


def _mask(case: Case) -> str:
    mask = case.problem["mask"]
    kind = "causal" if mask["causal"] else "full"
    return kind if mask["window_left"] < 0 else f"{kind}, window"


def _dcp(case: Case) -> str:
    dcp = case.problem["dcp"]
    return f"W{dcp['world']} I{dcp['interleave_size']}"


def _recipe(case: Case) -> str:
    values = str(case.recipe.get("values", "?"))
    return f"{values}, poison" if case.recipe.get("poison") else values


FACTORS: Mapping[str, Callable[[Case], str]] = {
    "dtype": lambda case: str(case.problem["dtype"]),
    "heads": lambda case: str(case.problem["dims"]["num_heads"]),
    "tokens": lambda case: str(case.problem["dims"]["seq_len_q"]),
    "page size": lambda case: str(case.problem["page_size"]),
    "splits": lambda case: "planned" if case.num_splits is None else str(case.num_splits),
    "mask": _mask,
    "context parallel": _dcp,
    "recipe": _recipe,
    "keys": _keys,
    "schedule": lambda case: case.policy,
    "checks": lambda case: " ".join(case.checks),
    "layout": lambda case: str(case.recipe["layout"]),
    "table tail": lambda case: str(case.recipe["table_tail"]),
    "persistent": lambda case: str(not case.problem["is_var_seq"]),
    "PDL": lambda case: str(case.problem["enable_pdl"]),
    "LSE base": lambda case: str(case.problem["lse_base"]),
    "batch": lambda case: str(len(case.problem["seq_lens"])),
}
"""What the heat maps count cases by."""

HEAT_MAPS: Mapping[str, tuple[str, str]] = {
    f"{row} x {column}": (row, column)
    for row, column in (
        ("dtype", "heads"),
        ("tokens", "heads"),
        ("page size", "splits"),
        ("mask", "context parallel"),
        ("recipe", "keys"),
        ("schedule", "batch"),
    )
}


MAPPED = tuple(dict.fromkeys(name for pair in HEAT_MAPS.values() for name in pair))
"""The factors that some heat map counts by."""


def _heat_map(cells: Mapping[tuple[str, str], list[int]]) -> HeatMap:
    rows = tuple(sorted({row for row, _ in cells}, key=natural))
    columns = tuple(sorted({column for _, column in cells}, key=natural))
    return HeatMap(rows, columns, {key: (ran, bad) for key, (ran, bad) in sorted(cells.items())})


def natural(text: str) -> tuple[float, str]:
    """Return a key for sorting: numbers in their order, words after them."""
    digits = text.lstrip("≤W").split(" ")[0]
    return (float(digits), text) if digits.isdecimal() else (math.inf, text)


def _digest(values: dict[str, Any]) -> bytes:
    return hashlib.blake2b(_ENCODER.encode(values).encode(), digest_size=12).digest()


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
