"""The programs of test_synchronisation.py once more, run by the native executor."""

import pytest

from simulator.launch import launch_kernel
from tests.simulator.test_synchronisation import *  # noqa: F403


@pytest.fixture(autouse=True)
def _native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(launch_kernel.__kwdefaults__, "executor", "native")
