"""Small cases of the fake kernel, for the tests of the suite itself."""

from pathlib import Path
from typing import Any

from conformance.judge import Subject
from conformance.kernel import EngineChoice, Kernel
from conformance.known_limits import KnownLimit
from reference.problem import Dims, Problem, Recipe
from reports.records import Case

FAKE = Path(__file__).with_name("fake_kernel.py")


def problem(*seq_lens: int, heads: int = 8, dtype: str = "float8_e4m3fn") -> Problem:
    return Problem(Dims(heads, 1), dtype, 32, seq_lens, softmax_scale=576**-0.5)


def case(
    *seq_lens: int, property_name: str = "matches_float64", seed: int = 0, **fields: Any
) -> Case:
    return Case(
        kernel="fake",
        engine="simulator",
        arch="sm_100a",
        property=property_name,
        problem=problem(*seq_lens, **fields).to_json(),
        recipe=Recipe().to_json(),
        seed=seed,
        policy="fair",
        policy_seed=0,
        checks=("bounds",),
        num_sms=148,
        num_splits=None,
    )


def subject(kernel: Kernel, *limits: KnownLimit) -> Subject:
    return Subject("fake", kernel, EngineChoice("simulator", "sm_100a", "asked for"), limits)
