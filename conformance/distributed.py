"""Judges decode context parallelism with real ranks: one process each, over torch.distributed.

    torchrun --standalone --nproc-per-node 3 -m conformance.distributed --kernel optimized

Each rank makes the whole problem from its seed, takes its share of the keys, calls the kernel on
it, and merges with the others by collectives, as a serving engine does: gloo between processes on
CPUs, NCCL between GPUs. Rank 0 judges the merged result as `ranks_merge_to_the_whole` does, and
compares what the ranks hold, which must be equal bit by bit. A rank that fails says so to all, so
that nobody waits for it.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
import torch.distributed as dist

from conformance.judge import Subject, run_options
from conformance.kernel import UsageError
from conformance.profiles import PROFILES
from conformance.relations.division import is_the_whole
from conformance.session import device_text, make_subject
from conformance.strategies import covering_array
from reference.dcp import shard
from reference.decode import Decoded, decode, nats
from reference.inputs import Inputs, make_inputs
from reference.problem import Dcp, Problem, Recipe
from reports.records import Case, CaseResult, RecordWriter

TOOL = "distributed"
PROPERTY = "ranks_merge_to_the_whole"
INTERLEAVES = (1, 16, 64)  # keys dealt at a time, one after the other of the cases
PATIENCE = timedelta(minutes=10)  # how long a rank waits for the others


@dataclass(frozen=True, eq=False)
class _Part:
    """What this rank found for its share: a result, or why there is none."""

    result: Decoded | None
    error: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the cases that the command line asks for, as one rank of several; 0 if all right."""
    options = _options(arguments)
    torch.set_num_threads(1)
    try:
        subject = make_subject(options.kernel, options.engine)
        on_gpu = subject.engine.engine == "cuda"
        dist.init_process_group("nccl" if on_gpu else "gloo", timeout=PATIENCE)
        cases = _cases(subject, options.profile, options.cases)
    except (UsageError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if on_gpu:
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    try:
        return _judged(subject, cases, options.results)
    finally:
        dist.destroy_process_group()


def _judged(subject: Subject, cases: list[Case], results: str) -> int:
    """Run all cases; rank 0 records and prints. Every rank returns the same code."""
    records = None
    if dist.get_rank() == 0:
        records = RecordWriter(TOOL, results, device=device_text())
        print(f"{dist.get_world_size()} ranks over {dist.get_backend()}, {len(cases)} cases")
    bad = 0
    for number, case in enumerate(cases):
        result = _judge(subject, case, INTERLEAVES[number % len(INTERLEAVES)])
        bad += result.is_bad
        if records is not None:
            records.write(result)
            print(f"{number + 1}/{len(cases)} {result.verdict} {case.id} {result.reason or ''}")
    if records is not None:
        records.close()
        print(f"{bad} of {len(cases)} bad; records: {records.path}")
    return int(bad > 0 or not cases)


def _judge(subject: Subject, case: Case, interleave_size: int) -> CaseResult:
    """Return what all ranks make of one case, the same on every rank."""
    start = time.perf_counter()
    problem, recipe = Problem.from_json(case.problem), Recipe.from_json(case.recipe)
    world, rank = dist.get_world_size(), dist.get_rank()
    inputs = make_inputs(problem, recipe, case.seed)
    shards = shard(
        replace(problem, max_seq_len=None),
        inputs,
        recipe,
        case.seed,
        world=world,
        interleave_size=interleave_size,
    )
    part = _call(subject, case, *shards[rank])
    errors: list[str] = [""] * world
    dist.all_gather_object(errors, part.error)
    broken = [f"rank {at}: {error}" for at, error in enumerate(errors) if error]
    if part.result is None or broken:
        return CaseResult(
            case, "failed", reason="; ".join(broken), seconds=time.perf_counter() - start
        )
    merged = merge_across_ranks(part.result, problem.lse_base)
    verdict: list[CaseResult | None] = [None]
    unlike = _ranks_unlike(merged)
    if rank == 0:
        exact = [decode(*one) for one in shards]
        finding = is_the_whole(merged, shards, exact, subject.kernel.algorithm)
        reason = finding.reason or unlike
        verdict[0] = CaseResult(
            case,
            "failed" if reason else "passed",
            ratio=finding.ratio,
            element=finding.element,
            reason=reason or None,
            seconds=time.perf_counter() - start,
        )
    dist.broadcast_object_list(verdict)
    assert verdict[0] is not None
    return verdict[0]


def _call(subject: Subject, case: Case, problem: Problem, inputs: Inputs) -> _Part:
    try:
        output = subject.kernel.run(problem, inputs, run_options(case))
    except Exception as error:  # a wrong kernel may raise anything, and the others wait
        return _Part(None, f"{type(error).__name__}: {error}")
    return _Part(Decoded(output.out.double(), output.lse.double()))


def merge_across_ranks(part: Decoded, lse_base: int | str) -> Decoded:
    """The whole result, from this rank's part, by three all-reduces; equal on all ranks.

    ``out`` [batch, seq_len_q, num_heads, kv_lora_rank] and ``lse`` [batch, seq_len_q, num_heads],
    float64. A rank without a key for a row has lse = -inf there and weighs nothing.
    """
    on_wire = "cuda" if dist.get_backend() == "nccl" else "cpu"
    lse = (part.lse * nats(lse_base)).to(on_wire)
    row_max = lse.clone()
    dist.all_reduce(row_max, dist.ReduceOp.MAX)
    weight = torch.where(lse == -math.inf, 0.0, torch.exp(lse - row_max))
    row_sum, out = weight.clone(), weight[..., None] * part.out.to(on_wire)
    dist.all_reduce(row_sum)
    dist.all_reduce(out)
    out = torch.where((row_sum == 0.0)[..., None], 0.0, out / row_sum[..., None])
    return Decoded(out.cpu(), ((row_max + row_sum.log()) / nats(lse_base)).cpu())


def _ranks_unlike(merged: Decoded) -> str:
    """Say which ranks hold another merged result than rank 0, "" if none."""
    digests = [""] * dist.get_world_size()
    bits = merged.out.numpy().tobytes() + merged.lse.numpy().tobytes()
    dist.all_gather_object(digests, hashlib.sha256(bits).hexdigest())
    unlike = [at for at, digest in enumerate(digests) if digest != digests[0]]
    return f"ranks {unlike} hold another result than rank 0" if unlike else ""


def _cases(subject: Subject, profile: str, count: int) -> list[Case]:
    """Up to ``count`` cases of the profile whose shares the kernel takes, evenly spread.

    Raises UsageError where it takes none.
    """
    world = dist.get_world_size()
    taken = [
        subject.case(PROPERTY, drawn)
        for drawn in covering_array(profile, subject.kernel)
        if _is_taken(subject, drawn[0], world)
    ]
    if not taken:
        raise UsageError(f"--profile: {subject.name} takes no problem of {profile!r} in shares")
    step = max(1, len(taken) // count)
    return taken[::step][:count]


def _is_taken(subject: Subject, problem: Problem, world: int) -> bool:
    """Whether the kernel takes the problem dealt to ranks, and is right where it must be."""
    if problem.dcp != Dcp() or problem.batch_size == 0:
        return False
    contexts = problem.seq_lens
    first_rank = replace(
        problem,
        dcp=Dcp(world, 0, 1, contexts),
        seq_lens=tuple(-(-keys // world) for keys in contexts),
        max_seq_len=None,
    )
    if not subject.kernel.supports(first_rank).ok:
        return False
    enough = world * problem.dims.seq_len_q * max(INTERLEAVES)
    return subject.kernel.limits.empty_rows or min(contexts) >= enough


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="torchrun --standalone --nproc-per-node N -m conformance.distributed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kernel", default="optimized", help="a kernel that conformance knows")
    parser.add_argument("--engine", default="auto", help="auto, simulator or cuda; default auto")
    parser.add_argument("--profile", default="default", choices=tuple(PROFILES))
    parser.add_argument("--cases", type=int, default=24, help="how many; default 24")
    parser.add_argument("--results", default="results", help="folder for records; default results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
