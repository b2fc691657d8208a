"""What a tiled kernel computes where nothing but its own choices is rounded: a faithful emulation.

A kernel goes through a request's keys tile by tile, in the order of the keys, and keeps for each
row a *base*: the score that its weights P are relative to. The base follows the row's maximum only
where that has grown by more than a threshold. P, multiplied by a scale, is cast to the input's
dtype before it meets the values; the row sum takes it before the cast. Each split of the keys
starts with a base of its own, and its result is merged with the others.

All of that in float64: with t the scores in powers of two, b the base of a key's tile, and lse
the logarithm of the sum of 2^t over all keys,

    out = sum over keys of cast(p_scale 2^(t - b)) / p_scale * 2^(b - lse) * value.

Normalising a split and merging it multiply by factors whose product is 2^(b - lse), so the formula
needs neither. What a real kernel adds are errors of float32 sums and of approximate functions.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from reference.paging import pages_needed


@dataclass(frozen=True)
class Walk:
    """How a kernel goes through the keys of a request that some token sees.

    first_tile, num_tiles: the tiles that hold those keys. num_splits: parts of so many tiles, as
    many to each as the first one has. rescale_threshold: growth, in powers of two, up to which the
    base stays.
    """

    tile_n: int
    first_tile: int
    num_tiles: int
    num_splits: int
    rescale_threshold: float

    @property
    def starts(self) -> list[bool]:
        """For each tile, whether a split starts with it."""
        each = max(1, pages_needed(self.num_tiles, self.num_splits))
        return [tile % each == 0 for tile in range(self.num_tiles)]

    def tiles_of(self, keys: Tensor) -> Tensor:  # [keys] int64 -> [keys]
        """The tile of each key of the request, counted from the first one."""
        return keys // self.tile_n - self.first_tile


def tile_maxima(scores: Tensor, tiles: Tensor, num_tiles: int) -> Tensor:  # [rows, num_tiles]
    """The largest of the scores [rows, keys] in each tile; -inf where the rows see none of it."""
    maxima = scores.new_full((len(scores), num_tiles), -math.inf)
    return maxima.scatter_reduce(1, tiles.expand(len(scores), -1), scores, "amax")


def bases(maxima: Tensor, walk: Walk) -> Tensor:  # [rows, num_tiles]
    """The base of each row in each tile; -inf before the first key that the row sees."""
    base = maxima.new_full((len(maxima),), -math.inf)
    of_tile = []
    for tile, starts in enumerate(walk.starts):
        if starts:
            base = torch.full_like(base, -math.inf)
        grown = maxima[:, tile] > base + walk.rescale_threshold
        base = torch.where(grown, maxima[:, tile], base)
        of_tile.append(base)
    return torch.stack(of_tile, 1)


def doubtful(
    maxima: Tensor, base: Tensor, walk: Walk, slack: Tensor
) -> Tensor:  # [rows, num_tiles]
    """Where a growth is within ``slack`` [rows] of the threshold, so that either may be decided.

    Nowhere without a threshold: there both decisions lead to nearly the same base.
    """
    before = torch.cat((base.new_full((len(base), 1), -math.inf), base[:, :-1]), 1)
    before[:, torch.tensor(walk.starts)] = -math.inf
    distance = (maxima - before - walk.rescale_threshold).abs()
    return (distance <= slack[:, None]) & (walk.rescale_threshold > 0.0)


def all_bases(maxima: Tensor, walk: Walk, slack: float, most: int) -> list[Tensor] | None:
    """Every sequence of bases that one row may take, where its growth within ``slack`` decides.

    maxima: [num_tiles]. None where that takes more than ``most`` decisions.
    """
    paths: list[list[float]] = [[]]
    threshold = walk.rescale_threshold
    for highest, starts in zip(maxima.tolist(), walk.starts, strict=True):
        longer = []
        for path in paths:
            base = -math.inf if starts else path[-1]
            if highest > base + threshold - slack:
                longer.append([*path, highest])
            if not highest > base + threshold + slack:
                longer.append([*path, base])
        paths = longer
        if len(paths) > 2**most:
            return None
    return [torch.tensor(path, dtype=maxima.dtype) for path in paths]


def cast(p: Tensor, dtype: torch.dtype) -> Tensor:
    """Values as ``dtype`` holds them: to nearest even, and never above its largest."""
    return p.clamp(max=torch.finfo(dtype).max).to(dtype).to(p.dtype)
