"""How far two outputs of one call may lie apart: two versions of a kernel that add in other orders.

Each may differ from what the kernel's algorithm gives by the bound of `conformance.faithful`, which
holds for every order of sums and every rounding that the formats allow. So two right outputs differ
by no more than both bounds together, and by what splitting the keys otherwise changes of itself.
"""

from __future__ import annotations

import torch

from conformance.compare import compare
from conformance.faithful import Emulation, emulations
from conformance.kernel import Algorithm, Output
from conformance.properties import Finding
from conformance.tolerance import bounds
from reference.inputs import Inputs, make_inputs
from reference.problem import Problem, Recipe
from reports.records import Case


def different_bits(found: Output, wanted: Output, whose: str) -> str:
    """Say in which output the bits differ from ``whose``, "" if in none."""
    for name, a, b in (("out", found.out, wanted.out), ("lse", found.lse, wanted.lse)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{name}: {a.dtype}{list(a.shape)}, {whose} is {b.dtype}{list(b.shape)}"
        bits = a.contiguous().view(torch.uint8) != b.contiguous().view(torch.uint8)
        if bool(bits.any()):
            return f"{name}: {int(bits.sum())} bytes differ from {whose}"
    return ""


def difference(case: Case, algorithm: Algorithm, found: Output, wanted: Output) -> Finding:
    """Return whether two outputs for ``case`` differ by more than other orders of sums explain.

    Both name the splits that they ran with. ``ratio`` is the worst difference over what is allowed.
    """
    if found.out.shape != wanted.out.shape or found.out.dtype != wanted.out.dtype:
        return Finding(different_bits(found, wanted, "the baseline's"))
    problem = Problem.from_json(case.problem)
    inputs = make_inputs(problem, Recipe.from_json(case.recipe), case.seed)
    mine = _emulated(problem, inputs, algorithm, found)
    theirs = _emulated(problem, inputs, algorithm, wanted)
    apart = mine.bound + theirs.bound + (mine.out - theirs.out).abs()
    lse = 2.0 * bounds(problem, inputs, algorithm).lse
    parts = (
        ("out", compare(found.out, wanted.out.double(), apart)),
        ("lse", compare(found.lse, wanted.lse.double(), lse, name="lse")),
    )
    name, worst = max(parts, key=lambda part: part[1].ratio)
    return Finding(
        reason="; ".join(part.reason for _, part in parts if not part.passed),
        ratio=worst.ratio,
        element=None if worst.element is None else f"{name}{list(worst.element)}",
        bias=worst.bias,
    )


def _emulated(problem: Problem, inputs: Inputs, algorithm: Algorithm, output: Output) -> Emulation:
    assert output.num_splits is not None
    return emulations(problem, inputs, algorithm, output.num_splits).nearest(output.out)
