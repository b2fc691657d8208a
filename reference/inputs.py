"""The tensors of a problem, from (problem, recipe, seed): identical bits wherever they are made.

- Each named tensor is drawn by itself (`reference.randomness`). So nothing depends on a generator's
  version, a device or a thread, and no tensor changes when another one changes its size. Normal
  keys of a request do not depend on the page size, the page order or the length of any other one; a
  longer request continues a shorter one. What the values are is `reference.values`.
- Numbers are made in float32 and rounded once, to nearest even, saturating at the largest finite
  value of the dtype.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from reference import masks, paging
from reference.problem import INT32_MAX, Problem, Recipe
from reference.randomness import random_bits, random_integers
from reference.values import VALUES

ROOM = 64  # elements between rows of a strided tensor: whole units of 16 bytes in each dtype
TILE_KEYS = 128  # kernels read the block table in whole tiles of so many keys
UNSEEN_LOW, UNSEEN_HIGH = 224, 448  # magnitude of unseen slots: the upper end of e4m3


@dataclass(frozen=True, eq=False)
class Inputs:
    """The tensors of one decode call, with the strides that the recipe's layout asks for."""

    query: Tensor  # [batch, seq_len_q, num_heads, qk_head_dim] problem.dtype
    kv_cache: Tensor  # [num_pages, (1,) page_size, qk_head_dim] problem.dtype
    block_tables: Tensor  # [batch, max_pages] int32
    seq_lens: Tensor  # [batch] int32
    causal_seqs: Tensor | None  # [batch] int32

    def to(self, device: str | torch.device) -> "Inputs":
        """The same inputs on another device."""
        return Inputs(
            query=self.query.to(device),
            kv_cache=self.kv_cache.to(device),
            block_tables=self.block_tables.to(device),
            seq_lens=self.seq_lens.to(device),
            causal_seqs=None if self.causal_seqs is None else self.causal_seqs.to(device),
        )


def make_inputs(problem: Problem, recipe: Recipe, seed: int) -> Inputs:
    """The inputs of a problem, on the CPU. Raises ValueError for an unknown recipe.values."""
    if recipe.values not in VALUES:
        raise ValueError(f"recipe.values must be one of {sorted(VALUES)}, got {recipe.values!r}")
    dims = problem.dims
    query = torch.empty(
        problem.batch_size, dims.seq_len_q, dims.num_heads, dims.qk_head_dim, dtype=torch.float32
    )
    keys = []
    for request in range(problem.batch_size):
        query[request], request_keys = VALUES[recipe.values](problem, recipe, seed, request)
        keys.append(request_keys)
    return page_inputs(problem, recipe, seed, query=query, keys=keys)


def page_inputs(
    problem: Problem,
    recipe: Recipe,
    seed: int,
    *,
    query: Tensor,  # [batch, seq_len_q, num_heads, qk_head_dim]
    keys: list[Tensor],  # of each request: [K_b, qk_head_dim]
) -> Inputs:
    """Inputs that hold the given query and keys, laid out in pages as the recipe says.

    Keys that no query token may see are not stored: their slots hold what every unseen slot holds.
    """
    page_size = problem.page_size
    needed = [paging.pages_needed(seq_len, page_size) for seq_len in problem.seq_lens]
    num_pages = max(1, sum(needed) + recipe.spare_pages)  # an empty tensor has no address
    order = paging.page_order(recipe.page_order, random_integers(seed, "page_order", (num_pages,)))
    ends = itertools.accumulate(needed)
    owned = [order[end - count : end] for count, end in zip(needed, ends, strict=True)]
    spare = order[sum(needed) :]
    if recipe.values == "shared_pages":
        _share(problem, keys, owned)

    pool = _unseen(problem, recipe, seed, num_pages * page_size)
    for request, seq_len in enumerate(problem.seq_lens):
        seen = masks.visible_keys(problem, request).any(dim=0)
        slots = paging.slots(owned[request], page_size, seq_len)
        pool[slots[seen]] = keys[request][seen].float()

    causal_seqs = problem.dcp.causal_seqs
    cache_shape = (
        (num_pages, 1, page_size, -1) if recipe.layout == "4-D" else (num_pages, page_size, -1)
    )
    layout = recipe.layout
    return Inputs(
        query=_laid_out(to_dtype(query.float(), problem.dtype), layout, gap_dim=2),
        kv_cache=_laid_out(to_dtype(pool, problem.dtype).view(cache_shape), layout, gap_dim=1),
        block_tables=_laid_out(
            _block_tables(problem, recipe, seed, owned=owned, spare=spare), layout
        ),
        seq_lens=torch.tensor(problem.seq_lens, dtype=torch.int32),
        causal_seqs=None if causal_seqs is None else torch.tensor(causal_seqs, dtype=torch.int32),
    )


def _share(problem: Problem, keys: list[Tensor], owned: list[Tensor]) -> None:
    """Make requests use one pool page for all their whole pages that hold the same visible keys."""
    page_of: dict[bytes, Tensor] = {}
    for request, pages in enumerate(owned):
        seen = masks.visible_keys(problem, request).any(dim=0)
        for logical in range(len(seen) // problem.page_size):
            rows = slice(logical * problem.page_size, (logical + 1) * problem.page_size)
            if bool(seen[rows].all()):
                content = keys[request][rows].float().numpy().tobytes()
                pages[logical] = page_of.setdefault(content, pages[logical].clone())


def _laid_out(tensor: Tensor, layout: str, gap_dim: int | None = None) -> Tensor:
    """The same elements with the strides of ``layout``: between rows and, gapped, in gap_dim too.

    What lies between is the dtype's largest value, or one that no pool has as a page.
    """
    if layout not in ("strided", "gapped"):
        return tensor
    shape = list(tensor.shape)
    shape[-1] += ROOM
    if layout == "gapped" and gap_dim is not None:
        shape[gap_dim] += 1
    kind = torch.iinfo if tensor.dtype == torch.int32 else torch.finfo
    wide = torch.full(shape, kind(tensor.dtype).max, dtype=torch.float64).to(tensor.dtype)
    view = wide[tuple(slice(size) for size in tensor.shape)]
    view.copy_(tensor)
    return view


def to_dtype(values: Tensor, dtype: str) -> Tensor:
    """Values rounded to nearest even, the finite ones saturating at the largest finite value.

    NaN stays NaN; an infinity stays one, or becomes NaN in e4m3, which has none.
    """
    kind: torch.dtype = getattr(torch, dtype)
    limit = torch.finfo(kind).max
    infinite = torch.full_like(values, torch.nan) if dtype == "float8_e4m3fn" else values
    return torch.where(values.isinf(), infinite, values.clamp(-limit, limit)).to(kind)


def _unseen(problem: Problem, recipe: Recipe, seed: int, rows: int) -> Tensor:
    """What slots hold that no query token may see: large values of either sign, or poison.

    Poison is NaN, and in a third of the rows each infinity, which e4m3 has not: there all is NaN.
    """
    shape = (rows, problem.dims.qk_head_dim)
    if recipe.poison:
        kinds = torch.tensor([torch.nan, torch.inf, -torch.inf])
        return kinds[random_integers(seed, "poison", (rows, 1)) % 3].expand(shape).clone()
    bits = random_bits(seed, "unseen", shape, torch.uint16).int()
    sign = 1 - 2 * (bits & 1)
    magnitude = UNSEEN_LOW + (bits >> 1) % (UNSEEN_HIGH - UNSEEN_LOW + 1)
    return (sign * magnitude).float()


def _block_tables(
    problem: Problem, recipe: Recipe, seed: int, *, owned: list[Tensor], spare: Tensor
) -> Tensor:
    """Each request's pages, then what recipe.table_tail says; at least one column."""
    longest = max((1, *problem.seq_lens))
    if recipe.table_tail != "minimal":
        longest = paging.pages_needed(longest, TILE_KEYS) * TILE_KEYS
    width = paging.pages_needed(longest, problem.page_size)
    num_pages = len(spare) + sum(len(pages) for pages in owned)
    if recipe.table_tail == "wild":
        tail = torch.tensor([-1, num_pages, INT32_MAX, -INT32_MAX - 1])
    else:
        tail = spare if len(spare) > 0 else torch.cat(owned)
    choice = random_integers(seed, "table_tail", (problem.batch_size, width)) % len(tail)
    tables = tail[choice]
    for request, pages in enumerate(owned):
        tables[request, : len(pages)] = pages
    return tables.to(torch.int32)
