"""Another version of a kernel beside the one under test: found, checked out aside, and compared.

Of another revision only the folder ``optimized/`` is taken: the kernels and their host code. What
judges and simulates is today's for both, so that only the kernel differs.
"""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path

from conformance.kernel import UsageError, known_kernels
from fuzz.jobs import Answer
from fuzz.worker import ROOT, Limits, Worker
from reports.records import Case

ASIDE = ROOT / ".cache" / "baselines"
PACKAGE = "optimized"


@dataclass(frozen=True)
class Baseline:
    """A kernel's name, and the folder whose packages come first when it is imported."""

    kernel: str
    folder: Path | None = None


def find_baseline(text: str, kernel: str) -> Baseline:
    """What ``--baseline`` means: a folder with `optimized/`, a kernel's name, or a git revision.

    UsageError where it is none of these.
    """
    path = Path(text)
    if (path / PACKAGE).is_dir():
        return Baseline(kernel, path.resolve())
    if ".py:" in text or text in known_kernels():
        return Baseline(text)
    revision = _git("rev-parse", "--verify", "--quiet", f"{text}^{{commit}}").decode().strip()
    if not revision:
        raise UsageError(
            f"--baseline: {text!r} is no folder that holds {PACKAGE}/, no kernel and no revision"
        )
    return Baseline(kernel, _checked_out(revision))


def _checked_out(revision: str) -> Path:
    """The folder with the kernels of a revision; it appears whole or not at all."""
    folder = ASIDE / revision
    if not folder.is_dir():
        ASIDE.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix="partial-", dir=ASIDE))
        with tarfile.open(fileobj=BytesIO(_git("archive", revision, PACKAGE))) as archive:
            # Only files and folders below it; a Python before 3.11.4 does not know the filter.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(partial)
        # What was compiled is found by its sources, so both versions may look in one place.
        (partial / ".cache").symlink_to(ROOT / ".cache")
        partial.rename(folder)
    return folder


def _git(*arguments: str) -> bytes:
    """What git prints, nothing where it fails."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, check=False).stdout


@dataclass
class Speed:
    """What both versions took for the same cases: warp-instructions and seconds, old and new."""

    instructions: list[int] = field(default_factory=lambda: [0, 0])
    seconds: list[float] = field(default_factory=lambda: [0.0, 0.0])
    covered: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    cases: int = 0

    def add(self, old: Answer, new: Answer) -> None:
        """Count one case."""
        self.cases += 1
        for version, answer in enumerate((old, new)):
            self.instructions[version] += answer.instructions
            self.seconds[version] += answer.result.seconds
            self.covered[version].update(answer.features)

    def text(self) -> str:
        """Both versions side by side, a line for each quantity."""
        (old_count, new_count), (old_time, new_time) = self.instructions, self.seconds
        rows: list[tuple[str, float, float]] = [
            ("warp-instructions", old_count, new_count),
            ("seconds of simulation", old_time, new_time),
        ]
        for kind in ("block", "edge", "plan"):
            counts = [sum(f.startswith(kind) for f in features) for features in self.covered]
            rows.append((f"{kind}s reached", counts[0], counts[1]))
        lines = [f"{self.cases} cases on both, baseline and candidate:"]
        for name, old, new in rows:
            change = f"{100 * (new / old - 1):+.2f} %" if old else "-"
            lines.append(f"  {name:22} {old:>16,.6g} {new:>16,.6g}  {change}")
        return "\n".join(lines)


class Pair:
    """Runs each case on both versions; an executor. ``on_both`` is told the two answers."""

    def __init__(
        self,
        kernel: str,
        baseline: Baseline,
        engine: str,
        limits: Limits,
        *,
        bitwise: bool,
        on_both: Callable[[Answer, Answer], None],
    ) -> None:
        self._bitwise, self._on_both = bitwise, on_both
        self._old = Worker(baseline.kernel, engine, limits, baseline.folder)
        self._new = Worker(kernel, engine, limits)

    def run(self, case: Case) -> Answer:
        """How the candidate does where the baseline is right; elsewhere the case says nothing."""
        old = self._old.run(case)
        if old.output is None or old.result.is_bad:
            reason = f"the baseline itself: {old.result.verdict}: {old.result.reason}"
            return Answer(replace(old.result, case=case, verdict="skipped", reason=reason))
        new = self._new.run(case, old.output, self._bitwise)
        self._on_both(old, new)
        return new

    def close(self) -> None:
        """End both workers."""
        self._old.close()
        self._new.close()
