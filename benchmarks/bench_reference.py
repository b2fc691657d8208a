"""Time of the oracle per problem: printed, never gated."""

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from reference.decode import decode
from reference.inputs import make_inputs
from reference.problem import Dims, Problem, Recipe

SIZES = {
    "small: 1 request of 128 keys, 16 heads": (Dims(16, 1), (128,)),
    "medium: 4 requests of up to 700 keys, 128 heads": (Dims(128, 1), (700, 333, 129, 1)),
    "large: 2 requests of 8192 keys, 128 heads, 4 tokens": (Dims(128, 4), (8192, 8192)),
}


@pytest.fixture(params=SIZES)
def problem(request: pytest.FixtureRequest) -> Problem:
    dims, seq_lens = SIZES[request.param]
    return Problem(dims, "float8_e4m3fn", 64, seq_lens, softmax_scale=192**-0.5)


def test_inputs(benchmark: BenchmarkFixture, problem: Problem) -> None:
    inputs = benchmark(make_inputs, problem, Recipe(), 0)
    assert inputs.query.shape[0] == problem.batch_size


def test_oracle(benchmark: BenchmarkFixture, problem: Problem) -> None:
    decoded = benchmark(decode, problem, make_inputs(problem, Recipe(), 0))
    assert decoded.out.dtype == torch.float64
    assert decoded.out.isfinite().all()
