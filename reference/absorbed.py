"""The attention that the absorbed form stands for, and the two maps between them.

A model caches a latent c of kv_lora_rank values and a rope key shared by all heads. Each head
expands the latent with W_UK to a key and with W_UV to a value, and attends over those. Decode never
expands: W_UK is absorbed into the query, W_UV applied to the output, and the latent itself is both
key and value. This file expands; that both agree is the proof that `reference.decode` computes
multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from reference import masks
from reference.decode import Decoded, nats
from reference.problem import Problem


@dataclass(frozen=True, eq=False)
class UpProjections:
    """How each head expands a latent, float64."""

    w_uk: Tensor  # [num_heads, qk_nope_head_dim, kv_lora_rank]
    w_uv: Tensor  # [num_heads, v_head_dim, kv_lora_rank]


def absorb_query(
    q_nope: Tensor,  # [batch, seq_len_q, num_heads, qk_nope_head_dim]
    q_rope: Tensor,  # [batch, seq_len_q, num_heads, qk_rope_head_dim]
    weights: UpProjections,
) -> Tensor:  # [batch, seq_len_q, num_heads, kv_lora_rank + qk_rope_head_dim]
    """The query of the absorbed form: q_nope . (W_UK c) = (W_UK^T q_nope) . c."""
    latent = torch.einsum("bshn,hnl->bshl", q_nope, weights.w_uk)
    return torch.cat([latent, q_rope], dim=-1)


def expand_out(
    out: Tensor,  # [batch, seq_len_q, num_heads, kv_lora_rank]
    weights: UpProjections,
) -> Tensor:  # [batch, seq_len_q, num_heads, v_head_dim]
    """The heads' outputs, from the absorbed form's: sum_c p_c (W_UV c) = W_UV sum_c p_c c."""
    return torch.einsum("bshl,hvl->bshv", out, weights.w_uv)


def decode_unabsorbed(
    problem: Problem,
    q_nope: Tensor,  # [batch, seq_len_q, num_heads, qk_nope_head_dim]
    q_rope: Tensor,  # [batch, seq_len_q, num_heads, qk_rope_head_dim]
    keys: list[Tensor],  # of each request: [K_b, kv_lora_rank + qk_rope_head_dim]
    weights: UpProjections,
) -> Decoded:  # out [batch, seq_len_q, num_heads, v_head_dim]
    """Multi-head attention over the keys and values that each head expands, all in float64."""
    dims = problem.dims
    out = q_nope.new_zeros(*q_nope.shape[:3], weights.w_uv.shape[1])
    lse = q_nope.new_full(q_nope.shape[:3], -math.inf)
    for request in range(problem.batch_size):
        seen = masks.visible_keys(problem, request)
        for token in range(dims.seq_len_q):
            if not seen[token].any():
                continue
            token_keys = keys[request][seen[token]]
            latent, k_rope = token_keys[:, : dims.kv_lora_rank], token_keys[:, dims.kv_lora_rank :]
            for head in range(dims.num_heads):
                head_keys = torch.cat([latent @ weights.w_uk[head].T, k_rope], dim=1)
                head_values = latent @ weights.w_uv[head].T
                at = (request, token, head)
                score = problem.softmax_scale * (head_keys @ torch.cat([q_nope[at], q_rope[at]]))
                out[at] = problem.output_scale * (torch.softmax(score, dim=0) @ head_values)
                lse[at] = torch.logsumexp(score, dim=0) / nats(problem.lse_base)
    return Decoded(out, lse)
