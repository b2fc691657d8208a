"""Relations about how the keys of a request are divided: among splits and among ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from conformance.kernel import Algorithm, Output
from conformance.properties import Finding
from conformance.relations.question import Call, First, Run, equal, is_right, near
from conformance.tolerance import LN_2, bounds
from reference.dcp import shard
from reference.decode import Decoded, decode
from reference.inputs import Inputs
from reference.problem import Dcp, Problem
from reference.split_kv import merge


def any_number_of_splits_is_right(first: First, run: Run) -> Finding | None:
    """Forced to another number of splits, even far beyond the tiles, the result is right.

    Kills faults of the combine and of empty splits: their weight, their unwritten output, a limit
    on how many one warp can merge, a scale that is applied in one of the paths only (K3, K4, N8,
    N11, S8, S11, D5).
    """
    choices = [n for n in (1, 2, 3, 5, 17, 31, 32, 33, 64, 255, 256) if n != first.num_splits]
    splits = first.choice().choice(choices)
    call = replace(first.call, options=replace(first.call.options, num_splits=splits))
    return is_right(first, call, run(call), splits)


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
    return is_the_whole(merge(parts, problem.lse_base), shards, exact, first.kernel.algorithm)


def is_the_whole(
    merged: Decoded,
    shards: Sequence[tuple[Problem, Inputs]],
    exact: Sequence[Decoded],
    algorithm: Algorithm,
) -> Finding:
    """Whether ``merged`` ranks give the whole result, each rank within the bounds of its share.

    ``exact`` are the ranks' exact results. A merge is a weighted mean: `out` errs by no more than
    the worst rank does, and by the error of the weights, which is that of four LSEs in nats.
    """
    lse_base = shards[0][0].lse_base
    limits = [bounds(*one, algorithm) for one in shards]
    lse = torch.stack([one.lse for one in limits]).amax(0)
    largest = torch.stack([one.out.abs() for one in exact]).amax(0)
    nats = LN_2 * lse if lse_base == 2 else lse
    out = torch.stack([one.out for one in limits]).amax(0)
    out = (out + 4.0 * nats[..., None] * largest) * (1.0 + 1e-3)
    return near(merge(exact, lse_base), Output(merged.out, merged.lse), out, lse + 1e-9)


def any_number_of_sms_will_do(first: First, run: Run) -> Finding | None:
    """On another number of SMs, with the same number of splits, the result is equal.

    Kills work that is dealt out wrongly or not at all: a persistent loop that starts, steps or ends
    in the wrong place, and what one piece of work leaves to the next on its SM (S5, S7, K1, W6).
    Says nothing of a GPU, which has the SMs that it has, nor of a kernel whose splits nobody can
    choose.
    """
    options = first.pinned
    if options.engine != "simulator":
        return None
    sms = first.choice().choice([n for n in (1, 2, 3, 5, 8, 148) if n != options.num_sms])
    got = run(replace(first.call, options=replace(options, num_sms=sms)))
    if got.num_splits not in (None, first.num_splits):
        return None
    return equal(first.output, got)
