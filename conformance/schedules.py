"""Runs one kernel under many schedules: each output must be that of the fair schedule, bit by bit.

    python -m conformance.schedules --kernel optimized --seeds 1000

Seed after seed takes the next of `PROBLEMS`, and after all of them the next of `POLICIES`. Each
result is on disk before the next run starts; --resume FOLDER goes on with a run that was cut short.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from conformance.difference import different_bits
from conformance.judge import run_options
from conformance.kernel import Kernel, Output, UsageError, load_kernel
from conformance.session import device_text, records_to_resume
from reference.inputs import Inputs, make_inputs
from reference.problem import Dims, Mask, Problem, Recipe
from reports.records import Case, CaseResult, RecordWriter
from simulator.errors import SimulationError, SimulatorBug, Unsupported

TOOL = "schedules"
PROPERTY = "same_under_every_schedule"
POLICIES = ("random", "pct:2:16384", "late", "pct:3:16384", "pct:1", "quantum_1", "run_to_block")
RECIPE = Recipe(table_tail="tile", poison=False)


def _problem(dtype: str, heads: int, queries: int, keys: int) -> Problem:
    return Problem(
        dims=Dims(heads, queries),
        dtype=dtype,
        page_size=32,
        seq_lens=(keys,),
        softmax_scale=192**-0.5,
        mask=Mask(causal=True),
    )


PROBLEMS = (
    (_problem("float8_e4m3fn", 128, 1, 600), 2),
    (_problem("float8_e4m3fn", 16, 2, 600), 2),
    (_problem("bfloat16", 128, 1, 600), 2),
    (_problem("bfloat16", 16, 2, 290), 1),
)
"""Problems with the number of splits of each: 64 and 128 rows, two to three tiles in a split."""


@dataclass(frozen=True, eq=False)
class _Subject:
    """A kernel under its name, with inputs and the fair schedule's output for each problem."""

    name: str
    kernel: Kernel
    inputs: Mapping[int, Inputs]
    fair: Mapping[int, Output]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep that the command line asks for; 0 if every output was the same."""
    options = _options(arguments)
    torch.set_num_threads(1)
    try:
        known = _earlier(options.resume)
        subject = _subject(options.kernel)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    bad: list[CaseResult] = []
    with RecordWriter(TOOL, options.results, device=device_text()) as records:
        for number, case in enumerate(_cases(subject, options.seeds), start=1):
            result = known.get(case.id) or judge(subject.kernel, case, subject.inputs, subject.fair)
            records.write(result)
            if result.is_bad:
                bad.append(result)
                print(f"{case.policy} {case.policy_seed}: {result.reason}\n  {case.to_json()}")
            if number % 50 == 0 or number == options.seeds:
                print(f"{number}/{options.seeds} schedules, {len(bad)} bad", flush=True)
        print(f"records: {records.path}")
    return int(bool(bad))


def judge(
    kernel: Kernel, case: Case, inputs: Mapping[int, Inputs], fair: Mapping[int, Output]
) -> CaseResult:
    """Return whether ``case`` gives the bits that its problem, number ``seed``, gives when fair."""
    start = time.perf_counter()
    problem = Problem.from_json(case.problem)
    try:
        found = kernel.run(problem, copy.deepcopy(inputs[case.seed]), run_options(case))
    except SimulationError as error:
        verdict = "error" if isinstance(error, Unsupported | SimulatorBug) else "failed"
        return CaseResult(
            case, verdict, error_class=type(error).__name__, ptx_line=error.ptx_line,
            reason=str(error), seconds=time.perf_counter() - start,
        )  # fmt: skip
    different = different_bits(found, fair[case.seed], "those of the fair schedule")
    return CaseResult(
        case,
        "failed" if different else "passed",
        seconds=time.perf_counter() - start,
        reason=different or None,
    )


def _subject(name: str) -> _Subject:
    kernel = load_kernel(name)
    taken = [i for i, (problem, _) in enumerate(PROBLEMS) if kernel.supports(problem).ok]
    if not taken:
        raise UsageError(f"--kernel: {name!r} takes none of the {len(PROBLEMS)} problems")
    inputs = {i: make_inputs(PROBLEMS[i][0], RECIPE, i) for i in taken}
    fair = {
        i: kernel.run(
            PROBLEMS[i][0], copy.deepcopy(inputs[i]), run_options(_case(name, kernel, i, "fair", 0))
        )
        for i in taken
    }
    return _Subject(name, kernel, inputs, fair)


def _cases(subject: _Subject, seeds: int) -> Iterator[Case]:
    taken = list(subject.inputs)
    for seed in range(seeds):
        policy = POLICIES[seed // len(taken) % len(POLICIES)]
        yield _case(subject.name, subject.kernel, taken[seed % len(taken)], policy, seed)


def _case(name: str, kernel: Kernel, number: int, policy: str, seed: int) -> Case:
    problem, splits = PROBLEMS[number]
    return Case(
        kernel=name,
        engine="simulator",
        arch=kernel.arches[0],
        property=PROPERTY,
        problem=problem.to_json(),
        recipe=RECIPE.to_json(),
        seed=number,
        policy=policy,
        policy_seed=seed,
        checks=("bounds", "initialisation", "deadlock"),
        num_sms=148,
        num_splits=splits,
    )


def _earlier(folder: str | None) -> dict[str, CaseResult]:
    """The results of an earlier run by the ids of their cases; UsageError if of other sources."""
    if folder is None:
        return {}
    return {result.case.id: result for result in records_to_resume(folder).results}


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.schedules",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kernel", default="optimized", help="a kernel that conformance knows")
    parser.add_argument("--seeds", type=int, default=1000, help="schedules to run; default 1000")
    parser.add_argument("--results", default="results", help="folder for records; default results")
    parser.add_argument("--resume", metavar="FOLDER", help="records of a run to go on with")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
