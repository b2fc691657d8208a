"""Relations about a call's scalars, and about calls that follow one another."""

from __future__ import annotations

from dataclasses import replace

import torch

from conformance.kernel import Output
from conformance.properties import Finding
from conformance.relations.question import Call, First, Run, equal, is_right, within_limits
from reference.inputs import make_inputs
from reference.problem import Problem


def output_scale_is_a_factor(first: First, run: Run) -> Finding | None:
    """An output_scale an eighth as large gives an eighth of out, bit for bit, and the same LSE.

    Kills a scale that is applied twice, not at all, in one path only, or to the LSE (N9, N11, A7).
    """
    problem = replace(first.call.problem, output_scale=first.call.problem.output_scale / 8.0)
    got = run(replace(first.call, problem=problem))
    small = first.output.out.abs() < 16.0 * torch.finfo(first.output.out.dtype).smallest_normal
    small |= ~first.output.out.isfinite()
    back = torch.where(small, first.output.out, 8.0 * got.out)
    return equal(first.output, Output(back, got.lse))


def max_seq_len_is_a_hint(first: First, run: Run) -> Finding | None:
    """With a larger max_seq_len and the same number of splits the result is equal.

    Kills a length taken from the hint: in the tail mask, in the range of a split (N17). Says
    nothing where the kernel cannot be told a number of splits.
    """
    longer = first.call.problem.planning_max_seq_len + 1000
    problem = replace(first.call.problem, max_seq_len=longer)
    got = run(Call(problem, first.call.inputs, first.pinned))
    if got.num_splits not in (None, first.num_splits):
        return None
    return equal(first.output, got)


def a_repetition_is_equal(first: First, run: Run) -> Finding | None:
    """The same call again, on the simulator under another schedule, gives an equal result.

    Kills races, and results that depend on what memory held before (S1, S3, S5, S7, S8, S11, W2,
    W9).
    """
    options = first.call.options
    if options.engine == "simulator":
        options = replace(options, policy="random", policy_seed=options.policy_seed + first.seed)
    return equal(first.output, run(replace(first.call, options=options)))


def calls_leave_no_trace(first: First, run: Run) -> Finding | None:
    """After a call that differs in one parameter, which is right, the first one is equal again.

    Kills parameters that are compiled in or left out of a cache's key, and state kept between calls
    (C1, C2, C3, W2, P7).
    """
    problem = first.call.problem
    changes: list[Problem] = [
        replace(problem, softmax_scale=problem.softmax_scale * 0.5),
        replace(problem, output_scale=problem.output_scale * -1.5),
        replace(problem, mask=replace(problem.mask, causal=not problem.mask.causal)),
        replace(problem, is_var_seq=not problem.is_var_seq),
    ]
    taken = [other for other in changes if within_limits(first.kernel, other)]
    if not taken:
        return None
    other = first.choice().choice(taken)
    inputs = make_inputs(other, first.recipe, first.seed)
    call = Call(other, inputs, first.call.options)
    changed = is_right(first, call, run(call), None)
    return equal(first.output, run(first.call)) if changed.holds else changed


def an_early_launch_changes_nothing(first: First, run: Run) -> Finding | None:
    """With programmatic dependent launch switched the other way, the result is equal.

    Kills a second kernel that reads before it waits, and a flag that chooses other code (S1, L4).
    """
    problem = first.call.problem
    other = replace(problem, enable_pdl=not problem.enable_pdl)
    if not first.kernel.supports(other).ok:
        return None
    return equal(first.output, run(replace(first.call, problem=other, options=first.pinned)))
