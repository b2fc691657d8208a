"""Products a second of the tensor core's fused sums: printed, never gated."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from simulator.codegen.accumulate import strategy
from simulator.numerics.formats import BF16, E4M3, Format, decode

M, N = 128, 256


@pytest.mark.parametrize("name", ["b200", "hopper", "ideal"])
@pytest.mark.parametrize("fmt", [E4M3, BF16], ids=lambda f: f.name)
def test_sums(
    benchmark: BenchmarkFixture, fmt: Format, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One step of 32 bytes of K, numbers of one size."""
    rng = np.random.default_rng(0)
    k = 256 // fmt.storage_bits
    low = (1 << fmt.exponent_bits - 1) - 4 << fmt.mantissa_bits
    codes = low + rng.integers(0, 6 << fmt.mantissa_bits, (M + N, k))
    values = decode(codes, fmt)
    c = rng.standard_normal((M, N)).astype(np.float32)
    add = strategy(name)
    d = benchmark(add, values[:M], values[M:], c, step=k, formats=(fmt, fmt))
    assert np.isfinite(d).all()
    rate = M * N * k / benchmark.stats.stats.min
    with capsys.disabled():
        sys.stdout.write(f"\n{name}, {fmt.name}: {rate / 1e9:.2f} G products a second\n")
