"""A relation about how a result came about: with every access watched."""

from __future__ import annotations

from dataclasses import replace

from conformance.properties import Finding
from conformance.relations.question import Call, First, Run, is_right
from reference.inputs import make_inputs
from reference.problem import Dcp
from simulator.checks import CHECKS

LENGTHS = (300, 129)  # three tiles of 128 keys, then two
POLICIES = ("fair", "late", "run_to_block", "random")
SPLITS = (1, 2)


def every_access_is_ordered(first: First, run: Run) -> Finding | None:
    """A call of two short requests on one cluster is right, and no check of the simulator objects.

    Every check watches, which takes the interpreter; so the call is a small one of the same shape.
    The second request follows the first on the same cluster. Kills waits, arrivals, fences and
    phases that are missing or wrong, whatever the schedule makes of them (S3, S4, S5, S7, S8).
    Says nothing of a kernel that does not claim as much (`Limits`).
    """
    problem = first.call.problem
    if first.call.options.engine != "simulator" or problem.dcp != Dcp():
        return None
    if not first.kernel.limits.orders_accesses:
        return None
    choice = first.choice()
    lengths = LENGTHS
    small = replace(problem, seq_lens=lengths, max_seq_len=None, is_var_seq=False)
    if not first.kernel.supports(small).ok:
        return None
    options = replace(
        first.call.options,
        num_sms=2,
        num_splits=choice.choice(SPLITS),
        policy=choice.choice(POLICIES),
        checks=tuple(CHECKS),
    )
    call = Call(small, make_inputs(small, first.recipe, first.seed), options)
    return is_right(first, call, run(call), options.num_splits)
