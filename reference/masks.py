"""Which keys a query token may see: one key at a time, by its position in the whole context.

Symbols: request b, token i of S, local key c of the K_b in this cache, context length G.
There is no closed form here on purpose. Kernels compute bounds; this file maps each key to its
position and compares, so that an error in the bounds cannot hide in both.
"""

import torch
from torch import Tensor

from reference.problem import Dcp, Problem


def position(dcp: Dcp, key: int) -> int:
    """The position in the whole context of this rank's local key; with one rank, the key itself.

    Positions are dealt to the ranks in turn, interleave_size at a time.
    """
    block, offset = divmod(key, dcp.interleave_size)
    return (block * dcp.world + dcp.rank) * dcp.interleave_size + offset


def visible(problem: Problem, request: int, token: int, key: int) -> bool:
    """Whether query token `token` of a request sees local key `key`."""
    seq_len_q = problem.dims.seq_len_q
    context_len = problem.context_len(request)
    x = position(problem.dcp, key)
    own_position = context_len - seq_len_q + token  # the query tokens are the context's last S
    window = problem.mask.window_left

    exists = key < problem.seq_lens[request] and x < context_len
    causal = not problem.mask.causal or x <= own_position
    in_window = window < 0 or x >= own_position - window
    return exists and causal and in_window


def visible_keys(problem: Problem, request: int) -> Tensor:
    """The same for all tokens and keys of a request: bool [seq_len_q, K_b]."""
    seq_len_q = problem.dims.seq_len_q
    context_len = problem.context_len(request)
    window = problem.mask.window_left
    keys = range(problem.seq_lens[request])
    x = torch.tensor([position(problem.dcp, key) for key in keys], dtype=torch.int64)

    seen = torch.empty(seq_len_q, len(keys), dtype=torch.bool)
    for token in range(seq_len_q):
        own_position = context_len - seq_len_q + token
        seen[token] = x < context_len
        if problem.mask.causal:
            seen[token] &= x <= own_position
        if window >= 0:
            seen[token] &= x >= own_position - window
    return seen
