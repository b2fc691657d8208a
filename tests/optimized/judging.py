"""Our kernel run once on the simulator, and held to every property of the suite."""

from __future__ import annotations

import math

from conformance.adapters.optimized import Optimized
from conformance.kernel import RunOptions
from conformance.properties import PROPERTIES, Observation
from reference.inputs import make_inputs
from reference.problem import Dims, Mask, Problem, Recipe

HOSTILE = Recipe(poison=True, table_tail="minimal")
KERNEL = Optimized()
DEFAULTS = RunOptions()


def problem(dtype: str, heads: int, tokens: int, lens: tuple[int, ...], **other: object) -> Problem:
    """A causal problem with pages of 64, unless ``other`` says otherwise."""
    fields = {"page_size": 64, "softmax_scale": 1 / math.sqrt(192), "mask": Mask(causal=True)}
    return Problem(dims=Dims(heads, tokens), dtype=dtype, seq_lens=lens, **(fields | other))


def judge(case: Problem, options: RunOptions = DEFAULTS, recipe: Recipe = HOSTILE) -> None:
    """Fail where a property of a run does not hold."""
    inputs = make_inputs(case, recipe, seed=1)
    after = make_inputs(case, recipe, seed=1)
    output = KERNEL.run(case, after, options)
    splits = options.num_splits or KERNEL.plan(case, options.num_sms).num_splits
    run = Observation(case, KERNEL.algorithm, inputs, after, output, splits)
    reasons = {name: check(run).reason for name, check in PROPERTIES.items()}
    assert not any(reasons.values()), reasons
