"""What a decode call refuses, each by its whole message."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch

from optimized.api import decode_on
from optimized.validate import validate
from tests.optimized.calls import (
    BATCH,
    BF16,
    ENOUGH,
    HEADS,
    LATENT,
    PAGES,
    TOKENS,
    WIDTH,
    Recorder,
    arguments,
    at,
    ints,
    values,
)

QUERY = (BATCH, TOKENS, HEADS, WIDTH)
REFUSED: list[tuple[str, dict[str, Any]]] = [
    # query
    (
        "query must have the dimensions [batch, seq_len_q, num_heads, qk_head_dim], "
        "got the shape (3, 96, 576)",
        {"query": values(BATCH, HEADS, WIDTH)},
    ),
    (
        "query.dtype must be float16, bfloat16 or float8_e4m3fn, got float32",
        {"query": values(*QUERY, dtype=torch.float32)},
    ),
    (
        "query.dtype must be float16, bfloat16 or float8_e4m3fn, got float8_e5m2",
        {"query": values(*QUERY, dtype=torch.float8_e5m2)},
    ),
    (
        "query must have 576 in dimension 3 (qk_head_dim), got 512",
        {"query": values(BATCH, TOKENS, HEADS, 512)},
    ),
    ("num_heads must be in [1, 128], got 129", {"query": values(1, 1, 129, WIDTH)}),
    ("num_heads must be in [1, 128], got 0", {"query": values(1, 1, 0, WIDTH)}),
    ("seq_len_q must be in [1, 2147483647], got 0", {"query": values(1, 0, 16, WIDTH)}),
    (
        "query must have 1 element as the stride of dimension 3 (qk_head_dim), got 2",
        {"query": values(BATCH, TOKENS, HEADS, 2 * WIDTH)[..., ::2]},
    ),
    (
        "query must have a multiple of 16 bytes as the stride of dimension 2 (num_heads), got 1154",
        {"query": values(BATCH, TOKENS, HEADS, WIDTH + 1)[..., :WIDTH]},
    ),
    (
        "query must have a multiple of 16 bytes as the stride of dimension 1 (seq_len_q), "
        "got 110600",
        {"query": values(9**7).as_strided(QUERY, (4 * 55300, 55300, WIDTH, 1))},
    ),
    (
        "query must have a multiple of 16 bytes as the stride of dimension 0 (batch), got 442404",
        {"query": values(9**7).as_strided(QUERY, (221202, 55296, WIDTH, 1))},
    ),
    # kv_cache
    (
        "kv_cache must have the dimensions [num_pages, page_size, qk_head_dim] or "
        "[num_pages, num_kv_heads, page_size, qk_head_dim], got the shape (7, 576)",
        {"kv_cache": values(PAGES, WIDTH)},
    ),
    (
        "kv_cache.dtype must be bfloat16, got float16",
        {"kv_cache": values(PAGES, 64, WIDTH, dtype=torch.float16)},
    ),
    (
        "kv_cache must be on cpu as query is, got meta",
        {"kv_cache": values(PAGES, 64, WIDTH, device="meta")},
    ),
    (
        "kv_cache must have 1 in dimension 1 (num_kv_heads), got 2",
        {"kv_cache": values(PAGES, 2, 64, WIDTH)},
    ),
    (
        "kv_cache must have 576 in dimension 2 (qk_head_dim), got 640",
        {"kv_cache": values(PAGES, 64, 640)},
    ),
    (
        "page_size must be one of (2, 4, 8, 16, 32, 64, 128), got 48",
        {"kv_cache": values(PAGES, 48, WIDTH)},
    ),
    (
        "page_size must be one of (2, 4, 8, 16, 32, 64, 128), got 1",
        {"kv_cache": values(PAGES, 1, WIDTH)},
    ),
    (
        "kv_cache must have 1 element as the stride of dimension 2 (qk_head_dim), got 64",
        {"kv_cache": values(PAGES, WIDTH, 64).transpose(1, 2)},
    ),
    (
        "kv_cache must have a multiple of 16 bytes as the stride of dimension 1 (page_size), "
        "got 1156",
        {"kv_cache": values(PAGES, 64, WIDTH + 2)[..., :WIDTH]},
    ),
    (
        "kv_cache must have a multiple of 16 bytes as the stride of dimension 0 (num_pages), "
        "got 73736",
        {"kv_cache": values(9**6).as_strided((PAGES, 64, WIDTH), (36868, WIDTH, 1))},
    ),
    (
        "kv_cache must have a multiple of 16 bytes as the stride of dimension 0 (num_pages), "
        "got 73736",
        {"kv_cache": values(9**6).as_strided((2, 64, WIDTH), (36868, WIDTH, 1))},
    ),
    # block_tables
    (
        "block_tables must have the dimensions [batch, max_pages], got the shape (3,)",
        {"block_tables": ints(BATCH)},
    ),
    (
        "block_tables.dtype must be int32, got int64",
        {"block_tables": ints(BATCH, 5, dtype=torch.int64)},
    ),
    (
        "block_tables must be on cpu as query is, got meta",
        {"block_tables": ints(3, 5, device="meta")},
    ),
    ("block_tables must have 3 in dimension 0 (batch), got 2", {"block_tables": ints(2, 5)}),
    (
        "block_tables must have 1 element as the stride of dimension 1 (max_pages), got 3",
        {"block_tables": ints(5, BATCH).T},
    ),
    (
        "block_tables must have 1 element as the stride of dimension 1 (max_pages), got 3",
        {"block_tables": ints(2, BATCH).T},
    ),
    # workspace_buffer
    (
        "workspace_buffer must have the dimensions [bytes], got the shape (2, 64)",
        {"workspace_buffer": ints(2, 64, dtype=torch.int8)},
    ),
    (
        "workspace_buffer.dtype must be int8 or uint8, got float32",
        {"workspace_buffer": values(64, dtype=torch.float32)},
    ),
    (
        "workspace_buffer must be on cpu as query is, got meta",
        {"workspace_buffer": ints(ENOUGH, dtype=torch.int8, device="meta")},
    ),
    (
        "workspace_buffer must have 1 element as the stride of dimension 0 (bytes), got 2",
        {"workspace_buffer": ints(ENOUGH, dtype=torch.int8)[::2]},
    ),
    # out
    (
        "out must have the dimensions [batch, seq_len_q, num_heads, kv_lora_rank], "
        "got the shape (12, 96, 512)",
        {"out": values(BATCH * TOKENS, HEADS, LATENT)},
    ),
    ("out.dtype must be bfloat16, got float16", {"out": values(*QUERY, dtype=torch.float16)}),
    ("out must be on cpu as query is, got meta", {"out": values(*QUERY, device="meta")}),
    ("out must have 512 in dimension 3 (kv_lora_rank), got 576", {"out": values(*QUERY)}),
    ("out must have 3 in dimension 0 (batch), got 2", {"out": values(2, TOKENS, HEADS, LATENT)}),
    ("out must have 4 in dimension 1 (seq_len_q), got 5", {"out": values(3, 5, HEADS, LATENT)}),
    ("out must have 96 in dimension 2 (num_heads), got 95", {"out": values(3, 4, 95, LATENT)}),
    (
        "out must have 512 elements as the stride of dimension 2 (num_heads), got 1024",
        {"out": values(BATCH, TOKENS, HEADS, 2 * LATENT)[..., :LATENT]},
    ),
    # numbers
    ("softmax_scale must be finite and at least 0.0, got -0.1", {"softmax_scale": -0.1}),
    ("softmax_scale must be finite and at least 0.0, got nan", {"softmax_scale": math.nan}),
    ("softmax_scale must be finite and at least 0.0, got inf", {"softmax_scale": math.inf}),
    ("output_scale must be finite, got nan", {"output_scale": math.nan}),
    ("output_scale must be finite, got -inf", {"output_scale": -math.inf}),
    ("max_seq_len must be in [1, 2147483647], got 0", {"max_seq_len": 0}),
    ("max_seq_len must be in [1, 2147483647], got -5", {"max_seq_len": -5}),
    ("kv_lora_rank must be in [1, 2147483647], got 0", {"kv_lora_rank": 0}),
    ("qk_rope_head_dim must be in [1, 2147483647], got -64", {"qk_rope_head_dim": -64}),
    (
        "kv_lora_rank must be 512, got 256",
        {
            "query": values(BATCH, TOKENS, HEADS, 320),
            "kv_cache": values(PAGES, 64, 320),
            "kv_lora_rank": 256,
        },
    ),
    (
        "qk_rope_head_dim must be 64, got 32",
        {
            "query": values(BATCH, TOKENS, HEADS, 544),
            "kv_cache": values(PAGES, 64, 544),
            "qk_rope_head_dim": 32,
        },
    ),
    ("cp_world must be in [1, 2147483647], got 0", {"cp_world": 0}),
    ("cp_world must be 1 without causal_seqs, got 2", {"cp_world": 2}),
    ("cp_rank must be in [0, 0], got 1", {"cp_rank": 1}),
    ("cp_rank must be in [0, 3], got 4", {"causal_seqs": ints(3), "cp_world": 4, "cp_rank": 4}),
    ("cp_rank must be in [0, 3], got -1", {"causal_seqs": ints(3), "cp_world": 4, "cp_rank": -1}),
    ("cp_interleave_size must be in [1, 2147483647], got 0", {"cp_interleave_size": 0}),
    (
        "cp_interleave_size must be in [1, 536870911], got 536870912",
        {"causal_seqs": ints(3), "cp_world": 4, "cp_interleave_size": 2**29},
    ),
    ("window_left must be in [-1, 2147483647], got -2", {"window_left": -2}),
    ("lse_base must be one of (2, 'e'), got 10", {"lse_base": 10}),
    ("lse_base must be one of (2, 'e'), got '2'", {"lse_base": "2"}),
    ("num_splits must be in [1, 256], got 0", {"num_splits": 0}),
    ("num_splits must be in [1, 256], got 257", {"num_splits": 257}),
    ("split_policy must be one of ('auto', 'fixed'), got 'best'", {"split_policy": "best"}),
]


@pytest.mark.parametrize(("message", "changes"), REFUSED, ids=[message for message, _ in REFUSED])
def test_refused(message: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        validate(arguments(**changes))


class Unused:
    """A device that must not be asked to launch."""

    num_sms, capability = 148, (10, 0)

    def launch(self, key: object, arguments: object) -> None:
        raise AssertionError("launched")


@pytest.mark.parametrize(("message", "changes"), REFUSED, ids=[message for message, _ in REFUSED])
def test_a_refused_call_launches_and_allocates_nothing(
    message: str, changes: dict[str, Any]
) -> None:
    call = arguments(**changes)
    with (
        Recorder() as recorder,
        pytest.raises(ValueError, match=f"^{re.escape(message)}$"),
    ):
        decode_on(Unused(), call)
    assert not recorder.names


@pytest.mark.parametrize("name", ["seq_lens", "causal_seqs"])
@pytest.mark.parametrize(
    ("rest", "lengths"),
    [
        (" must have the dimensions [batch], got the shape (3, 1)", ints(BATCH, 1)),
        (" must be on cpu as query is, got meta", ints(BATCH, device="meta")),
        (" must have 3 in dimension 0 (batch), got 4", ints(BATCH + 1)),
        (" must have 1 element as the stride of dimension 0 (batch), got 2", ints(2 * BATCH)[::2]),
        (".dtype must be int32, int64, .*uint64, got float32", values(3, dtype=torch.float32)),
        (".dtype must be int32, int64, .*uint64, got bool", values(3, dtype=torch.bool)),
    ],
)
def test_lengths_refused(name: str, rest: str, lengths: torch.Tensor) -> None:
    pattern = re.escape(name + rest).replace(re.escape(".*"), ".*")
    with pytest.raises(ValueError, match=f"^{pattern}$"):
        validate(arguments(**{name: lengths}))


@pytest.mark.parametrize(
    ("name", "alignment", "tensor"),
    [
        ("query", 16, at(8, *QUERY, dtype=BF16)),
        ("kv_cache", 16, at(2, PAGES, 64, WIDTH, dtype=BF16)),
        ("workspace_buffer", 32, at(16, ENOUGH, dtype=torch.int8)),
        ("out", 16, at(4, BATCH, TOKENS, HEADS, LATENT, dtype=BF16)),
    ],
)
def test_misaligned_refused(name: str, alignment: int, tensor: torch.Tensor) -> None:
    address = hex(tensor.data_ptr())
    message = f"{name} must start at a multiple of {alignment} bytes, got {address}"
    with pytest.raises(ValueError, match=f"^{message}$"):
        validate(arguments(**{name: tensor}))


@pytest.mark.parametrize(
    ("name", "limit", "value", "shown"),
    [
        *[
            (name, "be a tensor", None, "a NoneType")
            for name in ("query", "kv_cache", "workspace_buffer", "block_tables", "seq_lens")
        ],
        ("out", "be a tensor", 5, "a int"),
        ("causal_seqs", "be a tensor", [5, 6, 7], "a list"),
        ("query", "be a tensor", np.zeros(QUERY, np.float16), "a ndarray"),
        *[
            (name, "be an int", value, repr(value))
            for name in (
                "kv_lora_rank",
                "qk_rope_head_dim",
                "max_seq_len",
                "cp_world",
                "cp_rank",
                "cp_interleave_size",
                "window_left",
                "num_splits",
            )
            for value in (1.0, True, "1")
        ],
        *[
            (name, "be a float", value, repr(value))
            for name in ("softmax_scale", "output_scale")
            for value in ("1", True, None)
        ],
        *[
            (name, "be a bool", value, repr(value))
            for name in ("is_var_seq", "causal_mask", "enable_pdl", "return_lse")
            for value in (1, None)
        ],
    ],
)
def test_the_wrong_kind_refused(name: str, limit: str, value: object, shown: str) -> None:
    message = re.escape(f"{name} must {limit}, got {shown}")
    with pytest.raises(TypeError, match=f"^{message}$"):
        validate(arguments(**{name: value}))


@pytest.mark.parametrize("capability", [(9, 0), (10, 7), (12, 0)])
def test_another_architecture_refused(capability: tuple[int, int]) -> None:
    message = re.escape(f"compute capability must be (10, 0) or (10, 3), got {capability}")
    with pytest.raises(ValueError, match=f"^{message}$"):
        validate(arguments(), capability=capability)


def test_no_element_is_read() -> None:
    tensors = {
        "query": values(*QUERY, device="meta"),  # holds no number that could be read
        "kv_cache": values(PAGES, 64, WIDTH, device="meta"),
        "workspace_buffer": ints(ENOUGH, dtype=torch.int8, device="meta"),
        "block_tables": ints(BATCH, 5, device="meta"),
        "seq_lens": ints(BATCH, device="meta"),
    }
    validate(arguments(**tensors))
