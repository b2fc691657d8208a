"""A pytest plugin: kernels of tests that run as they should are watched by every preset as well.

    python -m pytest -p tests.simulator.watched tests/simulator/test_*.py

Each kernel that a test gives to ``ptx_text.run`` without checks of its own, and that ends well, has
been watched. At the end a line of JSON goes to the file that the environment variable
``WATCHED_REPORT`` names, else to the terminal: how many kernels with different texts that were, and
what was found, by test.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import pytest

from simulator.checks import PRESETS, Checks
from tests.simulator import ptx_text

CHECKS: Final = Checks.of(*(set(PRESETS) - {"all"}), on_finding="collect")


class Watcher:
    """Stands in for ``launch_kernel``; ``kernels`` are the texts, ``found`` findings by test."""

    def __init__(self) -> None:
        self._launch = ptx_text.launch_kernel
        self._test = ""
        self.kernels: set[str] = set()
        self.found: dict[str, set[str]] = defaultdict(set)

    def pytest_sessionstart(self) -> None:
        """From now on every launch comes here."""
        ptx_text.launch_kernel = self.launch

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """The launches that follow are this test's."""
        self._test = item.name.partition("[")[0]

    def launch(self, text: str, *arguments: Any, **options: Any) -> Any:
        """Launch the kernel, watched where the test leaves checks and executor's choice to us."""
        if options.get("executor") != "interpreter" or "checks" in options:
            return self._launch(text, *arguments, **options)
        run = self._launch(text, *arguments, checks=CHECKS, **options)
        self.kernels.add(text)
        if run.findings:
            self.found[self._test] |= {f"{one.check}: {one.sentence}" for one in run.findings}
        return run

    def pytest_unconfigure(self) -> None:
        """Tell what was seen."""
        found = {test: sorted(what) for test, what in sorted(self.found.items())}
        report = json.dumps({"kernels": len(self.kernels), "found": found})
        place = os.environ.get("WATCHED_REPORT")
        if place:
            Path(place).write_text(report, encoding="utf-8")
        else:
            print(report)  # noqa: T201


def pytest_configure(config: pytest.Config) -> None:
    """Watch this session."""
    config.pluginmanager.register(Watcher())
