"""Whether a kernel's output lies within its bound, element by element.

The places of NaN, +inf and -inf are compared first, as sets and exactly; only then are values. A
NaN never passes, in either operand. The one freedom: where the exact result lies within its bound
of the output format's overflow, infinity of its sign and the finite value are both right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Comparison:
    """How one output compares with the exact result.

    ``ratio`` is the worst error over its bound (above 1 fails, infinite where a NaN or infinity is
    out of place) and ``element`` its index, None for an empty output. ``norm_ratio`` is the norm of
    the error over the norm of the exact result. ``bias`` is the mean signed error over its standard
    error. ``reason`` is empty for a pass, else says in words which element is wrong and how.
    """

    verdict: str  # passed | failed
    ratio: float
    element: tuple[int, ...] | None
    norm_ratio: float
    bias: float
    reason: str

    @property
    def passed(self) -> bool:
        """Whether every element is right."""
        return self.verdict == "passed"


def compare(got: Tensor, want: Tensor, bound: Tensor, *, name: str = "out") -> Comparison:
    """Return how ``got`` compares with ``want``: right where no error exceeds ``bound``.

    The three have one shape: [batch, seq_len_q, num_heads], and one dimension more for ``out``.
    ``got`` is in the output's own dtype, which says where it overflows; ``want`` and ``bound`` are
    float64. ``name`` is what the reason calls the output. An empty output passes. Raises ValueError
    for shapes that differ and for a bound that is negative, infinite or NaN: such a bound judges
    nothing.
    """
    _check(got, want, bound, name)
    if got.numel() == 0:
        return Comparison("passed", 0.0, None, 0.0, 0.0, "")
    value, exact = got.to(torch.float64), want.to(torch.float64)
    misplaced = _misplaced(value, exact, bound, overflow_threshold(got.dtype))
    comparable = value.isfinite() & exact.isfinite()
    error = torch.where(comparable, value - exact, 0.0)
    ratios = torch.where(misplaced, math.inf, _over(error.abs(), bound))
    worst = int(ratios.argmax())
    ratio = float(ratios.flatten()[worst])
    element = tuple(int(index) for index in torch.unravel_index(torch.tensor(worst), got.shape))
    failed = ratio > 1.0
    reason = ""
    if failed:
        reason = (
            f"{name}{list(element)}: got {float(value[element])!r}, "
            f"want {float(exact[element])!r} within {float(bound[element]):.3g}"
        )
        reason += _counts(misplaced, ratios)
    return Comparison(
        "failed" if failed else "passed",
        ratio,
        element,
        _quotient(float(error.norm()), float(torch.where(comparable, exact, 0.0).norm())),
        _bias(error, bound, comparable),
        reason,
    )


def overflow_threshold(dtype: torch.dtype) -> float:
    """Return the magnitude from which ``dtype`` rounds to infinity: its maximum and half an ulp."""
    largest = torch.finfo(dtype).max
    _, exponent = math.frexp(largest)
    return largest + 0.5 * torch.finfo(dtype).eps * 2.0 ** (exponent - 1)


def _check(got: Tensor, want: Tensor, bound: Tensor, name: str) -> None:
    if not got.shape == want.shape == bound.shape:
        raise ValueError(
            f"{name}: got, want and bound must have one shape, "
            f"got {tuple(got.shape)}, {tuple(want.shape)} and {tuple(bound.shape)}"
        )
    if not bool(((bound >= 0) & bound.isfinite()).all()):
        raise ValueError(f"{name}: bound must be finite and at least 0 everywhere")


def _misplaced(value: Tensor, exact: Tensor, bound: Tensor, threshold: float) -> Tensor:
    """Mark NaN in either operand, and infinities that stand in one operand alone."""
    same = (value == exact) | (value.isfinite() & exact.isfinite())  # NaN equals nothing
    may_overflow = exact.isfinite() & (exact.abs() + bound >= threshold)
    return ~(same | (may_overflow & value.isinf() & (value.sign() == exact.sign())))


def _over(error: Tensor, bound: Tensor) -> Tensor:
    """Divide, where no error is 0 and any error over a bound of 0 is infinite."""
    return torch.where(error == 0.0, 0.0, error / bound)


def _quotient(numerator: float, denominator: float) -> float:
    if numerator == 0.0:
        return 0.0
    return numerator / denominator if denominator > 0.0 else math.inf


def _bias(error: Tensor, bound: Tensor, comparable: Tensor) -> float:
    """Return the mean signed error over its standard error, errors in units of their bounds.

    Elements of one row share the row's weights, so their errors are not independent: rows are
    averaged first. 0 for fewer than two rows and where all errors are equal to 0.
    """
    signed = torch.where(comparable & (bound > 0.0), error / bound, 0.0)
    rows = signed.flatten(3).mean(-1).flatten() if signed.dim() > 3 else signed.flatten()
    if rows.numel() < 2:
        return 0.0
    mean, standard_error = float(rows.mean()), float(rows.std()) / math.sqrt(rows.numel())
    return math.copysign(_quotient(abs(mean), standard_error), mean)


def _counts(misplaced: Tensor, ratios: Tensor) -> str:
    """Say how many elements are wrong, and how many of them hold a NaN or infinity out of place."""
    anomalies = int(misplaced.sum())
    wrong = int((ratios > 1.0).sum())
    text = f"; {wrong} of {ratios.numel()} elements are wrong"
    return text + (f", {anomalies} by a NaN or infinity out of place" if anomalies else "")
