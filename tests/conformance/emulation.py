"""A right kernel, emulated: tiled online softmax with the arithmetic of Blackwell tensor cores.

Independent of the code that derives the bounds: it cuts and rounds bit by bit, and takes its tiles
from the last to the first unless told otherwise. One request, one token: every row sees every key.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

TERMS = {torch.float8_e4m3fn: 32, torch.bfloat16: 16, torch.float16: 16}


@dataclass(frozen=True)
class Settings:
    """The emulated kernel's choices, and the seed of its approximate functions' errors."""

    rescale_threshold: float = 0.0
    p_scale: float = 1.0
    tile_n: int = 128
    num_splits: int = 1
    seed: int = 0
    last_tile_first: bool = True


def emulate(
    query: Tensor,  # [rows, qk_head_dim] in the input's dtype
    keys: Tensor,  # [keys, qk_head_dim] in the input's dtype
    latent: int,
    softmax_scale: float,
    settings: Settings,
) -> tuple[Tensor, Tensor]:
    """Return out [rows, latent] in the output's dtype and lse [rows] in base 2, float32."""
    noise = torch.Generator().manual_seed(settings.seed)
    tiles = list(torch.split(keys, settings.tile_n))
    if settings.last_tile_first:
        tiles.reverse()
    per_split = -(-len(tiles) // settings.num_splits)
    parts = [
        _split(query, tiles[first : first + per_split], latent, softmax_scale, settings, noise)
        for first in range(0, len(tiles), per_split)
    ]
    out, lse = _merge(parts, noise) if len(parts) > 1 else parts[0]
    return out.to(torch.bfloat16 if keys.dtype == torch.float8_e4m3fn else keys.dtype), lse


def _split(query, tiles, latent, softmax_scale, settings, noise):  # the online softmax
    scale = torch.tensor(softmax_scale, dtype=torch.float32) * torch.tensor(math.log2(math.e))
    out = torch.zeros(len(query), latent)
    row_sum = torch.zeros(len(query))
    row_max = torch.full((len(query),), -torch.inf)
    for tile in tiles:
        scores = matmul(query, tile.T, torch.zeros(len(query), len(tile)))
        new_max = torch.maximum(row_max, scores.amax(-1))
        keep = (new_max - row_max) * scale <= settings.rescale_threshold
        new_max = torch.where(keep, row_max, new_max)
        factor = torch.where(keep, 1.0, _ex2((row_max - new_max) * scale, noise))
        row_max = new_max
        p = _ex2(_fma(scores, scale, -row_max * scale), noise)
        tile_sum = torch.zeros(len(query))  # a tile is summed by itself, as the kernels at hand do
        for column in p.T:
            tile_sum = tile_sum + column
        row_sum = row_sum * factor + tile_sum
        cast = (p * settings.p_scale).to(query.dtype)
        out = matmul(cast, tile[:, :latent], out * factor[:, None])
    reciprocal = 1.0 / (row_sum * settings.p_scale)
    return out * reciprocal[:, None], torch.log2(row_sum) + scale * row_max


def _merge(parts, noise):
    outs = torch.stack([out for out, _ in parts])
    lses = torch.stack([lse for _, lse in parts])
    highest = lses.amax(0)
    lse = highest + torch.log2(_ex2(lses - highest, noise).sum(0))
    return (outs * _ex2(lses - lse, noise)[..., None]).sum(0), lse


def matmul(a: Tensor, b: Tensor, accumulator: Tensor) -> Tensor:
    """Return accumulator + a @ b in float32, as fused steps that cut toward zero."""
    terms = TERMS[a.dtype]
    total = accumulator.double()
    for first in range(0, a.shape[1], terms):
        left = a[:, first : first + terms].double()
        right = b[first : first + terms].double()
        products = torch.cat((left[:, :, None] * right, total[:, None]), dim=1)
        _, exponent = torch.frexp(products.abs().amax(1))
        last_bit = torch.ldexp(torch.ones_like(total), exponent - 1 - 25)
        total = (torch.trunc(products / last_bit[:, None]) * last_bit[:, None]).sum(1)
        _, exponent = torch.frexp(total)
        last_bit = torch.ldexp(torch.ones_like(total), exponent - 24)
        total = torch.trunc(total / last_bit) * last_bit
    return total.float()


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return (a.double() * b.double() + c.double()[:, None]).float()


def _ex2(x: Tensor, noise: torch.Generator) -> Tensor:
    """Return 2^x in float32, off by up to two units in the last place."""
    ulps = torch.rand(x.shape, generator=noise, dtype=torch.float64) * 3.0 - 1.5
    return (torch.exp2(x.double()) * (1.0 + ulps * 2.0**-23)).float()
