"""Campaigns whose cases run in this process, for tests that need no worker to die."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fuzz.campaign import Budget, Campaign, Hunt
from fuzz.corpus import Corpus
from fuzz.draw import cases
from fuzz.jobs import Answer, Bench
from fuzz.progress import Progress
from reports.records import Case
from tests.fuzz.kernels import NAME


class InProcess:
    """An executor that runs cases here; ``on_case`` is told each one first."""

    def __init__(self, kernel: str, on_case: Any = lambda case: None) -> None:
        self._bench = Bench(NAME.format(kernel), "simulator")
        self._on_case = on_case

    def run(self, case: Case) -> Answer:
        self._on_case(case)
        return self._bench.do(case)

    def close(self) -> None:
        pass


def hunt(kernel: str, on_case: Any = lambda case: None) -> Hunt:
    name = NAME.format(kernel)
    bench = Bench(name, "simulator")
    return Hunt(
        f"run {name}", name, bench.subject.kernel, cases(bench.subject),
        lambda: InProcess(kernel, on_case),
    )  # fmt: skip


def campaign(
    tmp_path: Path, kernel: str, budget: Budget, *, said: list[str] | None = None, **options: Any
) -> Campaign:
    write = (said if said is not None else []).append
    options = {"seed": 0, "results": tmp_path / "results", **options}
    asked = options.pop("hunt", None) or hunt(kernel)
    corpus = options.pop("corpus", None) or Corpus(tmp_path / "corpus", write)
    return Campaign(asked, corpus, budget, progress=Progress(write, is_terminal=False), **options)
