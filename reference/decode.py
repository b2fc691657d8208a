"""The oracle: what one MLA decode call returns, in float64, one query token at a time.

    score[h, c]  = softmax_scale * sum_d query[h, d] * key[c, d]
    out[h, :]    = output_scale * sum_c softmax(score)[h, c] * key[c, :kv_lora_rank]
    lse[h]       = log_base sum_c exp(score[h, c])

over the keys c that the token sees. Keys that it does not see are never touched, so what they hold
cannot matter. A token that sees no key has out = 0 and lse = -inf.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reference import masks, paging
from reference.inputs import Inputs
from reference.problem import Problem


@dataclass(frozen=True, eq=False)
class Decoded:
    """What a decode call returns, or one part of it before merging."""

    out: Tensor  # [batch, seq_len_q, num_heads, kv_lora_rank] float64
    lse: Tensor  # [batch, seq_len_q, num_heads] float64, in the problem's lse_base


def decode(problem: Problem, inputs: Inputs, *, keep: Sequence[Tensor] | None = None) -> Decoded:
    """The exact result of a decode call, on the CPU; for batch 0 empty tensors.

    keep: for each request a bool [K_b]. Only keys kept take part; None keeps all. Parts computed so
    merge to the whole (`reference.split_kv`).

    Raises ValueError where the inputs have another problem's shapes, or a block table points
    outside the pool.
    """
    _check_shapes(problem, inputs)
    dims = problem.dims
    rows = (problem.batch_size, dims.seq_len_q, dims.num_heads)
    out = torch.empty(*rows, dims.kv_lora_rank, dtype=torch.float64)
    lse = torch.empty(rows, dtype=torch.float64)
    for request, seq_len in enumerate(problem.seq_lens):
        keys = paging.gather(inputs.kv_cache, inputs.block_tables[request], seq_len)
        seen = masks.visible_keys(problem, request)
        if keep is not None:
            seen = seen & keep[request]
        for token in range(dims.seq_len_q):
            token_query = inputs.query[request, token].to("cpu", torch.float64)
            token_out, token_lse = attend(
                token_query, keys[seen[token]], dims.kv_lora_rank, problem.softmax_scale
            )
            out[request, token] = problem.output_scale * token_out
            lse[request, token] = token_lse / nats(problem.lse_base)
    return Decoded(out, lse)


def attend(
    query: Tensor,  # [num_heads, qk_head_dim] float64
    keys: Tensor,  # [visible keys, qk_head_dim] float64
    kv_lora_rank: int,
    softmax_scale: float,
) -> tuple[Tensor, Tensor]:  # [num_heads, kv_lora_rank], [num_heads]
    """Attention of one token over the keys it sees, and the natural logarithm of its exp-sum."""
    num_heads = query.shape[0]
    if len(keys) == 0:
        return query.new_zeros(num_heads, kv_lora_rank), query.new_full((num_heads,), -math.inf)
    score = softmax_scale * (query @ keys.T)
    row_max = score.max(dim=1).values
    weight = torch.exp(score - row_max[:, None])
    row_sum = weight.sum(dim=1)
    out = (weight @ keys[:, :kv_lora_rank]) / row_sum[:, None]
    return out, row_max + torch.log(row_sum)


def nats(lse_base: int | str) -> float:
    """The natural logarithm of an LSE base, 2 or "e": divides nats into units of that base."""
    return math.log(2) if lse_base == 2 else 1.0


def _check_shapes(problem: Problem, inputs: Inputs) -> None:
    batch, dims = problem.batch_size, problem.dims
    wanted = {
        "query": (batch, dims.seq_len_q, dims.num_heads, dims.qk_head_dim),
        "kv_cache": (
            inputs.kv_cache.shape[0],
            *[1] * (inputs.kv_cache.dim() - 3),
            problem.page_size,
            dims.qk_head_dim,
        ),
        "block_tables": (batch, inputs.block_tables.shape[-1]),
    }
    for name, shape in wanted.items():
        got = tuple(getattr(inputs, name).shape)
        if got != shape:
            raise ValueError(f"{name} must have shape {shape} for this problem, got {got}")
