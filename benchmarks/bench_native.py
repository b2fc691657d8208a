"""Time of the two executors on a published kernel, and of compiling forms: printed, never gated."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from conformance.adapters import tokenspeed
from conformance.adapters.tokenspeed_wrapper import PEERS
from conformance.kernel import RunOptions
from reference.inputs import make_inputs
from reference.problem import Dims, Problem, Recipe
from simulator.codegen.image import forms
from simulator.codegen.library import Library
from simulator.decode import decode
from simulator.launch import ExecutorName
from simulator.ptx.parser import parse

needs_peers = pytest.mark.skipif(
    not (PEERS / "tokenspeed-mla-2.0.4").is_dir(),
    reason=f"tokenspeed-mla is not in {PEERS.name}/: nox -s peers installs it",
)
PROBLEMS = {
    "short": ((256, 200), 2),
    "long": ((4096,), 4),
}
FORMS = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k() {
    .reg .f32 %f<4>; .reg .b32 %r<4>; .reg .b16 %h<2>; .reg .pred %p<2>;
    fma.rn.f32 %f1, %f2, %f3, %f1; ex2.approx.ftz.f32 %f2, %f1; max.NaN.f32 %f3, %f1, %f2;
    add.s32 %r1, %r2, %r3; setp.lt.s32 %p1, %r1, 7; selp.b32 %r2, %r1, %r3, %p1;
    cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2; shfl.sync.bfly.b32 %r3, %r1, 16, 31, -1;
    ret;
}
"""


@needs_peers
@pytest.mark.parametrize("executor", ["interpreter", "native"])
@pytest.mark.parametrize("size", PROBLEMS)
def test_run(benchmark: BenchmarkFixture, size: str, executor: ExecutorName) -> None:
    """FP8, 128 heads: the whole call, MMA and TMA included, code compiled before."""
    seq_lens, splits = PROBLEMS[size]
    problem = Problem(Dims(128, 1), "float8_e4m3fn", 64, seq_lens, softmax_scale=192**-0.5)
    inputs = make_inputs(problem, Recipe(), 0)
    kernel = tokenspeed.fp8_2_0_4()
    options = RunOptions(num_splits=splits, executor=executor)
    kernel.run(problem, inputs, options)
    output = benchmark.pedantic(kernel.run, (problem, inputs, options), rounds=2)
    assert output.out.isfinite().all()


@needs_peers
@pytest.mark.parametrize(
    ("batch", "keys"),
    [(1, 1024), (1, 2048), (1, 4096), (1, 8192), (1, 16384), (4, 1024), (4, 2048), (4, 4096)],
)
def test_growth(benchmark: BenchmarkFixture, batch: int, keys: int) -> None:
    """Time over K and B, one split: should be linear in their product."""
    problem = Problem(Dims(128, 1), "float8_e4m3fn", 64, (keys,) * batch, softmax_scale=192**-0.5)
    inputs = make_inputs(problem, Recipe(), 0)
    kernel, options = tokenspeed.fp8_2_0_4(), RunOptions(num_splits=1)
    kernel.run(problem, inputs, options)
    output = benchmark.pedantic(kernel.run, (problem, inputs, options), rounds=3)
    assert output.out.isfinite().all()


def test_compile_forms(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Eight forms and the driver, nothing in the cache."""
    wanted = forms(decode(parse(FORMS).kernels["k"]))
    folders = (tmp_path / str(i) for i in range(100))
    library = benchmark.pedantic(
        lambda: Library(next(folders)).functions(wanted), rounds=3, iterations=1
    )
    assert len(library) == 8
