"""What a decode call may be given: its parameters, and what must not be refused."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest
import torch

from conformance.adapters.tokenspeed_wrapper import PEERS, Wrapper
from optimized.plan import MAX_SPLITS, plan, workspace_size
from optimized.validate import Arguments, validate
from reference.problem import PAGE_SIZES
from tests.optimized.calls import (
    BATCH,
    BF16,
    ENOUGH,
    FP8,
    HEADS,
    LATENT,
    PAGES,
    TOKENS,
    WIDTH,
    arguments,
    at,
    ints,
    values,
)

# 1. The parameters: those of tokenspeed-mla 0.2.5, then ours

PARAMETERS = [
    ("query", ...),
    ("kv_cache", ...),
    ("workspace_buffer", ...),
    ("kv_lora_rank", ...),
    ("qk_rope_head_dim", ...),
    ("block_tables", ...),
    ("seq_lens", ...),
    ("max_seq_len", ...),
    ("softmax_scale", ...),
    ("output_scale", 1.0),
    ("out", None),
    ("is_var_seq", True),
    ("causal_mask", True),
    ("enable_pdl", False),
    ("return_lse", False),
    ("causal_seqs", None),
    ("cp_world", 1),
    ("cp_rank", 0),
]
KEYWORDS = [
    ("cp_interleave_size", 1),
    ("window_left", -1),
    ("lse_base", 2),
    ("num_splits", None),
    ("split_policy", "auto"),
]


def test_arguments_are_the_parameters_of_the_call() -> None:
    fields = dataclasses.fields(Arguments)
    found = [
        (field.name, ... if field.default is dataclasses.MISSING else field.default)
        for field in fields
    ]
    assert found == PARAMETERS + KEYWORDS
    assert [field.name for field in fields if field.kw_only] == [name for name, _ in KEYWORDS]


@pytest.mark.skipif(
    not (PEERS / "tokenspeed-mla-0.2.5").is_dir(),
    reason=f"tokenspeed-mla 0.2.5 is not in {PEERS.name}/: nox -s peers installs it",
)
def test_its_first_parameters_are_those_of_tokenspeed_mla_0_2_5() -> None:
    with Wrapper("0.2.5", PEERS).untouched() as decode:
        parameters = inspect.signature(decode).parameters.values()
    assert [
        (one.name, ... if one.default is inspect.Parameter.empty else one.default)
        for one in parameters
    ] == PARAMETERS


# 2. What is served


def test_a_served_call_gets_its_plan() -> None:
    chosen = validate(arguments(), num_sms=132)
    call = chosen.call
    assert chosen == plan(call, 132)
    assert (call.dims.num_heads, call.dims.seq_len_q, call.batch_size) == (HEADS, TOKENS, BATCH)
    assert (call.dtype, call.page_size, call.max_seq_len) == ("bfloat16", 64, 300)
    assert chosen.tiling.packed


SERVED = {
    "uint8 workspace": {"workspace_buffer": at(32, ENOUGH, dtype=torch.uint8)},
    "4-D cache": {"kv_cache": values(PAGES, 1, 64, WIDTH)},
    "pages of a pool with layers between": {"kv_cache": values(PAGES, 3, 64, WIDTH)[:, 1]},
    "rows of a pool with layers between": {"kv_cache": values(PAGES, 64, 3, WIDTH)[:, :, 1]},
    "4-D cache, its dimension of one with any stride": {
        "kv_cache": values(PAGES, 64, WIDTH).as_strided(
            (PAGES, 1, 64, WIDTH), (64 * WIDTH, 7, WIDTH, 1)
        )
    },
    "query with wider heads": {"query": values(BATCH, TOKENS, HEADS, 600)[..., :WIDTH]},
    "query with other heads between": {"query": values(BATCH, TOKENS, 128, WIDTH)[:, :, :HEADS]},
    "query on 16 bytes": {"query": at(16, BATCH, TOKENS, HEADS, WIDTH, dtype=BF16)},
    "rows of a wider block table": {"block_tables": ints(BATCH, 50)[:, :5]},
    "an empty block table": {"block_tables": ints(BATCH, 0)},
    "one page a request, with any stride": {"block_tables": ints(BATCH, 7)[:, ::7]},
    "one page, with any stride": {
        "kv_cache": values(9**6).as_strided((1, 64, WIDTH), (36868, WIDTH, 1))
    },
    "causal_seqs without DCP": {"causal_seqs": ints(BATCH)},
    "DCP for 16-bit input": {"causal_seqs": ints(BATCH), "cp_world": 8, "cp_rank": 7},
    "interleaved DCP": {"causal_seqs": ints(BATCH), "cp_world": 2, "cp_interleave_size": 4},
    "a window narrower than the tokens": {"window_left": 0},
    "out": {"out": values(BATCH, TOKENS, HEADS, LATENT)},
    "natural LSE": {"lse_base": "e", "return_lse": True},
    "scale 0": {"softmax_scale": 0},
    "negative output scale": {"output_scale": -2.5},
    "most splits": {
        "num_splits": MAX_SPLITS,
        "workspace_buffer": at(0, 2**30, dtype=torch.int8),
    },
    "numpy's numbers": {
        "max_seq_len": np.int64(300),
        "softmax_scale": np.float32(0.1),
        "num_splits": np.int32(3),
    },
}


@pytest.mark.parametrize("changes", SERVED.values(), ids=SERVED)
def test_served(changes: dict[str, Any]) -> None:
    validate(arguments(**changes))


@pytest.mark.parametrize("name", ["seq_lens", "causal_seqs"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.int8, torch.uint8])
def test_lengths_of_another_integer_dtype_are_served(name: str, dtype: torch.dtype) -> None:
    validate(arguments(**{name: ints(BATCH, dtype=dtype)}))


@pytest.mark.parametrize("dtype", [torch.float16, BF16, FP8])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_every_dtype_and_page_size_is_served(dtype: torch.dtype, page_size: int) -> None:
    out_dtype = BF16 if dtype == FP8 else dtype
    out = values(BATCH, TOKENS, HEADS, LATENT, dtype=out_dtype)
    validate(arguments(dtype, page_size, out=out))


def test_an_empty_batch_is_served() -> None:
    chosen = validate(
        arguments(
            query=values(0, TOKENS, HEADS, WIDTH),
            block_tables=ints(0, 5),
            seq_lens=ints(0),
            out=values(0, TOKENS, HEADS, LATENT),
            workspace_buffer=ints(0, dtype=torch.int8),
        )
    )
    assert chosen.num_work == 0


def test_wider_tokens_fold_instead_of_packing() -> None:
    assert not validate(arguments(**SERVED["query with other heads between"])).tiling.packed
    assert validate(arguments(**SERVED["query with wider heads"])).tiling.packed


def test_workspace_of_just_the_size_that_workspace_size_gives_is_served() -> None:
    needed = workspace_size(validate(arguments()).call)
    assert needed > 0
    validate(arguments(workspace_buffer=at(0, needed, dtype=torch.int8)))
    with pytest.raises(
        ValueError, match=f"^workspace_buffer must have at least {needed} bytes, got {needed - 1}$"
    ):
        validate(arguments(workspace_buffer=at(0, needed - 1, dtype=torch.int8)))


def test_one_split_needs_no_workspace() -> None:
    validate(arguments(num_splits=1, workspace_buffer=ints(0, dtype=torch.int8)))


def test_policy_and_splits_reach_the_plan() -> None:
    assert validate(arguments(num_splits=5)).num_splits == 5
    assert validate(arguments(split_policy="fixed")).chosen_by == "fixed"
