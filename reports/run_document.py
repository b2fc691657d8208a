"""One recorded run as a page of the documentation.

python -m reports.run_document KERNEL RECORDS > docs/matrix_run.md
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from reports.evidence import FACTORS, Evidence, factor, gather, natural, record_files
from reports.records import CaseResult, RecordError, scan


def document(kernel: str, path: Path) -> str:
    """Return the page on the one run at ``path``; RecordError where it is not one of ``kernel``."""
    evidence = gather(kernel, record_files([path]))
    if len(evidence.sources) != 1:
        raise RecordError(
            f"records: {path} must hold one run of {kernel}, not {len(evidence.sources)}"
        )
    return "\n".join([*_head(evidence), *_properties(evidence), *_factors(kernel, path)]) + "\n"


def _head(evidence: Evidence) -> Iterator[str]:
    (source,) = evidence.sources
    header = source.header
    versions = ", ".join(f"{name} {version}" for name, version in header.versions.items())
    yield f"# A recorded run: {evidence.kernel}"
    yield ""
    yield "Made by `python -m reports.run_document` from the records of one run; do not edit."
    yield ""
    judgements = sum(evidence.verdicts.values())
    yield f"* {evidence.problems:,} distinct problems, {judgements:,} judgements"
    minutes = source.seconds / 60
    yield f"* started {header.started} on {header.device}; {minutes:.0f} minutes of runs"
    yield f"* revision {header.revision}{', with changes' if header.dirty else ''}"
    yield f"* {versions}"
    yield f"* the run {'ended by itself' if source.ended else 'was cut short'}"
    yield ""


def _properties(evidence: Evidence) -> Iterator[str]:
    yield "| property | verdicts | worst error/bound |"
    yield "|---|---|---|"
    for name, tally in evidence.properties.items():
        verdicts = ", ".join(f"{count:,} {verdict}" for verdict, count in tally.verdicts.items())
        worst = "-" if tally.worst_ratio is None else f"{tally.worst_ratio:.4f}"
        yield f"| {name} | {verdicts} | {worst} |"
    yield ""


def _factors(kernel: str, path: Path) -> Iterator[str]:
    """Yield how many runs had each value of each factor, and how many of them were bad."""
    runs: dict[str, tuple[CaseResult, bool]] = {}
    for file in record_files([path]):
        for line in scan(file):
            if isinstance(line, CaseResult) and line.case.kernel == kernel:
                key = f"{line.case.problem}{line.case.recipe}{line.case.seed}"
                known = runs.get(key, (line, False))
                runs[key] = (known[0], known[1] or line.is_bad)
    yield "Runs by the value of each factor:"
    yield ""
    yield "| factor | runs |"
    yield "|---|---|"
    for name, value in FACTORS.items():
        ran: Counter[str] = Counter()
        bad: defaultdict[str, int] = defaultdict(int)
        for result, is_bad in runs.values():
            ran[factor(value, result.case)] += 1
            bad[factor(value, result.case)] += is_bad
        cells = (
            f"{key}: {ran[key]}" + (f" ({bad[key]} bad)" if bad[key] else "")
            for key in sorted(ran, key=natural)
        )
        yield f"| {name} | {', '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernel", help="as the records name it, for example optimized")
    parser.add_argument("records", type=Path, help="a records.jsonl file or its folder")
    given = parser.parse_args(arguments)
    sys.stdout.write(document(given.kernel, given.records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
