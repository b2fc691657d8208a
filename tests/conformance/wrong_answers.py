"""Answers of kernels with one fault each, otherwise exact: what a bound must refuse.

32 heads and four query tokens over normal data. Keys past the length are there too, of the same
kind as the others: what a kernel that reads them would find.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from conformance.compare import compare
from conformance.kernel import Algorithm
from conformance.tolerance import bounds
from reference.inputs import Inputs
from reference.problem import Dims, Problem

HEADS, TOKENS, LATENT, ROPE = 32, 4, 512, 64
TILE, PAGE = 128, 64
SCALE = 192**-0.5


@dataclass(frozen=True)
class Attention:
    """What a kernel computes, with the knobs that the faults turn."""

    query: Tensor  # [tokens, heads, 576] float64
    keys: Tensor  # [slots, 576] float64, more than seq_len
    values: Tensor  # [slots, 512] float64
    seq_len: int
    first_key: int = 0
    ends: tuple[int, ...] = ()  # of each token's visible keys
    scale: float = SCALE

    def result(self) -> tuple[Tensor, Tensor]:
        """Return out [tokens, heads, 512] and lse [tokens, heads] in base 2."""
        outs, lses = [], []
        for token, end in enumerate(self.ends):
            seen = slice(self.first_key, max(end, self.first_key + 1))
            scores = self.scale * (self.query[token] @ self.keys[seen].T)
            outs.append(torch.softmax(scores, -1) @ self.values[seen])
            lses.append(torch.logsumexp(scores, -1) / math.log(2.0))
        return torch.stack(outs), torch.stack(lses)


def attention(dtype: str, seq_len: int, seed: int) -> Attention:
    """Return a right kernel's attention over normal data in ``dtype``."""
    source = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)
    query = torch.randn(TOKENS, HEADS, LATENT + ROPE, generator=source).to(kind).double()
    keys = torch.randn(seq_len + 2 * TILE, LATENT + ROPE, generator=source).to(kind).double()
    ends = tuple(seq_len - TOKENS + 1 + token for token in range(TOKENS))
    return Attention(query, keys, keys[:, :LATENT], seq_len, ends=ends)


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


WRONG_ATTENTION: dict[str, Callable[[Attention], Attention]] = {
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
WRONG_RESULT: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "zeros": lambda out, lse: (torch.zeros_like(out), lse),
    "out times 1.05": lambda out, lse: (1.05 * out, lse),
    "heads rotated": lambda out, lse: (out.roll(1, 1), lse.roll(1, 1)),
    "LSE in the other base": lambda out, lse: (out, lse * math.log(2.0)),
}
NAMES = (*WRONG_ATTENTION, *WRONG_RESULT)


def killed(dtype: str, seq_len: int, algorithm: Algorithm, seed: int = 0) -> dict[str, str]:
    """Return, for each wrong answer, what refuses it: "out", "lse", both, or nothing.

    An answer is rounded to its dtype before it is judged, as any kernel rounds it.
    """
    right = attention(dtype, seq_len, seed)
    problem = Problem(Dims(HEADS, TOKENS), dtype, PAGE, (seq_len,), SCALE)
    limit = bounds(problem, _inputs(right, dtype), algorithm)
    exact = right.result()
    answers = {name: fault(right).result() for name, fault in WRONG_ATTENTION.items()}
    answers |= {name: fault(*exact) for name, fault in WRONG_RESULT.items()}
    answers["none"] = exact
    output_dtype = getattr(torch, problem.output_dtype)
    verdicts = {}
    for name, (out, lse) in answers.items():
        found = (
            compare(out[None].to(output_dtype), exact[0][None], limit.out),
            compare(lse[None].float(), exact[1][None], limit.lse, name="lse"),
        )
        wrong = [part for part, one in zip(("out", "lse"), found, strict=True) if not one.passed]
        verdicts[name] = " and ".join(wrong)
    return verdicts


def _inputs(a: Attention, dtype: str) -> Inputs:
    num_pages = -(-a.seq_len // PAGE)
    pool = a.keys[: num_pages * PAGE].view(num_pages, PAGE, -1)
    kind = getattr(torch, dtype)
    return Inputs(
        query=a.query[None].to(kind),
        kv_cache=pool.to(kind),
        block_tables=torch.arange(num_pages, dtype=torch.int32)[None],
        seq_lens=torch.tensor([a.seq_len], dtype=torch.int32),
        causal_seqs=None,
    )
