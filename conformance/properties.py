"""The properties that one run of a kernel can show, each a function from a run to a finding.

Every property says which faults it kills and what in the data gives it the power to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from types import MappingProxyType

import torch

from conformance.compare import compare
from conformance.faithful import Emulations, emulations
from conformance.kernel import POISON_BYTE, Algorithm, Output
from conformance.tolerance import Bounds, bounds
from reference.decode import Decoded, decode
from reference.inputs import Inputs
from reference.problem import Problem


@dataclass(frozen=True)
class Finding:
    """What a property says of one run; ``reason`` is empty where it holds, ``note`` adds to it."""

    reason: str = ""
    note: str = ""
    ratio: float | None = None
    element: str | None = None
    bias: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the run has the property."""
        return not self.reason


@dataclass(frozen=True, eq=False)
class Observation:
    """One run that came to its end: what was asked, what came back, and what the inputs are now.

    ``num_splits`` is the number of splits that the kernel ran with, empty ones included.
    """

    problem: Problem
    algorithm: Algorithm
    inputs: Inputs  # as they were before the run
    inputs_after: Inputs
    output: Output
    num_splits: int


@dataclass(frozen=True, eq=False)
class Oracles:
    """What both oracles say of one call, for as many outputs of it as there are.

    Nothing is computed before it is asked for, and nothing twice.
    """

    problem: Problem
    inputs: Inputs
    algorithm: Algorithm
    num_splits: int

    @cached_property
    def _exact(self) -> tuple[Decoded, Bounds]:
        return (
            decode(self.problem, self.inputs),
            bounds(self.problem, self.inputs, self.algorithm),
        )

    @cached_property
    def _emulated(self) -> Emulations:
        return emulations(self.problem, self.inputs, self.algorithm, self.num_splits)

    def exact(self, output: Output) -> Finding:
        """Whether every element lies within its bound of the exact result: `matches_float64`."""
        exact, bound = self._exact
        parts = {
            "out": compare(output.out, exact.out, bound.out, name="out"),
            "lse": compare(output.lse, exact.lse, bound.lse, name="lse"),
        }
        name, worst = max(parts.items(), key=lambda part: part[1].ratio)
        return Finding(
            reason="; ".join(part.reason for part in parts.values() if not part.passed),
            ratio=worst.ratio,
            element=None if worst.element is None else f"{name}{list(worst.element)}",
            bias=worst.bias,
        )

    def faithful(self, output: Output) -> Finding:
        """Whether `out` is what the kernel's own algorithm gives: `matches_emulation`."""
        near = self._emulated.nearest(output.out)
        found = compare(output.out, near.out, near.bound, name="out")
        rows = len(self._emulated.undecided)
        return Finding(
            reason=found.reason,
            note=f"{rows} rows left to matches_float64" if rows else "",
            ratio=found.ratio,
            element=None if found.element is None else f"out{list(found.element)}",
            bias=found.bias,
        )


def _oracles(run: Observation) -> Oracles:
    return Oracles(run.problem, run.inputs, run.algorithm, run.num_splits)


def matches_float64(run: Observation) -> Finding:
    """Every element of out and lse lies within its bound of the exact result.

    Kills wrong visibility, paging, scaling, splitting and merging: on independent random keys each
    of them moves many elements by more than the bound, which follows from the run's own data. Slots
    that nobody may see hold the largest values of the format, so that seeing one shows.
    """
    return _oracles(run).exact(run.output)


def matches_emulation(run: Observation) -> Finding:
    """Every element of out lies within its bound of what the kernel's own algorithm gives.

    Kills what `matches_float64` must admit on FP8, where the cast of P may move an element by
    percents: a constant factor on out, a cast with the wrong rounding, scale or saturation (N4,
    N5), values of neighbouring keys exchanged, splits merged with slightly wrong weights (S8). The
    emulation casts the same P, so that little more than the rounding of out is left as room.
    Where a growth of the row maximum lies within its error of the kernel's threshold, either
    decision is right; a row with too many such places is left to `matches_float64`.
    """
    return _oracles(run).faithful(run.output)


def every_element_written(run: Observation) -> Finding:
    """No element of out or lse holds the bytes that were there before the call.

    Kills rows, heads and requests that a grid or an early exit forgets. The buffers were filled
    with a NaN that no arithmetic makes (`conformance.kernel.poisoned`).
    """
    for name, tensor in (("out", run.output.out), ("lse", run.output.lse)):
        untouched = (_bytes(tensor) == POISON_BYTE).all(dim=-1)
        if bool(untouched.any()):
            element = untouched.nonzero()[0].tolist()
            reason = f"{name}{element} and {int(untouched.sum()) - 1} other elements not written"
            return Finding(reason, element=f"{name}{element}")
    return Finding()


def nothing_beside_is_written(run: Observation) -> Finding:
    """Bytes beside out, lse and a workspace of exactly the size asked for are as they were.

    Kills a workspace that is smaller than what is written to it, sizes computed in 32 bits, and
    rows stored past the last one (W3, W4, W8). On the simulator, a store beyond a tensor already
    ends the run.
    """
    return Finding("; ".join(run.output.strayed))


def inputs_unchanged(run: Observation) -> Finding:
    """Every input tensor holds the bytes that it held before the call.

    Kills writes in place through a view, and stores that miss their tensor but hit an input.
    """
    for field in fields(Inputs):
        before, after = getattr(run.inputs, field.name), getattr(run.inputs_after, field.name)
        if before is None:
            continue
        changed = (_bytes(before) != _bytes(after)).any(dim=-1)
        if bool(changed.any()):
            element = changed.nonzero()[0].tolist()
            reason = f"{field.name}{element} and {int(changed.sum()) - 1} other elements changed"
            return Finding(reason, element=f"{field.name}{element}")
    return Finding()


# Judged apart, since it is about runs that do not come to their end.
COMPLETES = "completes"
# About problems that the kernel does not take.
REFUSED_OR_RIGHT = "refused_or_right"

PROPERTIES: Mapping[str, Callable[[Observation], Finding]] = MappingProxyType(
    {
        check.__name__: check
        for check in (
            matches_float64, matches_emulation, every_element_written, nothing_beside_is_written,
            inputs_unchanged,
        )
    }
)  # fmt: skip
PROPERTY_NAMES = (COMPLETES, *PROPERTIES)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's bytes, one dimension more: NaN equals itself there."""
    return tensor.contiguous().unsqueeze(-1).view(torch.uint8)
