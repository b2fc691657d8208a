"""Relations about the paged cache: where keys lie, and what lies beside them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from conformance.properties import Finding
from conformance.relations.question import Call, First, Run, equal, is_right
from reference.inputs import make_inputs, page_inputs
from reference.masks import visible_keys
from reference.problem import PAGE_SIZES, Problem

FAR_POOL_ELEMENTS = 2**31 + 2**24  # past every product that wraps in 32 bits, signed

MOST_CHUNKS = 2  # runs that `the_right_keys_are_seen` makes


def pages_may_lie_anywhere(first: First, run: Run) -> Finding | None:
    """With the pool's pages in reverse order, and the table telling so, the result is equal.

    Kills a table that is ignored, read at the wrong row or bounded in the wrong unit, and what
    reads a page nobody named (P1, P2, P7, P8, D2).
    """
    inputs = first.call.inputs
    last = inputs.kv_cache.shape[0] - 1
    inside = (inputs.block_tables >= 0) & (inputs.block_tables <= last)
    tables = torch.where(inside, last - inputs.block_tables, inputs.block_tables)
    moved = replace(inputs, kv_cache=inputs.kv_cache.flip(0), block_tables=tables)
    return equal(first.output, run(replace(first.call, inputs=moved)))


def unseen_slots_do_not_matter(first: First, run: Run) -> Finding | None:
    """With other contents in every slot that nobody sees, NaN or numbers, the result is equal.

    Kills values that are multiplied by a weight of zero, and masks that let a little through (P1,
    M2, D2).
    """
    if not first.kernel.limits.poison:
        return None
    recipe = replace(first.recipe, poison=not first.recipe.poison)
    inputs = make_inputs(first.call.problem, recipe, first.seed)
    return equal(first.output, run(replace(first.call, inputs=inputs)))


def pools_may_be_large(first: First, run: Run) -> Finding | None:
    """With every page past 2^31 elements of the pool, the result is equal.

    Kills offsets computed in 32 bits (P3, P4, P5). The pool is a mapping without memory: only the
    pages in use are ever touched. Says nothing of a GPU, which would need the memory.
    """
    inputs = first.call.inputs
    cache, page = inputs.kv_cache, inputs.kv_cache[0].numel()
    if first.call.options.engine != "simulator" or not cache.is_contiguous():
        return None
    ahead = -(-FAR_POOL_ELEMENTS // page)
    pool = torch.empty((ahead + len(cache), *cache.shape[1:]), dtype=cache.dtype)
    pool[ahead:] = cache
    inside = (inputs.block_tables >= 0) & (inputs.block_tables < len(cache))
    outside = torch.where(inputs.block_tables == len(cache), len(pool), inputs.block_tables)
    tables = torch.where(inside, inputs.block_tables + ahead, outside)
    moved = replace(inputs, kv_cache=pool, block_tables=tables.to(torch.int32))
    return equal(first.output, run(replace(first.call, inputs=moved)))


def any_page_size_is_right(first: First, run: Run) -> Finding | None:
    """The same keys in pages of another size give a right result.

    Kills one unit taken for the other, pages for keys, and tables or bounds that fit one size only
    (P1, P10, M4). The sums may be made in another order, since a page's keys share a load; so both
    oracles judge.
    """
    problem = first.call.problem
    others = [replace(problem, page_size=size) for size in PAGE_SIZES if size != problem.page_size]
    taken = [other for other in others if first.kernel.supports(other).ok]
    if not taken:
        return None
    other = first.choice().choice(taken)
    call = Call(other, make_inputs(other, first.recipe, first.seed), first.call.options)
    return is_right(first, call, run(call), None)


def the_right_keys_are_seen(first: First, run: Run) -> Finding | None:
    """Each token of each head sees its keys and no other: they are read back from the result.

    With queries of zero every visible key has the same weight, and key k's value is one in column k
    alone; so out times the number of visible keys is one for a key that is seen, two for one that
    is seen twice. Nothing is tolerated, and the finding names the keys. Kills every wrong mask,
    length, page and split, whatever the scores (M1, M2, M4, M5, M8, P2, P8, P11, P14, D3). Of more
    keys than two runs can tell apart, two stretches are looked at, the last one among them.
    """
    problem, choice = first.call.problem, first.choice()
    seen = [visible_keys(problem, request) for request in range(problem.batch_size)]
    blind = any(not bool(rows.any(dim=1).all()) for rows in seen)
    if not seen or (blind and not first.kernel.limits.empty_rows):
        return None
    width = problem.dims.kv_lora_rank
    chunks = range(-(-max(1, *problem.seq_lens) // width))
    looked_at = {chunks[-1], *choice.sample(chunks, min(len(chunks), MOST_CHUNKS) - 1)}
    for chunk in sorted(looked_at):
        call = _numbered(first, chunk * width)
        complaint = _unlike(problem, run(call).out, seen, chunk * width)
        if complaint:
            return Finding(complaint)
    return Finding()


def _numbered(first: First, start: int) -> Call:
    """The call with queries of zero, and one-hot values for the keys from ``start`` on."""
    problem = replace(first.call.problem, output_scale=1.0)
    dims = problem.dims
    query = torch.zeros(problem.batch_size, dims.seq_len_q, dims.num_heads, dims.qk_head_dim)
    keys = []
    for length in problem.seq_lens:
        rows = torch.zeros(length, dims.qk_head_dim)
        number = torch.arange(max(0, min(length - start, dims.kv_lora_rank)))
        rows[start + number, number] = 1.0
        keys.append(rows)
    recipe = replace(first.recipe, values="normal")  # equal pages stay pages of their own
    inputs = page_inputs(problem, recipe, first.seed, query=query, keys=keys)
    return Call(problem, inputs, first.call.options)


def _unlike(problem: Problem, out: Tensor, seen: list[Tensor], start: int) -> str:
    """Which keys are seen that must not be, or otherwise; empty where all is right."""
    for request, rows in enumerate(seen):
        wanted = rows[:, start : start + problem.dims.kv_lora_rank].int()  # [seq_len_q, keys]
        scaled = out[request].double() * rows.sum(dim=1)[:, None, None]
        counts = scaled.nan_to_num(nan=-1.0).round().int()[..., : wanted.shape[1]]
        wrong = (counts != wanted[:, None, :]).nonzero().tolist()
        if wrong:
            token, head, key = wrong[0]
            times = int(counts[token, head, key])
            what = f"counts key {start + key} {times} times, not {int(wanted[token, key])}"
            if not 0 <= times <= rows.shape[1]:
                what = "adds what is none of its keys' values"
            return (
                f"request {request}, token {token}, head {head} {what}; "
                f"{len(wrong)} wrong counts in all"
            )
    return ""
