"""Random queries and keys for the tests of the bounds: generic data, and data with structure.

A row of the cache is key and value at once, so structure in the values leaves the scores to the
rope part and to the query.
"""

import math
import random
from collections.abc import Callable

import torch
from torch import Tensor

LATENT, ROPE = 512, 64


def _normal(query: Tensor, keys: Tensor) -> None:
    """Generic: nothing beside the independent normal numbers that are there."""


def _equal_keys(query: Tensor, keys: Tensor) -> None:
    keys[:] = keys[:1].clone()


def _zero_query(query: Tensor, keys: Tensor) -> None:
    query[:] = 0.0


def _values_of_ones(query: Tensor, keys: Tensor) -> None:
    keys[:, :LATENT] = 1.0
    query[:, :LATENT] = 0.0


def _one_value(query: Tensor, keys: Tensor) -> None:
    keys[:, :LATENT] = keys[:1, :LATENT].clone()


def _hot_key(query: Tensor, keys: Tensor) -> None:
    keys[len(keys) // 2, LATENT:] += query[0, LATENT:]


def _scores(query: Tensor, keys: Tensor, nats: Tensor) -> None:
    """Give each key a chosen score, up to rounding, for a softmax scale of 192^-0.5."""
    query[:, LATENT:] = 0.0
    query[:, LATENT] = 16.0
    query[:, :LATENT] = 0.0
    keys[:, LATENT] = nats * math.sqrt(192.0) / 16.0


def _long_tail(query: Tensor, keys: Tensor) -> None:
    """One key, and all others about 7 nats below: where the cast to e4m3 loses them or not."""
    nats = -7.0 + 0.3 * torch.randn(len(keys), generator=torch.Generator().manual_seed(len(keys)))
    nats[0] = 0.0
    _scores(query, keys, nats)


def _long_tail_of_ones(query: Tensor, keys: Tensor) -> None:
    _long_tail(query, keys)
    keys[:, :LATENT] = 1.0


def _cluster(query: Tensor, keys: Tensor) -> None:
    """All P of a row but one in one cell of the cast, and all values of one sign."""
    nats = -2.03 + 0.004 * torch.arange(len(keys)) / len(keys)
    nats[-1] = 0.0
    _scores(query, keys, nats)
    keys[:, :LATENT] = keys[:, :LATENT].abs()


def _alternating(query: Tensor, keys: Tensor) -> None:
    """Equal P with values whose signs alternate: their common rounding cancels, or does not."""
    _scores(query, keys, -1.3 * (torch.arange(len(keys)) % 3))
    keys[:, :LATENT] = keys[:1, :LATENT] * (1 - 2 * (torch.arange(len(keys)) % 2))[:, None]


def _rising(query: Tensor, keys: Tensor) -> None:
    _scores(query, keys, torch.arange(len(keys)) * 0.02)


def _falling(query: Tensor, keys: Tensor) -> None:
    _scores(query, keys, torch.arange(len(keys)) * -0.02)


def _very_negative(query: Tensor, keys: Tensor) -> None:
    keys[:] = keys - 3.0 * query[:1].sign()


KINDS = (
    _normal, _equal_keys, _zero_query, _values_of_ones, _one_value, _hot_key, _long_tail,
    _long_tail_of_ones, _cluster, _alternating, _rising, _falling, _very_negative,
)  # fmt: skip
Kind = Callable[[Tensor, Tensor], None]


def draw(
    choice: random.Random, kind: Kind, dtype: torch.dtype, rows: int, longest: int
) -> tuple[Tensor, Tensor]:
    """Return query [rows, 576] and keys [1..longest, 576] in ``dtype``, of one kind."""
    source = torch.Generator().manual_seed(choice.getrandbits(40))
    num_keys = choice.choice((1, 2, 31, 64, 127, 128, 129, 256, choice.randint(1, longest)))
    magnitude = 10.0 ** choice.uniform(-1.0, 0.7)
    query = magnitude * torch.randn(rows, LATENT + ROPE, generator=source)
    keys = magnitude * torch.randn(min(num_keys, longest), LATENT + ROPE, generator=source)
    kind(query, keys)
    limit = torch.finfo(dtype).max
    return query.clamp(-limit, limit).to(dtype), keys.clamp(-limit, limit).to(dtype)
