"""The facts of number formats, against the formats themselves and sums cut bit by bit."""

from fractions import Fraction

import pytest
import torch

from conformance.rounding import CELLS_PER_ULP, binade, cell, half_ulp, quantum, sum_errors
from tests.conformance.emulation import matmul

FORMATS = (torch.float8_e4m3fn, torch.bfloat16, torch.float16)


def samples(dtype: torch.dtype) -> torch.Tensor:
    """Every magnitude that the format's significand can take, over many binades, in between too."""
    smallest = torch.finfo(dtype).smallest_normal
    source = torch.Generator().manual_seed(1)
    exponents = torch.randint(-20, 12, (5000,), generator=source)
    values = torch.rand(5000, generator=source, dtype=torch.float64) + 1.0
    x = torch.ldexp(values, exponents)
    low = smallest * torch.rand(500, generator=source, dtype=torch.float64) * 4.0
    x = torch.cat((x, low))
    return x[x < torch.finfo(dtype).max]


def test_binade_is_the_largest_power_of_two_not_above():
    x = torch.tensor([0.0, 1.0, -1.5, 2.0, 0.75, 1e-3, 2.0**-30], dtype=torch.float64)
    assert binade(x).tolist() == [0.0, 1.0, 1.0, 2.0, 0.5, 2.0**-10, 2.0**-30]


@pytest.mark.parametrize("dtype", FORMATS)
def test_half_ulp_is_the_largest_rounding_error_and_no_more(dtype):
    x = samples(dtype)
    share = (x.to(dtype).double() - x).abs() / half_ulp(x, dtype)
    assert float(share.max()) <= 1.0
    assert float(share.max()) > 0.99


@pytest.mark.parametrize("dtype", FORMATS)
def test_quantum_divides_every_value_and_no_larger_power_of_two_does(dtype):
    source = torch.Generator().manual_seed(2)
    x = torch.randn(40, 3, generator=source).to(dtype).double()
    x[0] = torch.tensor([6.0, 0.0, 10.0])
    x[1] = 0.0
    quanta = quantum(x, dtype).tolist()
    assert quanta[0] == 2.0
    assert quanta[1] == float("inf")
    for row, step in zip(x[2:].tolist(), quanta[2:], strict=True):
        shares = [Fraction(value) / Fraction(step) for value in row]
        assert all(share.denominator == 1 for share in shares)
        assert any(share.numerator % 2 == 1 for share in shares)


@pytest.mark.parametrize("dtype", FORMATS)
def test_cells_are_quarters_of_an_ulp_and_rise_with_the_value(dtype):
    x = samples(dtype).sort().values
    numbers = cell(x, dtype)
    assert bool((numbers.diff() >= 0).all())
    same = numbers.diff() == 0
    assert bool((x.diff()[same] <= 2.0 * half_ulp(x[1:][same], dtype) / CELLS_PER_ULP).all())
    apart = x.diff() >= 2.0 * half_ulp(x[1:], dtype) / CELLS_PER_ULP
    assert bool((numbers.diff()[apart] > 0).all())


def truncated_sums(dtype: torch.dtype, magnitude: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the errors of sums of 576 products, and their bounds."""
    source = torch.Generator().manual_seed(int(magnitude * 100))
    a = (torch.randn(16, 576, generator=source) * magnitude).to(dtype)
    b = (torch.randn(576, 200, generator=source) * magnitude).to(dtype)
    terms = 32 // a.element_size()
    got = matmul(a, b, torch.zeros(16, 200)).double()
    steps = [
        x @ y for x, y in zip(a.double().split(terms, 1), b.double().split(terms, 0), strict=True)
    ]
    positive = sum(step.clamp(min=0.0) for step in steps)
    negative = sum(-step.clamp(max=0.0) for step in steps)
    bound = sum_errors(
        torch.maximum(positive, negative),
        a.double().abs().amax(1)[:, None] * b.double().abs().amax(0),
        len(steps),
        terms,
        quantum(a.double(), dtype)[:, None] * quantum(b.T.double(), dtype),
    )
    return (got - a.double() @ b.double()).abs(), bound


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("magnitude", [0.1, 1.0, 6.0])
def test_no_truncated_sum_leaves_its_bound(dtype, magnitude):
    error, bound = truncated_sums(dtype, magnitude)
    assert bool((error <= bound).all())


def test_the_bound_of_a_sum_counts_what_cuts_and_nothing_else():
    """FP8 products of moderate size have no bits to cut; 16-bit ones have."""
    exact, bound = truncated_sums(torch.float8_e4m3fn, 0.1)
    assert float(exact.max()) == float(bound.max()) == 0.0
    error, bound = truncated_sums(torch.bfloat16, 1.0)
    assert float(error.max()) > 0.0


def test_a_sum_of_one_sign_reaches_a_tenth_of_its_bound():
    """So the bound of a sum is a sum: taken as mean-zero, errors of one sign would leave it."""
    source = torch.Generator().manual_seed(4)
    a = (torch.rand(4, 4096, generator=source) + 1.0).to(torch.float16)
    b = (torch.rand(4096, 4, generator=source) + 1.0).to(torch.float16)
    exact = a.double() @ b.double()
    error = exact - matmul(a, b, torch.zeros(4, 4)).double()
    four = torch.tensor(4.0, dtype=torch.float64)
    bound = sum_errors(exact, four.expand(4, 4), 256, 16, 0.0 * exact)
    assert bool((error > 0.0).all())
    assert float((error / bound).max()) > 0.1
    assert bool((error <= bound).all())
