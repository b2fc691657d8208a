"""Which PTX the runs of a session executed, and which none of them did, by kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from conformance.judge import Subject
from conformance.kernel import Output
from reports.records import Measurement
from simulator.launch import Coverage, merged


class Covered:
    """Adds up what outputs say was executed; specialisations of a kernel are kept apart."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, int], tuple[int, Coverage]] = {}

    def add(self, subject: Subject, output: Output) -> None:
        """Count the launches of one run."""
        for launch in output.launches:
            coverage = launch.coverage
            if coverage is None:
                continue
            key = (subject.name, coverage.kernel, coverage.num_blocks)
            times, before = self._found.get(key, (0, coverage))
            self._found[key] = (times + 1, merged(before, coverage))

    def measurements(self) -> Iterator[Measurement]:
        """Yield one for each specialisation: its blocks, and those that no launch executed."""
        for (subject, kernel, _), (launches, coverage) in self._found.items():
            detail = {
                "launches": launches,
                "blocks": coverage.num_blocks,
                "executed": len(coverage.blocks),
                "edges": coverage.num_edges,
                "edges_followed": len(coverage.edges),
                "uncovered": [
                    _region(region.sources, region.ptx_lines) for region in coverage.uncovered
                ],
            }
            yield Measurement(subject, "coverage", kernel, detail=detail)


def _region(sources: Iterable[str], lines: tuple[int, int]) -> str:
    """Return a block in words: its source lines, shortened, and its lines of the PTX."""
    short = ", ".join(dict.fromkeys("/".join(source.split("/")[-2:]) for source in sources))
    return f"{short or 'no line information'} (PTX {lines[0]}-{lines[1]})"
