"""The trial of mutants of synchronisation, and what makes a survivor redundant.

Every case is watched by all checks: a statement that orders two accesses and is taken away leaves
them to chance, which the race check sees though the output may be right in every schedule.

The same cases are the proof that a statement is redundant. If no two accesses that the kernel
leaves in order are out of order in any of them, other edges order whatever the statement orders;
and if copies, products and output bytes are the same, the accesses are the kernel's own.
"""

from __future__ import annotations

from dataclasses import replace

from conformance.kernel import Kernel, RunOptions
from conformance.strategies import Choice
from mutation.ptx import Mutant
from mutation.trial import ALL_CHECKS, Asked, Case, Verdict
from reference.problem import Dims, Mask, Problem, Recipe

IMPLIED = {
    "pdl_launch-remove": "PTX ISA, griddepcontrol: a grid that never launches its dependents does "
    "so when it completes, so the removal only makes them start later"
}
"""Changes that the PTX ISA defines to be harmless, by kind and change."""

UNSEEN_FENCES = ("membar", "fence.acq_rel", "fence.sc", "fence.acquire", "fence.release")
"""What these order no check can see: that no pair is out of order proves nothing for them."""


def cases() -> tuple[Case, ...]:
    """The cases, the quickest first; ``late`` and ``run_to_block`` are the extreme schedules."""
    watched = Case(0, "fair", checks=ALL_CHECKS)
    return (
        watched,
        replace(watched, problem=1),
        replace(watched, problem=1, policy="late"),
        replace(watched, policy="run_to_block"),
        replace(watched, problem=1, policy="random", seed=1),
    )


def problems(kernel: Kernel, dtype: str, heads: int, queries: int) -> list[Asked]:
    """Two calls of two splits: with one tile in each, and with ten.

    Ten reuse each stage of every ring: with five, a wait for a free stage looked redundant.
    Both use one compilation, for a mutant belongs to a text. Inputs are drawn with seed 0 of the
    recipe with the fewest limits.
    """
    recipe = Recipe(table_tail="tile", poison=False)
    choice = Choice(seed=0, num_sms=RunOptions().num_sms, num_splits=2)
    return [
        Asked.of(kernel, (_problem(dtype, heads, queries, keys), recipe, choice))
        for keys in (256, 2500)
    ]


def _problem(dtype: str, heads: int, queries: int, keys: int) -> Problem:
    return Problem(
        dims=Dims(heads, queries),
        dtype=dtype,
        page_size=32,
        seq_lens=(keys,),
        softmax_scale=192**-0.5,
        mask=Mask(causal=True),
        enable_pdl=True,
    )


def implied(mutant: Mutant) -> str:
    """Why the PTX ISA says that a change is harmless; "" if it does not."""
    return IMPLIED.get(f"{mutant.kind}-{mutant.id.rsplit('-', 1)[1]}", "")


def redundant(mutant: Mutant, verdict: Verdict) -> str:
    """Why a survivor of all cases is no other kernel; "" if nothing proves it."""
    if reason := implied(mutant):
        return reason
    if not verdict.is_alike or any(fence in mutant.before for fence in UNSEEN_FENCES):
        return ""
    return (
        f"in all {verdict.cases} recorded schedules every pair of accesses that the kernel orders "
        "is ordered by other edges; copies, products and output bytes are the same"
    )
