"""What a relation starts from, how it asks again, and how two answers are compared."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from conformance.compare import compare
from conformance.kernel import Kernel, Output, RunOptions
from conformance.properties import Finding, Observation, matches_emulation, matches_float64
from reference.decode import Decoded
from reference.inputs import Inputs
from reference.problem import Problem, Recipe


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a kernel: what is asked, with which tensors, and how it is run."""

    problem: Problem
    inputs: Inputs
    options: RunOptions


@dataclass(frozen=True, eq=False)
class First:
    """The call that a relation starts from, what it returned, and what else decides it."""

    kernel: Kernel
    call: Call
    output: Output
    num_splits: int
    recipe: Recipe
    seed: int

    @property
    def pinned(self) -> RunOptions:
        """Options that keep the number of splits, whatever the batch."""
        return replace(self.call.options, num_splits=self.num_splits)

    def choice(self) -> random.Random:
        """Random choices that depend on the case alone."""
        return random.Random(self.seed)


Run = Callable[[Call], Output]
Relation = Callable[[First, Run], Finding | None]


def of_requests(problem: Problem, order: list[int]) -> Problem:
    """The problem with these of its requests, planned for the same length."""
    lengths = tuple(problem.seq_lens[at] for at in order)
    contexts = problem.dcp.causal_seqs
    if contexts is not None:
        contexts = tuple(contexts[at] for at in order)
    return replace(
        problem,
        seq_lens=lengths,
        dcp=replace(problem.dcp, causal_seqs=contexts),
        max_seq_len=problem.planning_max_seq_len,
    )


def inputs_of(inputs: Inputs, order: list[int]) -> Inputs:
    """The inputs of these requests, over the same pool."""
    contexts = inputs.causal_seqs
    return replace(
        inputs,
        query=inputs.query[order],
        block_tables=inputs.block_tables[order],
        seq_lens=inputs.seq_lens[order],
        causal_seqs=None if contexts is None else contexts[order],
    )


def within_limits(kernel: Kernel, problem: Problem) -> bool:
    """Whether the kernel takes the problem, and it has no row that the kernel gets wrong."""
    if not kernel.supports(problem).ok:
        return False
    tokens = problem.dims.seq_len_q
    return kernel.limits.empty_rows or min(problem.seq_lens, default=tokens) >= tokens


def equal(want: Output, got: Output) -> Finding:
    """Whether two outputs hold the same bits; a NaN equals itself."""
    for name, one, other in (("out", want.out, got.out), ("lse", want.lse, got.lse)):
        if one.shape != other.shape:
            return Finding(f"{name}: shape {tuple(other.shape)}, not {tuple(one.shape)}")
        unlike = (one != other) & ~(one.isnan() & other.isnan())
        if bool(unlike.any()):
            at = tuple(unlike.nonzero()[0].tolist())
            reason = (
                f"{name}{list(at)}: {float(other[at])!r} where the first call gave "
                f"{float(one[at])!r}; {int(unlike.sum())} of {one.numel()} elements differ"
            )
            return Finding(reason, element=f"{name}{list(at)}")
    return Finding()


def near(want: Decoded, got: Output, out: Tensor, lse: Tensor) -> Finding:
    """Whether an output lies within the given bounds of ``want``."""
    found = {
        "out": compare(got.out, want.out, out, name="out"),
        "lse": compare(got.lse, want.lse, lse, name="lse"),
    }
    name, worst = max(found.items(), key=lambda part: part[1].ratio)
    return Finding(
        reason="; ".join(part.reason for part in found.values() if not part.passed),
        ratio=worst.ratio,
        element=None if worst.element is None else f"{name}{list(worst.element)}",
        bias=worst.bias,
    )


def is_right(first: First, call: Call, output: Output, splits: int | None) -> Finding:
    """Whether both oracles accept what a call returned."""
    asked = splits or call.options.num_splits
    planned = first.kernel.plan(call.problem, call.options.num_sms).num_splits
    count = output.num_splits or asked or planned
    algorithm, inputs = first.kernel.algorithm, call.inputs
    run = Observation(call.problem, algorithm, inputs, inputs, output, count)
    exact = matches_float64(run)
    return matches_emulation(run) if exact.holds else exact
