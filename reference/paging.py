"""How a request's keys lie in the pool of pages: key -> logical page -> pool page.

Key c of a request lies in its logical page c // page_size, at row c % page_size. The block table
maps the logical page to a page of the pool.
"""

import torch
from torch import Tensor


def pages_needed(num_keys: int, page_size: int) -> int:
    """Pages that hold num_keys keys; 0 for none."""
    return -(-num_keys // page_size)


def gather(
    kv_cache: Tensor,  # [num_pages, (1,) page_size, qk_head_dim]
    table_row: Tensor,  # [max_pages] int32
    num_keys: int,
) -> Tensor:  # [num_keys, qk_head_dim] float64
    """A request's keys in their order, in float64, which holds every value of the cache exactly.

    Raises ValueError where the table is too short or names a page outside the pool.
    """
    num_pages, *_, page_size, qk_head_dim = kv_cache.shape
    needed = pages_needed(num_keys, page_size)
    if needed > len(table_row):
        raise ValueError(
            f"block_tables must have {needed} pages for {num_keys} keys, got {len(table_row)}"
        )
    keys = torch.empty(needed * page_size, qk_head_dim, dtype=torch.float64)
    for logical, page in enumerate(table_row[:needed].tolist()):
        if not 0 <= page < num_pages:
            raise ValueError(
                f"block_tables[..., {logical}] must be in [0, {num_pages - 1}], got {page}"
            )
        keys[logical * page_size : (logical + 1) * page_size] = kv_cache[page]
    return keys[:num_keys]


def slots(
    pages: Tensor,  # [ceil(num_keys / page_size)] pool pages of a request, in logical order
    page_size: int,
    num_keys: int,
) -> Tensor:  # [num_keys] int64
    """The row of the flattened pool, page * page_size + row, in which each of the keys lies."""
    key = torch.arange(num_keys)
    return pages.long()[key // page_size] * page_size + key % page_size


def page_order(
    name: str,
    priorities: Tensor,  # [num_pages] random numbers
) -> Tensor:  # [num_pages] int64
    """The pool's pages in the order in which they are handed out: each page once."""
    if name == "random":
        return torch.argsort(priorities, stable=True)
    identity = torch.arange(len(priorities))
    return identity.flip(0) if name == "reversed" else identity
