"""Relations that only a GPU can show: graphs, streams, and many repetitions.

They need the engine cuda, and a kernel that can be prepared once and launched many times
(`conformance.kernel.Preparing`); elsewhere they are skipped and say why.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from conformance.kernel import Prepared, Preparing, UsageError
from conformance.properties import Finding
from conformance.relations.question import Call, First, Run, equal
from reference.problem import Dcp

REPETITIONS = 200
BUSY_CYCLES = 200_000_000  # that the default stream is kept busy: about a tenth of a second


def a_graph_replays_with_other_lengths(first: First, run: Run) -> Finding | None:
    """Captured in a CUDA graph and replayed with other lengths, the call gives the new result.

    Kills lengths, grids and tables that are read on the host and kept in the graph, work in the
    wrapper that cannot be captured, and loops that a stale length drives (K2, L8, S12, S14, W8).
    """
    problem = first.call.problem
    prepared = _prepared(first, first.call)
    if problem.dcp != Dcp() or not any(problem.seq_lens):
        return None
    shorter = tuple(max(1, keys // 2) if keys else 0 for keys in problem.seq_lens)
    fewer = min(keys for keys in shorter if keys)
    if not first.kernel.limits.empty_rows and fewer < problem.dims.seq_len_q:
        return None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prepared.launch()
    lengths = torch.tensor(shorter, dtype=torch.int32)
    prepared.inputs.seq_lens.copy_(lengths)
    graph.replay()
    other = replace(problem, seq_lens=shorter, max_seq_len=problem.planning_max_seq_len)
    inputs = replace(first.call.inputs, seq_lens=lengths)
    want = run(Call(other, inputs, first.pinned))
    return equal(want, prepared.output())


def any_stream_will_do(first: First, run: Run) -> Finding | None:
    """On a stream of its own, while the default stream is busy, the result is equal.

    Kills launches and copies on the default stream (L2, S12): they would come too late.
    """
    _needs_gpu(first)
    torch.cuda._sleep(BUSY_CYCLES)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        got = run(first.call)
    torch.cuda.synchronize()
    return equal(first.output, got)


def two_hundred_repetitions_are_equal(first: First, run: Run) -> Finding | None:
    """Launched again and again, back to back, the call gives the same bits each time.

    Kills races that show now and then, and what a launch leaves to the next one or takes from the
    one before while both run (S1, S3, S5, S7, S9, S11).
    """
    prepared = _prepared(first, first.call)
    for _ in range(REPETITIONS):
        prepared.launch()
        finding = equal(first.output, prepared.output())
        if not finding.holds:
            return finding
    return Finding()


def _needs_gpu(first: First) -> None:
    if first.call.options.engine != "cuda":
        raise UsageError(f"engine: {first.call.options.engine!r}: only a GPU can show this")


def _prepared(first: First, call: Call) -> Prepared:
    """The call, ready to be launched; UsageError without a GPU or without a way to prepare it."""
    _needs_gpu(first)
    if not isinstance(first.kernel, Preparing):
        raise UsageError(f"{first.kernel.name} cannot be prepared once and launched many times")
    return first.kernel.prepared(call.problem, call.inputs, first.pinned)
