"""Parts of an attention and their merge, as mathematics: splits, tiles and DCP ranks share it."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from reference.decode import Decoded, decode, nats
from reference.inputs import Inputs
from reference.paging import pages_needed
from reference.problem import Problem


def split_keys(num_keys: int, num_splits: int, tile_keys: int = 128) -> list[range]:
    """The keys of each split: whole tiles, as many to each as the first; trailing ones empty."""
    tiles = pages_needed(num_keys, tile_keys)
    keys_per_split = -(-tiles // num_splits) * tile_keys
    starts = [min(split * keys_per_split, num_keys) for split in range(num_splits + 1)]
    return [range(start, end) for start, end in itertools.pairwise(starts)]


def decode_splits(
    problem: Problem, inputs: Inputs, num_splits: int, tile_keys: int = 128
) -> list[Decoded]:
    """What each split of a split-KV kernel should hand to the combine."""
    splits = [split_keys(seq_len, num_splits, tile_keys) for seq_len in problem.seq_lens]
    parts = []
    for split in range(num_splits):
        keep = [torch.zeros(seq_len, dtype=torch.bool) for seq_len in problem.seq_lens]
        for request, keys in enumerate(splits):
            keep[request][keys[split].start : keys[split].stop] = True
        parts.append(decode(problem, inputs, keep=keep))
    return parts


def merge(parts: Sequence[Decoded], lse_base: int | str) -> Decoded:
    """The whole, from disjoint parts of its keys, in any order and grouping; at least one part.

    With m the largest lse of a row, each part weighs exp(lse - m), and 0 where it saw no key. A row
    that no part saw a key for has out = 0 and lse = -inf.
    """
    part_out = torch.stack([part.out for part in parts])
    part_lse = torch.stack([part.lse for part in parts]) * nats(lse_base)
    row_max = part_lse.max(dim=0).values
    empty = row_max == -math.inf

    weight = _zero_where(part_lse == -math.inf, torch.exp(part_lse - row_max))
    row_sum = weight.sum(dim=0)
    out = (weight[..., None] * part_out).sum(dim=0) / row_sum[..., None]
    lse = (row_max + torch.log(row_sum)) / nats(lse_base)
    return Decoded(_zero_where(empty[..., None], out), lse)


def _zero_where(condition: Tensor, values: Tensor) -> Tensor:
    return torch.where(condition, torch.zeros_like(values), values)
