"""The published kernels end to end: both executors give the same bits, counts included."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from conformance.adapters import tokenspeed
from conformance.adapters.tokenspeed_wrapper import PEERS
from conformance.kernel import RunOptions
from reference.inputs import make_inputs
from reference.problem import Dims, Problem, Recipe
from simulator import launch as simulation

pytestmark = pytest.mark.skipif(
    not (PEERS / "tokenspeed-mla-2.0.4").is_dir(),
    reason=f"tokenspeed-mla is not in {PEERS.name}/: nox -s peers installs it",
)

KERNELS = {"float8_e4m3fn": tokenspeed.fp8_2_0_4, "bfloat16": tokenspeed.bf16_2_0_4}


@pytest.mark.parametrize(
    ("dtype", "heads", "tokens", "policy"),
    [
        ("float8_e4m3fn", 128, 1, "fair"),
        ("float8_e4m3fn", 16, 4, "late"),
        ("bfloat16", 128, 1, "random"),
    ],
)
def test_both_executors_agree(
    dtype: str, heads: int, tokens: int, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(Dims(heads, tokens), dtype, 64, (200, 131), softmax_scale=192**-0.5)
    inputs = make_inputs(problem, Recipe(), 5)
    kernel = KERNELS[dtype]()
    options = RunOptions(num_splits=2, policy=policy, policy_seed=3, executor="interpreter")
    seen: list[list[tuple[Any, ...]]] = []
    launch = simulation.launch

    def counted(*arguments: Any, **named: Any) -> simulation.Result:
        result = launch(*arguments, **named)
        seen.append([(k.name, k.warp_instructions, k.polls, k.counts) for k in result.kernels])
        return result

    monkeypatch.setattr(simulation, "launch", counted)
    expected = kernel.run(problem, inputs, options)
    actual = kernel.run(problem, inputs, replace(options, executor="native"))
    assert expected.out.isfinite().all()
    assert torch.equal(expected.out.view(torch.uint8), actual.out.view(torch.uint8))
    assert torch.equal(expected.lse.view(torch.uint8), actual.lse.view(torch.uint8))
    assert seen[0] == seen[1]
