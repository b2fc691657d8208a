"""The one format that every tool writes while it runs: JSON Lines, one object a line.

    {"kind": "header", "schema_version": 3, "tool": ..., "revision": ..., ...}
    {"kind": "result", "case": {...}, "verdict": "passed", "ratio": 0.41, ...}
    {"kind": "measurement", "kernel": ..., "topic": "compilation", "name": ..., "value": ..., ...}
    ...
    {"kind": "summary", "distinct_problems": 57, "verdicts": {"passed": 112, ...}}

A line is handed to the operating system before the next case starts. A run that is killed leaves
its header, every finished case and at most one torn line, which reading drops; a file without a
summary is a run that did not end. Every line also obeys ``schema/records-v3.schema.json``.
Version 1 had no measurements, version 2 none of the topic ``instructions``; both are otherwise the
same, and their files are read as they are.

This module imports the standard library only: tools of every package write through it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import platform
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

SCHEMA_VERSION = 3
READABLE_VERSIONS = (1, 2, 3)
VERDICTS = ("passed", "failed", "expected_failure", "unexpected_pass", "skipped", "error")
BAD_VERDICTS = ("failed", "unexpected_pass", "error")
RECORDS_FILE = "records.jsonl"
SCHEMA_FILE = Path(__file__).parent / "schema" / f"records-v{SCHEMA_VERSION}.schema.json"

TOPICS = {
    "compilation": "one compiled specialisation: registers, spills, memory, hash of its PTX",
    "mutant": "one mutant of a kernel: killed, survived or equivalent, and by what",
    "coverage": "basic blocks of the PTX that ran and that did not",
    "sanitizer": "findings of one check of the simulator or of a device tool; value: how many",
    "false_alarms": "right answers that were refused; value: how many of the draws",
    "fuzz": "one campaign: cases, findings, growth of coverage",
    "benchmark": "one timing; value in the unit given",
    "instructions": "what one launch executed, by class; value: warp-instructions",
    "timeline": "a drawing of one run, in a file beside the records",
}
"""What a measurement can be about; docs/reports.md lists the keys of each one's detail."""

_DISTRIBUTIONS = (
    "torch", "numpy", "llvmlite", "nvidia-cutlass-dsl", "apache-tvm-ffi", "hypothesis", "pytest",
)  # fmt: skip


class RecordError(ValueError):
    """A record that cannot be read; the message names the key, its value and what is allowed."""


@dataclass(frozen=True)
class Case:
    """Everything needed to run one check again exactly.

    ``problem`` and ``recipe`` are the JSON of reference.problem's Problem and Recipe, ``arch`` is
    the target of the compilation, as ``sm_100a``, and ``num_splits`` is None where the kernel's own
    plan chose. Corpus files, regression cases and expectations hold the same object.
    """

    kernel: str
    engine: str
    arch: str
    property: str
    problem: dict[str, Any]
    recipe: dict[str, Any]
    seed: int
    policy: str
    policy_seed: int
    checks: tuple[str, ...]
    num_sms: int
    num_splits: int | None

    @functools.cached_property
    def id(self) -> str:
        """The first 16 hex digits of the SHA-256 of the case's canonical JSON."""
        return hashlib.sha256(canonical_json(self.to_json()).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Return the case as JSON values; ``from_json`` gives it back."""
        return {**asdict(self), "checks": list(self.checks)}

    @classmethod
    def from_json(cls, values: object) -> Case:
        """Return the case; RecordError for unknown or missing keys and for wrong types."""
        return _build(cls, values)


@dataclass(frozen=True)
class CaseResult:
    """How one case ended.

    ``ratio`` is the worst error over its bound, ``element`` the element it belongs to, ``bias`` the
    mean signed error over its standard error; each is None where nothing was compared.
    ``error_class`` and ``ptx_line`` come from the error that ended the run, if one did; ``reason``
    says in words what is wrong, or which known limit explains it.
    """

    case: Case
    verdict: str
    ratio: float | None = None
    element: str | None = None
    bias: float | None = None
    seconds: float = 0.0
    error_class: str | None = None
    ptx_line: int | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise RecordError(f"verdict: {self.verdict!r} is none of {', '.join(VERDICTS)}")

    @property
    def is_bad(self) -> bool:
        """Whether this result makes its run fail."""
        return self.verdict in BAD_VERDICTS

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values; an infinity or NaN becomes a string."""
        return {
            **asdict(self),
            "case": self.case.to_json(),
            "ratio": _finite_or_text(self.ratio),
            "bias": _finite_or_text(self.bias),
        }

    @classmethod
    def from_json(cls, values: object) -> CaseResult:
        """Return the result; RecordError for unknown or missing keys and for wrong types."""
        plain = _with_numbers(values, "ratio", "bias")
        if "case" in plain:
            plain["case"] = Case.from_json(plain["case"])
        return _build(cls, plain)


@dataclass(frozen=True)
class Measurement:
    """Something a tool found out about a kernel beside the verdicts on cases.

    ``topic`` is one of `TOPICS`, ``name`` tells measurements of one topic apart (a mutant's id, a
    specialisation, a check). ``value`` is in ``unit`` and None where there is no single number;
    ``detail`` has the rest, as JSON values. Files it names lie in the folder of the records.
    """

    kernel: str
    topic: str
    name: str
    value: float | None = None
    unit: str = ""
    detail: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.topic not in TOPICS:
            raise RecordError(f"topic: {self.topic!r} is none of {', '.join(TOPICS)}")

    def to_json(self) -> dict[str, Any]:
        """Return the measurement as JSON values; an infinity or NaN becomes a string."""
        return {**asdict(self), "value": _finite_or_text(self.value)}

    @classmethod
    def from_json(cls, values: object) -> Measurement:
        """Return the measurement; RecordError for unknown or missing keys and for wrong types."""
        return _build(cls, _with_numbers(values, "value"))


@dataclass(frozen=True)
class RunHeader:
    """The first line of a run: which tool, of which source, with what, where and when (UTC)."""

    tool: str
    revision: str | None
    dirty: bool | None
    versions: dict[str, str]
    device: str
    started: str

    @classmethod
    def collect(cls, tool: str, device: str) -> RunHeader:
        """Return the header of a run that starts now; ``device`` is the caller's own words.

        ``revision`` and ``dirty`` are None outside a git checkout.
        """
        revision, dirty = _git_state(Path(__file__).parent)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(tool, revision, dirty, _versions(), device, started)

    def to_json(self) -> dict[str, Any]:
        """Return the header as JSON values."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, values: object) -> RunHeader:
        """Return the header; RecordError for another schema version and for wrong keys."""
        plain = dict(_mapping(values))
        version = plain.pop("schema_version", None)
        if version not in READABLE_VERSIONS:
            raise RecordError(
                f"schema_version: {version!r} is unknown, this reader knows {READABLE_VERSIONS}"
            )
        return _build(cls, plain)


@dataclass(frozen=True)
class RunSummary:
    """The last line of a run that ended by itself or could still say that it was interrupted."""

    distinct_problems: int
    verdicts: dict[str, int]

    @classmethod
    def of(cls, results: Iterable[CaseResult]) -> RunSummary:
        """Return the counts over ``results``; any file's lines give them again."""
        problems, verdicts = set[str](), Counter[str]()
        for result in results:
            problems.add(canonical_json(result.case.problem))
            verdicts[result.verdict] += 1
        return cls(len(problems), dict(verdicts))

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: object) -> RunSummary:
        """Return the summary; RecordError for unknown or missing keys and for wrong types."""
        return _build(cls, values)


@dataclass(frozen=True)
class TornLine:
    """The end of a run that was killed while it wrote: a last line that is no JSON object."""


Line = RunHeader | CaseResult | Measurement | RunSummary | TornLine


@dataclass(frozen=True)
class Records:
    """What one records file holds; a killed run has no ``summary`` and maybe a ``torn`` end."""

    header: RunHeader
    results: tuple[CaseResult, ...]
    summary: RunSummary | None
    torn: bool
    measurements: tuple[Measurement, ...] = ()


class RecordWriter:
    """Writes one run's records as they come; a context manager that ends with the summary.

    Creates ``<root>/<utc>-<tool>/records.jsonl``; a number is appended where two runs start in the
    same second. Leaving the context writes the summary also when an exception passes through.
    """

    def __init__(self, tool: str, root: str | Path = "results", *, device: str = "cpu") -> None:
        self.path = _new_folder(Path(root), tool) / RECORDS_FILE
        self.results: list[CaseResult] = []
        self._file = self.path.open("x", encoding="ascii")
        self._line("header", RunHeader.collect(tool, device).to_json())

    def write(self, result: CaseResult) -> None:
        """Append one result and hand the line to the operating system."""
        self._line("result", result.to_json())
        self.results.append(result)

    def measure(self, measurement: Measurement) -> None:
        """Append one measurement and hand the line to the operating system."""
        self._line("measurement", measurement.to_json())

    def close(self) -> None:
        """Append the summary and close the file; closing twice does nothing."""
        if not self._file.closed:
            self._line("summary", RunSummary.of(self.results).to_json())
            self._file.close()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _line(self, kind: str, values: dict[str, Any]) -> None:
        self._file.write(json.dumps({"kind": kind, **values}, allow_nan=False) + "\n")
        self._file.flush()


def read_records(path: str | Path) -> Records:
    """Return what a records file holds, a torn last line dropped; errors are those of `scan`."""
    by_type: dict[type, list[Any]] = {kind: [] for kind in get_args(Line)}
    for line in scan(path):
        by_type[type(line)].append(line)
    return Records(
        header=by_type[RunHeader][0],
        results=tuple(by_type[CaseResult]),
        summary=by_type[RunSummary][-1] if by_type[RunSummary] else None,
        torn=bool(by_type[TornLine]),
        measurements=tuple(by_type[Measurement]),
    )


def scan(path: str | Path) -> Iterator[Line]:
    """Yield the lines of a records file one by one, the header first.

    Raises RecordError, naming file and line, for a file without its header and for any other line
    that is not a record. A torn line is a last line without its newline that is no JSON object.
    """
    number = 0
    # Bytes, since a torn or foreign file may hold anything.
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield _line_of(line, number)
            except RecordError as error:
                raise RecordError(f"{path}:{number}: {error}") from error
    if number == 0:
        raise RecordError(f"{path}:1: the file ends before its header does")


def _line_of(line: bytes, number: int) -> Line:
    """Return what the line with this number says; RecordError where it is no record."""
    values = _parsed(line)
    if values is None and number > 1:
        return TornLine()
    if values is None:
        raise RecordError("the file ends before its header does")
    kind = values.pop("kind", None)
    if (kind == "header") != (number == 1):
        raise RecordError("kind: the first line, and no other, is the 'header'")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise RecordError(f"kind: {kind!r} is none of {', '.join(_READERS)}")
    return reader(values)


_READERS: dict[str, Callable[[object], Line]] = {
    "header": RunHeader.from_json,
    "result": CaseResult.from_json,
    "measurement": Measurement.from_json,
    "summary": RunSummary.from_json,
}


def canonical_json(values: object) -> str:
    """Return JSON that is equal for equal values: sorted keys, no spaces, floats as hex strings."""
    return json.dumps(_floats_as_hex(values), sort_keys=True, separators=(",", ":"))


def _floats_as_hex(value: object) -> object:
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return {key: _floats_as_hex(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_floats_as_hex(entry) for entry in value]
    return value


def _finite_or_text(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(float(value))


def _with_numbers(values: object, *keys: str) -> dict[str, Any]:
    """Return a copy in which what `_finite_or_text` made text of is a number again."""
    plain = dict(_mapping(values))
    for key in keys:
        if plain.get(key) in ("inf", "-inf", "nan"):
            plain[key] = float(plain[key])
    return plain


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return the object in ``line``, or None for a torn one."""
    try:
        return dict(_mapping(json.loads(line)))
    except ValueError as error:
        if not line.endswith(b"\n"):
            return None
        raise RecordError(f"not a JSON object: {error}") from error


def _mapping(values: object) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise RecordError(f"expected a JSON object, got {values!r:.80}")
    return values


Record = TypeVar("Record")


def _build(cls: Callable[..., Record], values: object) -> Record:
    """Return ``cls(**values)`` after checking each key and each value's type against its fields."""
    given, known = dict(_mapping(values)), _fields_of(cls)
    if not given.keys() <= known.keys():
        key = next(key for key in given if key not in known)
        raise RecordError(f"{key}: unknown key, known are {', '.join(known)}")
    for key, entry in known.items():
        if key not in given:
            if entry.is_required:
                raise RecordError(f"{key}: missing key")
        elif not entry.fits(given[key]):
            raise RecordError(f"{key}: {given[key]!r:.80} is not of type {entry.type_name}")
        elif entry.is_tuple:
            given[key] = tuple(given[key])
    return cls(**given)


class _Known(NamedTuple):
    """What is known of one field: whether it must be there, which JSON values stand for it."""

    is_required: bool
    fits: Callable[[object], bool]
    type_name: str
    is_tuple: bool


@functools.cache
def _fields_of(cls: Callable[..., object]) -> dict[str, _Known]:
    """Return the fields of a dataclass by name; slow, so asked once."""
    hints = get_type_hints(cls)
    return {
        entry.name: _Known(
            entry.default is MISSING and entry.default_factory is MISSING,
            _fits(hints[entry.name]),
            str(entry.type),
            get_origin(hints[entry.name]) is tuple,
        )
        for entry in fields(cls)  # type: ignore[arg-type]
    }


def _fits(hint: Any) -> Callable[[object], bool]:
    """Return the test whether a JSON value can stand for a field of type ``hint``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple:
        entry = _fits(arguments[0])
        return lambda value: isinstance(value, list | tuple) and all(map(entry, value))
    if origin is dict and arguments[1] is Any:
        return lambda value: isinstance(value, dict)
    if origin is dict:
        entry = _fits(arguments[1])
        return lambda value: isinstance(value, dict) and all(map(entry, value.values()))
    # What JSON reads into has just these classes; a bool is an int to Python and none to JSON.
    kinds = set(arguments or (hint,))
    if float in kinds:
        kinds.add(int)
    return lambda value: value.__class__ in kinds


def _new_folder(root: Path, tool: str) -> Path:
    """Create and return a folder of this run's own under ``root``."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    for attempt in range(1000):
        folder = root / f"{stamp}-{tool}{f'-{attempt}' if attempt else ''}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise RecordError(f"root: {root} already holds 1000 runs of {tool} that started at {stamp}")


def _versions() -> dict[str, str]:
    """Return the version of Python and of each distribution that can change a result."""
    versions = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _git_state(folder: Path) -> tuple[str | None, bool | None]:
    """Return (revision, whether files differ from it), or (None, None) outside a checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain"))
    except (OSError, subprocess.CalledProcessError):
        return None, None
