"""The example's call, compiled once and saved, for the commands to work on."""

import importlib.util
import warnings
from pathlib import Path

import pytest

from simulator import artefact

EXAMPLE = Path(__file__).parents[3] / "examples" / "scale.py"


@pytest.fixture(scope="session")
def example_call() -> artefact.Call:
    spec = importlib.util.spec_from_file_location("scale_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler
        return module.call()


@pytest.fixture
def saved(example_call: artefact.Call, tmp_path: Path) -> Path:
    """A folder with the example's call."""
    artefact.save(example_call, tmp_path / "scale")
    return tmp_path / "scale"
