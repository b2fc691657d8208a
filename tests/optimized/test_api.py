"""The public entry: its signature, and the tensors that a caller may hand it."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.adapters.optimized import Optimized
from conformance.compare import compare
from conformance.tolerance import bounds
from optimized.api import mla_decode
from reference.decode import decode
from reference.inputs import Inputs, make_inputs
from reference.problem import Dims, Problem, Recipe

SEED_PARAMETERS = [
    "query", "kv_cache", "workspace_buffer", "kv_lora_rank", "qk_rope_head_dim", "block_tables",
    "seq_lens", "max_seq_len", "softmax_scale", "output_scale", "out", "is_var_seq", "causal_mask",
    "enable_pdl", "return_lse", "causal_seqs", "cp_world", "cp_rank",
]  # fmt: skip
SEED_DEFAULTS = {
    "output_scale": 1.0,
    "out": None,
    "is_var_seq": True,
    "causal_mask": True,
    "enable_pdl": False,
    "return_lse": False,
    "causal_seqs": None,
    "cp_world": 1,
    "cp_rank": 0,
}
OWN_DEFAULTS = {
    "cp_interleave_size": 1,
    "window_left": -1,
    "lse_base": 2,
    "num_splits": None,
    "split_policy": "auto",
}
PROBLEM = Problem(
    dims=Dims(16, 2),
    dtype="float8_e4m3fn",
    page_size=64,
    seq_lens=(130, 3),
    softmax_scale=1 / math.sqrt(192),
    output_scale=-0.5,
)
pytestmark = pytest.mark.filterwarnings("ignore")  # the DSL's own, when it compiles


def arguments(inputs: Inputs) -> dict[str, Any]:
    """The arguments of a call of `PROBLEM`."""
    return {
        "query": inputs.query,
        "kv_cache": inputs.kv_cache,
        "workspace_buffer": torch.empty(2**23, dtype=torch.int8),
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "block_tables": inputs.block_tables,
        "seq_lens": inputs.seq_lens,
        "max_seq_len": 130,
        "softmax_scale": PROBLEM.softmax_scale,
        "output_scale": PROBLEM.output_scale,
        "return_lse": True,
    }


def judge(change: Callable[[dict[str, Any]], None]) -> None:
    """Fail where a call, its arguments changed in form alone, leaves its bounds."""
    inputs = make_inputs(PROBLEM, Recipe(poison=True, table_tail="minimal"), seed=2)
    given = arguments(inputs)
    change(given)
    out, lse = mla_decode(**given)
    exact, bound = decode(PROBLEM, inputs), bounds(PROBLEM, inputs, Optimized.algorithm)
    assert compare(out, exact.out, bound.out).passed
    assert compare(lse, exact.lse, bound.lse, name="lse").passed


def test_parameters_are_those_of_the_published_function_then_ours_by_keyword() -> None:
    parameters = inspect.signature(mla_decode).parameters
    positional = [p for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    keywords = [p for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert [p.name for p in positional] == SEED_PARAMETERS
    assert {p.name: p.default for p in positional if p.default is not p.empty} == SEED_DEFAULTS
    assert {p.name: p.default for p in keywords} == OWN_DEFAULTS


def _wide(tensor: torch.Tensor, extra: int) -> torch.Tensor:
    """The same values with something between the rows."""
    wide = torch.zeros(*tensor.shape[:-1], tensor.shape[-1] + extra, dtype=tensor.dtype)
    wide[..., : tensor.shape[-1]] = tensor
    return wide[..., : tensor.shape[-1]]


CHANGES = {
    "strided query": lambda a: a.update(query=_wide(a["query"], 64)),
    "heads before tokens": lambda a: a.update(
        query=a["query"].transpose(1, 2).contiguous().transpose(1, 2)
    ),
    "strided cache": lambda a: a.update(kv_cache=_wide(a["kv_cache"], 32)),
    "cache of rank 4": lambda a: a.update(kv_cache=a["kv_cache"].unsqueeze(1)),
    "lengths of 64 bits": lambda a: a.update(seq_lens=a["seq_lens"].long()),
    "workspace of uint8": lambda a: a.update(
        workspace_buffer=a["workspace_buffer"].view(torch.uint8)
    ),
    "longer bound": lambda a: a.update(max_seq_len=100_000),
    "fixed splits": lambda a: a.update(split_policy="fixed"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_form_of_an_argument_does_not_matter(change: Callable[[dict[str, Any]], None]) -> None:
    judge(change)


def test_the_very_output_that_was_passed_comes_back() -> None:
    given = arguments(make_inputs(PROBLEM, Recipe(), seed=2))
    out = torch.empty(2, 2, 16, 512, dtype=torch.bfloat16)
    assert mla_decode(**given | {"out": out, "return_lse": False}) is out


def test_an_empty_batch_launches_nothing() -> None:
    given = arguments(make_inputs(PROBLEM, Recipe(), seed=2))
    for name in ("query", "block_tables", "seq_lens"):
        given[name] = given[name][:0]
    out, lse = mla_decode(**given)
    assert (out.shape, lse.shape) == ((0, 2, 16, 512), (0, 2, 16))


def test_with_fixed_splits_a_row_does_not_depend_on_the_others() -> None:
    """Bit for bit: alone, or with a longer request before it."""
    inputs = make_inputs(PROBLEM, Recipe(), seed=2)
    fixed = arguments(inputs) | {"split_policy": "fixed", "max_seq_len": 4096}
    alone = {name: fixed[name][1:] for name in ("query", "block_tables", "seq_lens")}
    (together, _), (single, _) = mla_decode(**fixed), mla_decode(**fixed | alone)
    assert torch.equal(together[1:].view(torch.int16), single.view(torch.int16))
