"""A case as a folder that ``python -m simulator`` runs: its kernel, its tensors, its schedule.

    nox -s conformance -- --replay CASE --export FOLDER
    python -m conformance.export --kernel optimized FOLDER

The first line saves the call of a recorded case, say one that failed; the second that of the first
problem of a profile.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from conformance.judge import Subject, run_options
from conformance.kernel import UsageError, choose_engine, load_kernel
from conformance.profiles import PROFILES
from conformance.properties import COMPLETES
from conformance.strategies import covering_array
from reference.inputs import make_inputs
from reference.problem import Problem, Recipe
from reports.records import Case
from simulator.errors import SimulationError


def export(subject: Subject, case: Case, folder: Path) -> str:
    """Save the call that ``case`` makes to ``folder``; how it ended, in words.

    The call is saved before it runs, so that one which fails is saved too. Raises UsageError if the
    kernel never calls the simulator, and ``ArtefactError``, a ValueError, if ``folder`` is there.
    """
    problem, recipe = Problem.from_json(case.problem), Recipe.from_json(case.recipe)
    options = replace(run_options(case), save_to=folder)
    try:
        subject.kernel.run(problem, make_inputs(problem, recipe, case.seed), options)
        ended = "it ran to its end"
    except SimulationError as error:
        ended = f"{type(error).__name__}: {error}"
    if not folder.is_dir():
        raise UsageError(f"FOLDER: {subject.name} saves no calls: {ended}")
    return ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Save a call, and say what can be done with it."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.export",
        description="Save the call that a kernel makes for one problem of a profile to a folder, "
        "for python -m simulator. A recorded case is saved by the suite: nox -s conformance -- "
        "--replay CASE --export FOLDER.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a new one")
    parser.add_argument("--kernel", required=True, help="as for the suite")
    parser.add_argument("--profile", default="smoke", choices=PROFILES, help="default: smoke")
    parser.add_argument(
        "--number", type=int, default=1, metavar="N", help="which of its problems; default: 1"
    )
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        kernel = load_kernel(given.kernel)
        subject = Subject(given.kernel, kernel, choose_engine(kernel, "simulator", None))
        drawn = covering_array(given.profile, kernel)
        if not 1 <= given.number <= len(drawn):
            raise UsageError(f"--number: {given.number} is outside [1, {len(drawn)}]")
        ended = export(subject, subject.case(COMPLETES, drawn[given.number - 1]), given.folder)
    except ValueError as error:
        parser.error(str(error))
    sys.stdout.write(f"{given.folder}: saved; {ended}\npython -m simulator run {given.folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
