"""The corpus: every fault that campaigns found, grouped by signature, each case a file of its own.

    CORPUS/faults/<signature>/<case id>.json    one failing case, with its result
    CORPUS/examples/                            hypothesis' databases: buffers that failed, and
                                                buffers that reached something new

A file's name is the id of the case in it, which is a digest of the case: what does not hold what
its name says is passed over, with a warning, and stays where it is. Files are written aside and
renamed, and never changed, so any number of campaigns may share a corpus.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis.database import DirectoryBasedExampleDatabase

from conformance.kernel import UsageError
from fuzz.faults import Signature, signature_of
from reports.records import Case, CaseResult, RecordError

SCHEMA_VERSION = 1
MOST_CASES = 16  # of one fault that are kept beside the minimal one


class StorageError(OSError):
    """A corpus or record that can no longer be written; the message holds what was not kept."""


@dataclass(frozen=True)
class Entry:
    """One failing case. ``is_minimal`` says that no one-step reduction of it fails.

    ``options`` is what a replay needs beside the case: the baseline, and whether bits must agree.
    """

    result: CaseResult
    is_minimal: bool
    options: dict[str, Any]

    @property
    def case(self) -> Case:
        """The case that fails."""
        return self.result.case

    @property
    def signature(self) -> Signature:
        """Which fault it shows."""
        return signature_of(self.result)

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON values."""
        return {
            "schema_version": SCHEMA_VERSION,
            "signature": str(self.signature),
            "is_minimal": self.is_minimal,
            "options": self.options,
            "result": self.result.to_json(),
        }

    @classmethod
    def from_json(cls, values: object) -> Entry:
        """The entry; RecordError for another version and for missing or wrong values."""
        if not isinstance(values, dict) or values.get("schema_version") != SCHEMA_VERSION:
            raise RecordError(f"schema_version: a corpus entry of {SCHEMA_VERSION} is wanted")
        minimal, options = values.get("is_minimal"), values.get("options")
        if not isinstance(minimal, bool) or not isinstance(options, dict):
            raise RecordError("is_minimal and options: a bool and an object are wanted")
        return cls(CaseResult.from_json(values.get("result")), minimal, options)


class Corpus:
    """The corpus in ``root``; ``warn`` is told of files that are passed over."""

    def __init__(self, root: Path, warn: Callable[[str], None]) -> None:
        self.root = root
        self._faults = root / "faults"
        self._warn = warn

    def require_writable(self) -> None:
        """Make the folder; UsageError, before any work, where it cannot be written."""
        try:
            self._faults.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._faults):
                pass
        except OSError as error:
            raise UsageError(
                f"--corpus: {self.root} cannot be written: {error.strerror}; a campaign needs a "
                "folder of its own, replay and export only read"
            ) from error

    def database(self, campaign: str) -> DirectoryBasedExampleDatabase:
        """The buffers of campaigns that draw alike, shared by all their workers."""
        name = hashlib.sha256(campaign.encode()).hexdigest()[:12]
        return DirectoryBasedExampleDatabase(self.root / "examples" / name)

    def add(self, entry: Entry) -> Path:
        """Keep an entry; StorageError, which holds the whole case, where that is not possible."""
        path = self._faults / entry.signature.id / f"{entry.case.id}.json"
        text = json.dumps(entry.to_json(), indent=1, sort_keys=True, allow_nan=False) + "\n"
        if path.exists() and not entry.is_minimal:
            return path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix="partial-")
            try:
                with os.fdopen(descriptor, "w", encoding="ascii") as file:
                    file.write(text)
                Path(name).replace(path)
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise StorageError(
                f"{path} cannot be written: {error.strerror}; the case that failed is\n"
                f"{json.dumps(entry.case.to_json())}"
            ) from error
        return path

    def entries(self) -> Iterator[Entry]:
        """Every readable entry, the minimal ones of each fault first."""
        for folder in sorted(self._faults.glob("*")):
            found = [entry for path in sorted(folder.glob("*.json")) if (entry := self._read(path))]
            yield from sorted(found, key=lambda entry: not entry.is_minimal)

    def find(self, text: str) -> list[Entry]:
        """The entries whose case or signature id begins with ``text``; UsageError if none does."""
        found = [
            entry
            for entry in self.entries()
            if entry.case.id.startswith(text) or entry.signature.id.startswith(text)
        ]
        if not found:
            raise UsageError(f"{text!r} is no case and no fault of the corpus {self.root}")
        return found

    def _read(self, path: Path) -> Entry | None:
        """The entry in a file, None for one that does not hold what its name says."""
        try:
            entry = Entry.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            self._warn(f"{path}: passed over: {error}")
            return None
        if entry.case.id != path.stem:
            self._warn(f"{path}: passed over: it holds case {entry.case.id}")
            return None
        return entry
