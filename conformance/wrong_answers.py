"""Answers of kernels with one fault each, otherwise right to the last rounding: what to refuse.

32 heads and four query tokens over normal data. Keys past the length are there too, of the same
kind as the others: what a kernel that reads them would find. A kernel goes through its keys as its
declared algorithm says, and casts P (`reference.faithful`); then out is rounded to its dtype. So a
wrong answer differs from a right one by its fault alone, and the right one, "none", is among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from conformance.kernel import Algorithm
from reference import faithful
from reference.faithful import Walk
from reference.inputs import Inputs
from reference.problem import Dims, Problem

HEADS, TOKENS, LATENT, ROPE = 32, 4, 512, 64
TILE, PAGE = 128, 64
SCALE = 192**-0.5
RIGHT = "none"


@dataclass(frozen=True)
class Attention:
    """What a kernel computes, with the knobs that the faults turn."""

    dtype: torch.dtype
    algorithm: Algorithm
    query: Tensor  # [tokens, heads, 576] float64
    keys: Tensor  # [slots, 576] float64, more than seq_len
    values: Tensor  # [slots, 512] float64
    seq_len: int
    first_key: int = 0
    ends: tuple[int, ...] = ()  # of each token's visible keys
    scale: float = SCALE

    def result(self) -> tuple[Tensor, Tensor]:
        """The kernel's out [tokens, heads, 512] and lse [tokens, heads] in base 2, float64."""
        tokens = [self._token(token, end) for token, end in enumerate(self.ends)]
        return torch.stack([out for out, _ in tokens]), torch.stack([lse for _, lse in tokens])

    def _token(self, token: int, end: int) -> tuple[Tensor, Tensor]:
        keys = torch.arange(self.first_key, max(end, self.first_key + 1))
        scores = self.scale * math.log2(math.e) * (self.query[token] @ self.keys[keys].T)
        lse = torch.logsumexp(scores * math.log(2.0), -1) / math.log(2.0)
        first_tile, threshold = self.first_key // TILE, self.algorithm.rescale_threshold
        num_tiles = int(keys[-1]) // TILE - first_tile + 1
        walk = Walk(TILE, first_tile, num_tiles, num_splits=1, rescale_threshold=threshold)
        tiles = walk.tiles_of(keys)
        base = faithful.bases(faithful.tile_maxima(scores, tiles, num_tiles), walk)[:, tiles]
        p_scale = self.algorithm.p_scale
        p = faithful.cast(p_scale * torch.exp2(scores - base), self.dtype)
        weight = p / p_scale * torch.exp2(base - lse[:, None])
        return weight @ self.values[keys], lse


@dataclass(frozen=True)
class Data:
    """What the tensors hold: magnitude * N(0, 1), and the softmax scale that goes with it."""

    magnitude: float = 1.0
    scale: float = SCALE
    seed: int = 0


def attention(dtype: str, seq_len: int, algorithm: Algorithm, data: Data) -> Attention:
    """Return a right kernel's attention over normal data in ``dtype``."""
    source = torch.Generator().manual_seed(data.seed)
    kind: torch.dtype = getattr(torch, dtype)

    def normal(*shape: int) -> Tensor:
        deviates = torch.randn(*shape, LATENT + ROPE, generator=source)
        return (data.magnitude * deviates).to(kind).double()

    query, keys = normal(TOKENS, HEADS), normal(seq_len + 2 * TILE)
    values = keys[:, :LATENT]
    ends = tuple(seq_len - TOKENS + 1 + token for token in range(TOKENS))
    return Attention(kind, algorithm, query, keys, values, seq_len, ends=ends, scale=data.scale)


def _other_page(a: Attention) -> Attention:
    keys = a.keys.clone()
    keys[:PAGE] = a.keys[a.seq_len : a.seq_len + PAGE]
    return replace(a, keys=keys, values=keys[:, :LATENT])


def _no_rope(a: Attention) -> Attention:
    query = a.query.clone()
    query[..., LATENT:] = 0.0
    return replace(a, query=query)


def _tail(a: Attention) -> Attention:
    """The last tile unmasked for the last token; a whole tile where the length fills its tiles."""
    end = (a.seq_len // TILE + 1) * TILE
    return replace(a, ends=(*a.ends[:-1], end))


WRONG_ATTENTION: Mapping[str, Callable[[Attention], Attention]] = MappingProxyType(
    {
        "uniform weights": lambda a: replace(a, scale=0.0),
        "one key fewer": lambda a: replace(a, ends=tuple(end - 1 for end in a.ends)),
        "one key more": lambda a: replace(a, ends=tuple(end + 1 for end in a.ends)),
        "no causal mask": lambda a: replace(a, ends=(a.seq_len,) * TOKENS),
        "no tail mask": _tail,
        "first 128 keys dropped": lambda a: replace(a, first_key=128),
        "scale off by sqrt(512/576)": lambda a: replace(a, scale=a.scale * math.sqrt(512 / 576)),
        "rope ignored": _no_rope,
        "one wrong page": _other_page,
        "V shifted by one key": lambda a: replace(a, values=a.values.roll(1, 0)),
    }
)
WRONG_RESULT: Mapping[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = MappingProxyType(
    {
        "zeros": lambda out, lse: (torch.zeros_like(out), lse),
        "out times 1.05": lambda out, lse: (1.05 * out, lse),
        "heads rotated": lambda out, lse: (out.roll(1, 1), lse.roll(1, 1)),
        "LSE in the other base": lambda out, lse: (out, lse * math.log(2.0)),
    }
)
NAMES = (*WRONG_ATTENTION, *WRONG_RESULT)


@dataclass(frozen=True)
class Answer:
    """What a kernel returned: a batch of one."""

    out: Tensor  # [1, tokens, heads, 512] in the output's dtype
    lse: Tensor  # [1, tokens, heads] float32


@dataclass(frozen=True)
class Answers:
    """A problem, its inputs, and the answers of a right kernel and of each wrong one, by name."""

    problem: Problem
    inputs: Inputs
    algorithm: Algorithm
    by_name: dict[str, Answer]


def answers(dtype: str, seq_len: int, algorithm: Algorithm, data: Data | None = None) -> Answers:
    """Return all answers to one problem, those of kernels that otherwise follow ``algorithm``."""
    right = attention(dtype, seq_len, algorithm, data or Data())
    problem = Problem(Dims(HEADS, TOKENS), dtype, PAGE, (seq_len,), right.scale)
    result = right.result()
    found = {RIGHT: result}
    found |= {name: fault(right).result() for name, fault in WRONG_ATTENTION.items()}
    found |= {name: fault(*result) for name, fault in WRONG_RESULT.items()}
    kind: torch.dtype = getattr(torch, problem.output_dtype)
    by_name = {
        name: Answer(out[None].to(kind), lse[None].float()) for name, (out, lse) in found.items()
    }
    return Answers(problem, _inputs(right), algorithm, by_name)


def _inputs(a: Attention) -> Inputs:
    num_pages = -(-a.seq_len // PAGE)
    pool = a.keys[: num_pages * PAGE].view(num_pages, PAGE, -1)
    return Inputs(
        query=a.query[None].to(a.dtype),
        kv_cache=pool.to(a.dtype),
        block_tables=torch.arange(num_pages, dtype=torch.int32)[None],
        seq_lens=torch.tensor([a.seq_len], dtype=torch.int32),
        causal_seqs=None,
    )
