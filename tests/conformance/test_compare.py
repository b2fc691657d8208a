"""Comparison: places of NaN and infinity first, then values; what it reports of both."""

import math

import pytest
import torch

from conformance.compare import compare, overflow_threshold

SHAPE = (2, 3, 4, 5)
ELEMENT = (1, 2, 0, 3)


def operands(dtype=torch.float16):
    want = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return want.clone().to(dtype), want, torch.full(SHAPE, 1e-2, dtype=torch.float64)


def test_a_rounded_result_passes_and_reports_its_worst_element():
    got, want, bound = operands()
    ratios = (got.double() - want).abs() / bound
    found = compare(got, want, bound)
    assert found.passed
    assert found.reason == ""
    assert found.ratio == float(ratios.max())
    assert ratios[found.element] == ratios.max()
    assert found.norm_ratio == pytest.approx(float((got.double() - want).norm() / want.norm()))


def test_one_element_past_its_bound_fails_and_is_named():
    got, want, bound = operands(torch.float64)
    got[ELEMENT] += 0.0101
    found = compare(got, want, bound)
    assert found.verdict == "failed"
    assert found.element == ELEMENT
    assert found.ratio == pytest.approx(1.01)
    for text in ("out[1, 2, 0, 3]", repr(float(got[ELEMENT])), repr(float(want[ELEMENT])), "0.01"):
        assert text in found.reason
    assert "1 of 120 elements" in found.reason
    assert compare(got, want, bound * 1.02).passed


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_anomaly_in_the_output_alone_fails(value):
    got, want, bound = operands()
    got[ELEMENT] = value
    found = compare(got, want, bound)
    assert (found.verdict, found.ratio, found.element) == ("failed", math.inf, ELEMENT)
    assert "by a NaN or infinity out of place" in found.reason


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_anomaly_in_the_exact_result_alone_fails(value):
    got, want, bound = operands()
    want[ELEMENT] = value
    found = compare(got, want, bound)
    assert (found.verdict, found.ratio, found.element) == ("failed", math.inf, ELEMENT)


def test_nan_never_passes_in_both_operands_either():
    got, want, bound = operands()
    got[ELEMENT] = want[ELEMENT] = math.nan
    assert compare(got, want, bound).element == ELEMENT


@pytest.mark.parametrize("sign", [1, -1])
def test_infinities_pass_in_both_operands_with_one_sign_only(sign):
    got, want, bound = operands()
    got[ELEMENT] = want[ELEMENT] = sign * math.inf
    assert compare(got, want, bound).passed
    got[ELEMENT] = -sign * math.inf
    assert compare(got, want, bound).element == ELEMENT


def test_the_worst_anomaly_wins_over_the_worst_value():
    got, want, bound = operands()
    got[0, 0, 0, 0] = 1000.0
    got[ELEMENT] = math.nan
    assert compare(got, want, bound).element == ELEMENT


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float16, 65520.0), (torch.float32, 2.0**128)])
def test_overflow_threshold_is_where_the_format_rounds_to_infinity(dtype, limit):
    threshold = overflow_threshold(dtype)
    assert threshold == pytest.approx(limit, rel=1e-7)
    assert torch.tensor(threshold, dtype=torch.float64).to(dtype).isinf()
    below = threshold * (1.0 - torch.finfo(dtype).eps / 8)
    assert torch.tensor(below, dtype=torch.float64).to(dtype).isfinite()


@pytest.mark.parametrize(
    ("exact", "got", "passes"),
    [
        (65500.0, math.inf, True),  # within the bound of overflow: both are right
        (65500.0, 65504.0, True),
        (65500.0, -math.inf, False),
        (65470.0, math.inf, False),  # overflow is further away than the bound
        (-65530.0, -math.inf, True),
        (-65530.0, -65504.0, True),
        (70000.0, math.inf, True),
        (70000.0, 65504.0, False),
    ],
)
def test_near_overflow_infinity_and_the_finite_value_are_both_right(exact, got, passes):
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    found = compare((one * got).to(torch.float16), one * exact, 32.0 * one)
    assert found.passed == passes


def test_a_bound_of_zero_allows_no_error():
    got, want, bound = operands(torch.float64)
    assert compare(got, want, 0.0 * bound).ratio == 0.0
    got[ELEMENT] += 1e-12
    assert compare(got, want, 0.0 * bound).ratio == math.inf


def test_minus_zero_equals_zero():
    zero = torch.zeros(1, 1, 1, 2, dtype=torch.float64)
    assert compare(-zero, zero, zero).passed


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_a_bound_that_judges_nothing_is_refused(value):
    got, want, bound = operands()
    bound[ELEMENT] = value
    with pytest.raises(ValueError, match="bound must be finite"):
        compare(got, want, bound)


def test_shapes_that_differ_are_refused():
    got, want, bound = operands()
    with pytest.raises(ValueError, match=r"lse: .*one shape.*\(2, 3, 4, 5\)"):
        compare(got, want[..., 0], bound, name="lse")


def test_an_empty_output_passes():
    empty = torch.zeros(0, 1, 8, 512, dtype=torch.float64)
    found = compare(empty, empty, empty)
    assert found.passed
    assert found.element is None


def test_the_lse_of_an_empty_row_must_be_minus_infinity():
    lse = torch.tensor([[[0.5, -math.inf]]], dtype=torch.float64)
    bound = torch.tensor([[[1e-5, 0.0]]], dtype=torch.float64)
    assert compare(lse.float(), lse, bound, name="lse").passed
    wrong = compare(torch.tensor([[[0.5, 0.0]]]), lse, bound, name="lse")
    assert wrong.reason.startswith("lse[0, 0, 1]: got 0.0, want -inf")


def test_bias_is_noise_for_roundings_and_grows_for_a_common_shift():
    want = torch.randn(4, 2, 64, 32, generator=torch.Generator().manual_seed(2)).double()
    bound = torch.full_like(want, 1e-2)
    assert abs(compare(want.half(), want, bound).bias) < 4.0
    shifted = compare(want + 1e-4 + 1e-5 * torch.randn_like(want), want, bound)
    assert shifted.passed
    assert shifted.bias > 50.0
    assert compare(want - 1e-4, want, bound).bias < -50.0


def test_bias_takes_the_elements_of_a_row_as_one():
    """Rows that are off as a whole, this way or that, are no bias, however many elements agree."""
    want = torch.zeros(1, 1, 64, 512, dtype=torch.float64)
    off = torch.randn(1, 1, 64, 1, generator=torch.Generator().manual_seed(3)).double() * 1e-3
    assert abs(compare(want + off, want, torch.full_like(want, 1e-2)).bias) < 4.0
