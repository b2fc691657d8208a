"""Relations about the order and company of requests, heads and tokens."""

from __future__ import annotations

from dataclasses import replace

import torch

from conformance.kernel import Output
from conformance.properties import Finding
from conformance.relations.question import Call, First, Run, equal, inputs_of, near, of_requests
from conformance.tolerance import bounds
from reference.decode import Decoded
from reference.problem import Dcp

MOST_TOKENS = 8  # calls that `tokens_are_single_calls` makes


def batch_may_be_reversed(first: First, run: Run) -> Finding | None:
    """With the requests in reverse order, each has an equal result.

    Kills what one request leaves to the next: indices of the wrong request, barriers and buffers
    that are not reset between pieces of work (S5, S7, S9, K1, P7).
    """
    problem, inputs = first.call.problem, first.call.inputs
    if problem.batch_size < 2:
        return None
    order = list(range(problem.batch_size))[::-1]
    reverse = Call(of_requests(problem, order), inputs_of(inputs, order), first.call.options)
    got = run(reverse)
    return equal(first.output, Output(got.out[order], got.lse[order]))


def a_request_is_as_good_alone(first: First, run: Run) -> Finding | None:
    """A request alone, with the same number of splits, has a result equal to that in its batch.

    Kills dependence on batch mates: lengths, offsets and partial results of another request (M6,
    N16, W1, W6, K6). Says nothing where the kernel cannot be told a number of splits.
    """
    problem, inputs = first.call.problem, first.call.inputs
    if problem.batch_size == 0:
        return None
    at = first.choice().randrange(problem.batch_size)
    alone = of_requests(problem, [at])
    alone = replace(alone, max_seq_len=problem.planning_max_seq_len)
    got = run(Call(alone, inputs_of(inputs, [at]), first.pinned))
    if got.num_splits not in (None, first.num_splits):
        return None
    return equal(Output(first.output.out[[at]], first.output.lse[[at]]), got)


def a_request_may_come_twice(first: First, run: Run) -> Finding | None:
    """A request that stands first and last in a batch has equal results in both places.

    Kills schedules that treat pieces of work unlike: the last wave, a second piece on the same
    cluster (S5, S7, K1, L1).
    """
    problem, inputs = first.call.problem, first.call.inputs
    if problem.batch_size == 0:
        return None
    order = [*range(problem.batch_size), 0]
    got = run(Call(of_requests(problem, order), inputs_of(inputs, order), first.call.options))
    front, back = (Output(got.out[[at]], got.lse[[at]]) for at in (0, -1))
    return equal(front, back)


def heads_may_be_reversed(first: First, run: Run) -> Finding | None:
    """With the query's heads in reverse order, each has an equal result.

    Kills rows that are mapped to the wrong head, padding rows that leak into real ones, and maxima
    exchanged between the wrong rows (W1, W6, M6, D1).
    """
    inputs = replace(first.call.inputs, query=first.call.inputs.query.flip(2))
    got = run(replace(first.call, inputs=inputs))
    return equal(first.output, Output(got.out.flip(2), got.lse.flip(2)))


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
        finding = near(
            Decoded(first.output.out[:, at].double(), first.output.lse[:, at].double()),
            got,
            own.out + limit.out[:, at],
            own.lse + limit.lse[:, at],
        )
        if not finding.holds:
            return replace(finding, reason=f"token {token}: {finding.reason}")
    return Finding()
