"""Relations about the host's part: the plan, the buffers, and calls that contradict themselves."""

from __future__ import annotations

import math
from dataclasses import replace

from conformance.kernel import Output, Wrapped
from conformance.properties import Finding
from conformance.relations.question import Call, First, Run, equal, inputs_of, of_requests
from reference.problem import Dcp, Mask
from simulator.errors import SimulationError

MANY = 2**17  # requests, on as many devices: byte counts then exceed 32 bits
LONG, SMS = 4096, 148  # keys of a request that every plan splits on so many SMs


def outputs_may_be_left_to_the_kernel(first: First, run: Run) -> Finding | None:
    """Without buffers for its results, and without being asked for the LSE, `out` is equal.

    Kills results of another shape or dtype where the wrapper makes them, and what hangs on a flag
    that only says what is returned (A1, A2, A7). Says nothing of a kernel that is not `Wrapped`.
    """
    if not isinstance(first.kernel, Wrapped):
        return None
    call = first.call
    got = first.kernel.run_without_buffers(call.problem, call.inputs, call.options)
    if (got.out.dtype, got.lse.dtype) != (first.output.out.dtype, first.output.lse.dtype):
        return Finding(f"dtypes {got.out.dtype} and {got.lse.dtype} of what the kernel makes")
    return equal(first.output, got)


def contradictions_are_refused(first: First, run: Run) -> Finding | None:
    """A call whose arguments contradict each other is refused before it is launched.

    Kills checks that are missing: sizes of buffers, ranks, lengths (W3, A3, D7). An error of the
    simulated program is no refusal. Says nothing of a kernel that is not `Wrapped`.
    """
    if not isinstance(first.kernel, Wrapped):
        return None
    call, options = first.call, replace(first.call.options, num_splits=2)  # needs a workspace
    for name in first.kernel.contradictions:
        try:
            first.kernel.run_contradictory(call.problem, call.inputs, options, name)
        except SimulationError as error:
            return Finding(f"{name} is not refused: {type(error).__name__}: {error.message}")
        except (TypeError, ValueError):
            continue
        return Finding(f"{name} is not refused")
    return Finding()


def an_empty_batch_is_empty(first: First, run: Run) -> Finding | None:
    """A call without requests returns empty results and launches nothing.

    Kills grids and tensor maps of no extent (L7).
    """
    problem = of_requests(first.call.problem, [])
    if not first.kernel.supports(problem).ok:
        return None
    got = run(Call(problem, inputs_of(first.call.inputs, []), first.call.options))
    if got.launches:
        return Finding(f"launches {', '.join(launch.name for launch in got.launches)}")
    return equal(Output(first.output.out[:0], first.output.lse[:0]), got)


def the_plan_fits(first: First, run: Run) -> Finding | None:
    """Keys are split only as far as there are SMs and tiles; the workspace grows with the batch.

    Where several splits were planned, one split fewer would leave SMs idle: the CTAs of the first
    launch are no more than the SMs. In FP8 no split is without a tile. And 2^17 requests on as many
    devices have the splits of one and as many times its bytes. Kills plans that count SMs for
    clusters, tokens or requests wrongly, and sizes computed in 32 bits (K7, K6, W4).
    Says nothing of a number of splits that was given, nor of a kernel with another rule.
    """
    call, algorithm = first.call, first.kernel.algorithm
    problem, options = call.problem, call.options
    if algorithm.split_rule != "normalised" or options.num_splits is not None:
        return None
    plan = first.kernel.plan(problem, options.num_sms)
    if plan.num_splits > 1 and first.output.launches and problem.is_var_seq:
        ctas = math.prod(first.output.launches[0].grid)
        if ctas > options.num_sms:
            return Finding(f"{plan.num_splits} splits: {ctas} CTAs for {options.num_sms} SMs")
    reach = problem.planning_max_seq_len
    if problem.mask.window_left >= 0:
        reach = min(reach, problem.mask.window_left + problem.dims.seq_len_q)
    tiles = -(-reach // algorithm.tile_n)
    each = -(-tiles // plan.num_splits)
    if problem.dtype == "float8_e4m3fn" and (plan.num_splits - 1) * each >= tiles:
        return Finding(f"{plan.num_splits} splits of {each} tiles for {tiles} tiles")
    return _workspace_grows(first)


def _workspace_grows(first: First) -> Finding:
    """Whether many requests on many SMs need as many times the bytes as one does on a device."""
    one = replace(
        first.call.problem, seq_lens=(LONG,), max_seq_len=None, dcp=Dcp(), mask=Mask(causal=True)
    )
    small = first.kernel.plan(one, SMS)
    large = first.kernel.plan(replace(one, seq_lens=one.seq_lens * MANY), SMS * MANY)
    if large.num_splits != small.num_splits:
        return Finding(f"{MANY} requests on as many devices: {large.num_splits} splits")
    if small.num_splits > 1 and large.workspace_bytes != MANY * small.workspace_bytes:
        return Finding(
            f"{large.workspace_bytes} bytes of workspace for {MANY} requests, "
            f"and {small.workspace_bytes} for one"
        )
    return Finding()
