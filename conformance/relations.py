"""Properties that compare several runs: the same question asked in two ways has one answer.

A relation needs no oracle, or needs it for a bound only. So it sees what an oracle shares with a
kernel, and it says bit for bit where an oracle says within a bound. Each is a function from a call,
its output and a way to run other calls to a finding, or to None where it says nothing about the
call. Its docstring names the faults of docs/faults.md that it kills.

"Equal" is bit for bit wherever the kernel has the same sums to make in the same order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from conformance.compare import compare
from conformance.kernel import Kernel, Output, RunOptions
from conformance.properties import (
    PROPERTY_NAMES,
    Finding,
    Observation,
    matches_emulation,
    matches_float64,
)
from conformance.tolerance import LN_2, bounds
from reference.dcp import decode_shards, shard
from reference.decode import Decoded, decode
from reference.inputs import Inputs, make_inputs
from reference.problem import Dcp, Problem, Recipe
from reference.split_kv import merge

FAR_POOL_ELEMENTS = 2**31 + 2**24  # past every product that wraps in 32 bits, signed
MOST_TOKENS = 8  # calls that `tokens_are_single_calls` makes


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a kernel: what is asked, with which tensors, and how it is run."""

    problem: Problem
    inputs: Inputs
    options: RunOptions


@dataclass(frozen=True, eq=False)
class First:
    """The call that a relation starts from, what it returned, and what else decides it."""

    kernel: Kernel
    call: Call
    output: Output
    num_splits: int
    recipe: Recipe
    seed: int

    @property
    def pinned(self) -> RunOptions:
        """Options that keep the number of splits, whatever the batch."""
        return replace(self.call.options, num_splits=self.num_splits)

    def choice(self) -> random.Random:
        """Random choices that depend on the case alone."""
        return random.Random(self.seed)


Run = Callable[[Call], Output]
Relation = Callable[[First, Run], Finding | None]


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
    return _equal(first.output, run(replace(first.call, inputs=moved)))


def unseen_slots_do_not_matter(first: First, run: Run) -> Finding | None:
    """With other contents in every slot that nobody sees, NaN or numbers, the result is equal.

    Kills values that are multiplied by a weight of zero, and masks that let a little through (P1,
    M2, D2).
    """
    if not first.kernel.limits.poison:
        return None
    recipe = replace(first.recipe, poison=not first.recipe.poison)
    inputs = make_inputs(first.call.problem, recipe, first.seed)
    return _equal(first.output, run(replace(first.call, inputs=inputs)))


def batch_may_be_reversed(first: First, run: Run) -> Finding | None:
    """With the requests in reverse order, each has an equal result.

    Kills what one request leaves to the next: indices of the wrong request, barriers and buffers
    that are not reset between pieces of work (S5, S7, S9, K1, P7).
    """
    problem, inputs = first.call.problem, first.call.inputs
    if problem.batch_size < 2:
        return None
    order = list(range(problem.batch_size))[::-1]
    reverse = Call(_requests(problem, order), _rows(inputs, order), first.call.options)
    got = run(reverse)
    return _equal(first.output, Output(got.out[order], got.lse[order]))


def a_request_is_as_good_alone(first: First, run: Run) -> Finding | None:
    """A request alone, with the same number of splits, has a result equal to that in its batch.

    Kills dependence on batch mates: lengths, offsets and partial results of another request (M6,
    N16, W1, W6, K6). Says nothing where the kernel cannot be told a number of splits.
    """
    problem, inputs = first.call.problem, first.call.inputs
    if problem.batch_size == 0:
        return None
    at = first.choice().randrange(problem.batch_size)
    alone = _requests(problem, [at])
    alone = replace(alone, max_seq_len=problem.planning_max_seq_len)
    got = run(Call(alone, _rows(inputs, [at]), first.pinned))
    if got.num_splits not in (None, first.num_splits):
        return None
    return _equal(Output(first.output.out[[at]], first.output.lse[[at]]), got)


def a_request_may_come_twice(first: First, run: Run) -> Finding | None:
    """A request that stands first and last in a batch has equal results in both places.

    Kills schedules that treat pieces of work unlike: the last wave, a second piece on the same
    cluster (S5, S7, K1, L1).
    """
    problem, inputs = first.call.problem, first.call.inputs
    if problem.batch_size == 0:
        return None
    order = [*range(problem.batch_size), 0]
    got = run(Call(_requests(problem, order), _rows(inputs, order), first.call.options))
    front, back = (Output(got.out[[at]], got.lse[[at]]) for at in (0, -1))
    return _equal(front, back)


def heads_may_be_reversed(first: First, run: Run) -> Finding | None:
    """With the query's heads in reverse order, each has an equal result.

    Kills rows that are mapped to the wrong head, padding rows that leak into real ones, and maxima
    exchanged between the wrong rows (W1, W6, M6, D1).
    """
    inputs = replace(first.call.inputs, query=first.call.inputs.query.flip(2))
    got = run(replace(first.call, inputs=inputs))
    return _equal(first.output, Output(got.out.flip(2), got.lse.flip(2)))


def any_number_of_splits_is_right(first: First, run: Run) -> Finding | None:
    """Forced to another number of splits, even far beyond the tiles, the result is right.

    Kills faults of the combine and of empty splits: their weight, their unwritten output, a limit
    on how many one warp can merge, a scale that is applied in one of the paths only (K3, K4, N8,
    N11, S8, S11, D5).
    """
    choices = [n for n in (1, 2, 3, 5, 17, 31, 32, 33, 64, 255, 256) if n != first.num_splits]
    splits = first.choice().choice(choices)
    call = replace(first.call, options=replace(first.call.options, num_splits=splits))
    return _is_right(first, call, run(call), splits)


def tokens_are_single_calls(first: First, run: Run) -> Finding | None:
    """A causal call of S tokens is S calls of one token, each with the keys that it sees.

    Kills masks that are right for one token only, metadata made for one token, and rows folded or
    packed in the wrong order (M1, M6, M8, K6, A4).
    """
    problem, inputs = first.call.problem, first.call.inputs
    tokens = problem.dims.seq_len_q
    whole = problem.dcp == Dcp() and problem.mask.causal
    if not whole or not 1 < tokens <= MOST_TOKENS or min(problem.seq_lens, default=0) < tokens:
        return None
    limit = bounds(problem, inputs, first.kernel.algorithm)
    for token in range(tokens):
        lengths = tuple(keys - tokens + 1 + token for keys in problem.seq_lens)
        dims = replace(problem.dims, seq_len_q=1)
        single = replace(problem, dims=dims, seq_lens=lengths)
        if not first.kernel.supports(single).ok:
            return None
        alone = replace(
            inputs,
            query=inputs.query[:, token : token + 1],
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
        )
        got = run(Call(single, alone, first.call.options))
        at = slice(token, token + 1)
        own = bounds(single, alone, first.kernel.algorithm)
        finding = _near(
            Decoded(first.output.out[:, at].double(), first.output.lse[:, at].double()),
            got,
            own.out + limit.out[:, at],
            own.lse + limit.lse[:, at],
        )
        if not finding.holds:
            return replace(finding, reason=f"token {token}: {finding.reason}")
    return Finding()


def ranks_merge_to_the_whole(first: First, run: Run) -> Finding | None:
    """The context dealt to 2, 3 or 5 ranks, called one by one and merged, gives the whole result.

    Kills local positions taken for global ones, bounds rounded the wrong way, and empty ranks that
    are not neutral (D1, D2, D3, D5, D7, N3, N8, N13).
    """
    problem = first.call.problem
    if problem.dcp != Dcp() or problem.batch_size == 0:
        return None
    choice = first.choice()
    world, interleave = choice.choice((2, 3, 5)), choice.choice((1, 1, 16))
    loose = replace(problem, max_seq_len=None)
    shards = shard(
        loose, first.call.inputs, first.recipe, first.seed, world=world,
        interleave_size=interleave,
    )  # fmt: skip
    if not all(first.kernel.supports(share).ok for share, _ in shards):
        return None
    exact = [decode(*one) for one in shards]
    if not first.kernel.limits.empty_rows and any(bool(one.lse.isinf().any()) for one in exact):
        return None
    outputs = [run(Call(share, inputs, first.call.options)) for share, inputs in shards]
    parts = [Decoded(one.out.double(), one.lse.double()) for one in outputs]
    merged = merge(parts, problem.lse_base)
    whole = decode_shards(shards)
    limits = [bounds(*one, first.kernel.algorithm) for one in shards]
    lse = torch.stack([one.lse for one in limits]).amax(0)
    largest = torch.stack([one.out.abs() for one in exact]).amax(0)
    nats = LN_2 * lse if problem.lse_base == 2 else lse
    out = torch.stack([one.out for one in limits]).amax(0)
    out = (out + 4.0 * nats[..., None] * largest) * (1.0 + 1e-3)
    return _near(whole, Output(merged.out, merged.lse), out, lse + 1e-9)


def output_scale_is_a_factor(first: First, run: Run) -> Finding | None:
    """An output_scale an eighth as large gives an eighth of out, bit for bit, and the same LSE.

    Kills a scale that is applied twice, not at all, in one path only, or to the LSE (N9, N11, A7).
    """
    problem = replace(first.call.problem, output_scale=first.call.problem.output_scale / 8.0)
    got = run(replace(first.call, problem=problem))
    small = first.output.out.abs() < 16.0 * torch.finfo(first.output.out.dtype).smallest_normal
    small |= ~first.output.out.isfinite()
    back = torch.where(small, first.output.out, 8.0 * got.out)
    return _equal(first.output, Output(back, got.lse))


def max_seq_len_is_a_hint(first: First, run: Run) -> Finding | None:
    """With a larger max_seq_len and the same number of splits the result is equal.

    Kills a length taken from the hint: in the tail mask, in the range of a split (N17). Says
    nothing where the kernel cannot be told a number of splits.
    """
    longer = first.call.problem.planning_max_seq_len + 1000
    problem = replace(first.call.problem, max_seq_len=longer)
    got = run(Call(problem, first.call.inputs, first.pinned))
    if got.num_splits not in (None, first.num_splits):
        return None
    return _equal(first.output, got)


def a_repetition_is_equal(first: First, run: Run) -> Finding | None:
    """The same call again, on the simulator under another schedule, gives an equal result.

    Kills races, and results that depend on what memory held before (S1, S3, S5, S7, S8, S11, W2,
    W9).
    """
    options = first.call.options
    if options.engine == "simulator":
        options = replace(options, policy="random", policy_seed=options.policy_seed + first.seed)
    return _equal(first.output, run(replace(first.call, options=options)))


def calls_leave_no_trace(first: First, run: Run) -> Finding | None:
    """After a call that differs in one parameter, which is right, the first one is equal again.

    Kills parameters that are compiled in or left out of a cache's key, and state kept between calls
    (C1, C2, C3, W2, P7).
    """
    problem = first.call.problem
    changes: list[Problem] = [
        replace(problem, softmax_scale=problem.softmax_scale * 0.5),
        replace(problem, output_scale=problem.output_scale * -1.5),
        replace(problem, mask=replace(problem.mask, causal=not problem.mask.causal)),
        replace(problem, is_var_seq=not problem.is_var_seq),
    ]
    taken = [other for other in changes if _within_limits(first.kernel, other)]
    if not taken:
        return None
    other = first.choice().choice(taken)
    inputs = make_inputs(other, first.recipe, first.seed)
    call = Call(other, inputs, first.call.options)
    changed = _is_right(first, call, run(call), None)
    return _equal(first.output, run(first.call)) if changed.holds else changed


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
    return _equal(first.output, run(replace(first.call, inputs=moved)))


RELATIONS: Mapping[str, Relation] = MappingProxyType(
    {
        relation.__name__: relation
        for relation in (
            pages_may_lie_anywhere, unseen_slots_do_not_matter, batch_may_be_reversed,
            a_request_is_as_good_alone, a_request_may_come_twice, heads_may_be_reversed,
            any_number_of_splits_is_right, tokens_are_single_calls, ranks_merge_to_the_whole,
            output_scale_is_a_factor, max_seq_len_is_a_hint, a_repetition_is_equal,
            calls_leave_no_trace, pools_may_be_large,
        )
    }
)  # fmt: skip
RELATION_NAMES = tuple(RELATIONS)
JUDGED = (*PROPERTY_NAMES, *RELATION_NAMES)  # all that a case can name


def _requests(problem: Problem, order: list[int]) -> Problem:
    """The problem with these of its requests, planned for the same length."""
    lengths = tuple(problem.seq_lens[at] for at in order)
    contexts = problem.dcp.causal_seqs
    if contexts is not None:
        contexts = tuple(contexts[at] for at in order)
    return replace(
        problem,
        seq_lens=lengths,
        dcp=replace(problem.dcp, causal_seqs=contexts),
        max_seq_len=problem.planning_max_seq_len,
    )


def _rows(inputs: Inputs, order: list[int]) -> Inputs:
    """The inputs of these requests, over the same pool."""
    contexts = inputs.causal_seqs
    return replace(
        inputs,
        query=inputs.query[order],
        block_tables=inputs.block_tables[order],
        seq_lens=inputs.seq_lens[order],
        causal_seqs=None if contexts is None else contexts[order],
    )


def _within_limits(kernel: Kernel, problem: Problem) -> bool:
    """Whether the kernel takes the problem, and it has no row that the kernel gets wrong."""
    if not kernel.supports(problem).ok:
        return False
    tokens = problem.dims.seq_len_q
    return kernel.limits.empty_rows or min(problem.seq_lens, default=tokens) >= tokens


def _equal(want: Output, got: Output) -> Finding:
    """Whether two outputs hold the same bits; a NaN equals itself."""
    for name, one, other in (("out", want.out, got.out), ("lse", want.lse, got.lse)):
        if one.shape != other.shape:
            return Finding(f"{name}: shape {tuple(other.shape)}, not {tuple(one.shape)}")
        unlike = (one != other) & ~(one.isnan() & other.isnan())
        if bool(unlike.any()):
            at = tuple(unlike.nonzero()[0].tolist())
            reason = (
                f"{name}{list(at)}: {float(other[at])!r} where the first call gave "
                f"{float(one[at])!r}; {int(unlike.sum())} of {one.numel()} elements differ"
            )
            return Finding(reason, element=f"{name}{list(at)}")
    return Finding()


def _near(want: Decoded, got: Output, out: Tensor, lse: Tensor) -> Finding:
    """Whether an output lies within the given bounds of ``want``."""
    found = {
        "out": compare(got.out, want.out, out, name="out"),
        "lse": compare(got.lse, want.lse, lse, name="lse"),
    }
    name, worst = max(found.items(), key=lambda part: part[1].ratio)
    return Finding(
        reason="; ".join(part.reason for part in found.values() if not part.passed),
        ratio=worst.ratio,
        element=None if worst.element is None else f"{name}{list(worst.element)}",
        bias=worst.bias,
    )


def _is_right(first: First, call: Call, output: Output, splits: int | None) -> Finding:
    """Whether both oracles accept what a call returned."""
    count = output.num_splits or splits or first.kernel.plan(
        call.problem, call.options.num_sms
    ).num_splits  # fmt: skip
    algorithm, inputs = first.kernel.algorithm, call.inputs
    run = Observation(call.problem, algorithm, inputs, inputs, output, count)
    exact = matches_float64(run)
    return matches_emulation(run) if exact.holds else exact
