"""The example of the simulator's documentation does what it says, and fails as it says."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch

from simulator.errors import HostError, OutOfBounds, Uninitialised
from simulator.launch import LoadedProgram, Tensor, launch, load

PATH = Path(__file__).parents[2] / "examples" / "scale.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scale_example", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def program(example: ModuleType) -> LoadedProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler
        return load(*example.compile_scale())


@pytest.mark.parametrize("length", [1, 127, 128, 1000])
@pytest.mark.parametrize("executor", ["interpreter", "native"])
def test_the_kernel_computes_what_torch_does(program, length, executor):
    generator = torch.Generator().manual_seed(length)
    x, y = (torch.randn(length, generator=generator) for _ in range(2))
    # Rounded once, as the fused multiply-add does it.
    expected = (2.5 * x.double() + y.double()).float()
    result = launch(program, [2.5, Tensor.of(x, "x"), Tensor.of(y, "y")], executor=executor)
    assert torch.equal(y, expected)
    (kernel,) = result.kernels
    assert kernel.grid == (-(-length // 128), 1, 1)


def test_an_error_names_tensor_index_and_source_line(program):
    """x is longer than its allocation, as a wrong host program may claim."""
    held, y = torch.zeros(100), torch.zeros(128)
    x = Tensor("x", held.data_ptr(), (128,), (1,), "float32", held.data_ptr(), 400, owner=held)
    with pytest.raises(OutOfBounds) as caught:
        launch(program, [1.0, x, Tensor.of(y, "y")])
    error = caught.value
    assert "x (float32[128]): index [100]" in error.message
    line = next(i for i, t in enumerate(PATH.read_text().splitlines(), 1) if "y[i] = a" in t)
    assert error.source == f"{PATH}:{line}"
    assert (error.cta, error.warp) == ((0, 0, 0), 3)
    assert error.lanes == tuple(range(4, 32))


def test_an_output_is_not_to_be_read_before_it_is_written(program):
    x, y = torch.zeros(100), torch.zeros(100)
    with pytest.raises(Uninitialised, match=r"y \(float32\[100\]\): index \[0\]"):
        launch(program, [1.0, Tensor.of(x, "x"), Tensor.of(y, "y", initialised=False)])


def test_the_host_function_checks_its_arguments(program):
    x, y = torch.zeros(100), torch.zeros(99)
    with pytest.raises(HostError):
        launch(program, [1.0, Tensor.of(x, "x"), Tensor.of(y, "y")])
    with pytest.raises(HostError):
        launch(program, [1.0, Tensor.of(x.double(), "x"), Tensor.of(x, "y")])


def test_the_script_runs(example, capsys, recwarn):
    example.main()
    assert "warp-instructions" in capsys.readouterr().out
