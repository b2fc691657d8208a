"""Settings of all tests of the fuzzer."""

import pytest
import torch

# The matrices are small: threads gain nothing, and on a busy machine they wait for each other.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def small_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems that the oracle answers in milliseconds."""
    monkeypatch.setattr("fuzz.draw.MOST_WORK", 6000)
    monkeypatch.setattr("fuzz.draw.LONGEST", 150)
