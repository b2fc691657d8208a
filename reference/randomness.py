"""Random numbers that are the same bits on every machine, from a seed and a name.

SHAKE-256 of the two; decision 0003 says why. Normal deviates are looked up in a table of quantiles,
because `torch.randn` differs in the last bits between vector instruction sets.
"""

import functools
import hashlib
import math
import statistics

import torch
from torch import Tensor


def random_bits(seed: int, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Integers of a dtype with random bits: SHAKE-256 (FIPS 202) of "seed/name", little-endian."""
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    text = f"{seed}/{name}".encode()
    digest = bytearray(hashlib.shake_256(text).digest(count * dtype.itemsize))
    return torch.frombuffer(digest, dtype=dtype).reshape(shape)


def random_integers(seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """Random int64 of all values; `% n` gives one in [0, n), evenly for any n in sight."""
    return random_bits(seed, name, shape, torch.int64)


def normal_deviates(seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """Independent N(0, 1) deviates, float32, each one of 65,536 quantiles; none past 4.4."""
    return _normal_quantiles()[random_bits(seed, name, shape, torch.uint16).long()]


@functools.cache
def _normal_quantiles() -> Tensor:
    count = 2**16
    inverse = statistics.NormalDist().inv_cdf
    return torch.tensor([inverse((k + 0.5) / count) for k in range(count)], dtype=torch.float32)
