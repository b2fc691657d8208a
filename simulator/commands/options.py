"""What the commands share: which call is meant, and how it is to be run."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from simulator.artefact import ArtefactError, Call, read
from simulator.checks import CHECKS, PRESETS, Checks
from simulator.errors import HostError, ProgramError, SimulationError
from simulator.launch import (
    ACCUMULATIONS,
    EXECUTORS,
    AccumulationName,
    ExecutorName,
    LoadedProgram,
    Result,
    launch,
    load,
)
from simulator.policy import POLICIES, Policy

DONE, PROGRAM_WRONG, MISUSE, SIMULATOR_LACKS = 0, 1, 2, 3
"""Exit codes: all well, the kernel or its arguments are wrong, wrong use, the simulator's turn."""

CALL_HELP: Final = (
    "a folder that holds a saved call, or path/file.py:function, a function without arguments that "
    "returns a simulator.artefact.Call"
)


@dataclass(frozen=True)
class Session:
    """A call with all that decides how it runs."""

    name: str
    call: Call
    executor: ExecutorName
    accumulation: AccumulationName

    def program(self) -> LoadedProgram:
        """The call's kernels, decoded; ``Unsupported`` for what the simulator lacks."""
        return load(self.call.ptx, self.call.host_object, self.call.entry)

    def launch(self, program: LoadedProgram | None = None, **options: Any) -> Result:
        """Run the call on its tensors; ``options`` are more of ``simulator.launch.launch``."""
        return launch(
            program or self.program(),
            self.call.arguments,
            policy=self.call.policy,
            checks=self.call.checks,
            accumulation=self.accumulation,
            **{"executor": self.executor, **options},
        )

    @property
    def facts(self) -> dict[str, Any]:
        """How the call is run, as JSON values."""
        return {
            "call": self.name,
            "policy": self.call.policy.name,
            "seed": self.call.policy.seed,
            "checks": list(check_names(self.call.checks)),
            "engine": self.executor,
            "accumulation": self.accumulation,
        }


def add_schedule(parser: argparse.ArgumentParser, policy: str | None = None) -> None:
    """Let a command choose policy, seed and arithmetic; ``policy`` None keeps the saved one."""
    default = "that of the saved call" if policy is None else policy
    parser.add_argument(
        "--policy",
        default=policy,
        metavar="P",
        help=f"the schedule: {', '.join(POLICIES)}; default: {default}",
    )
    parser.add_argument("--seed", type=int, metavar="S", help="of the schedule's random choices")
    parser.add_argument(
        "--accumulation",
        choices=ACCUMULATIONS,
        default="b200",
        help="how tensor cores add; default: %(default)s",
    )


def add_checks(parser: argparse.ArgumentParser) -> None:
    """Let a command choose checks and engine."""
    parser.add_argument(
        "--checks",
        metavar="A,B",
        help=f"checks ({', '.join(CHECKS)}) and presets ({', '.join(PRESETS)}), joined by commas; "
        "default: those of the saved call",
    )
    parser.add_argument(
        "--engine",
        choices=EXECUTORS,
        default="auto",
        help="who runs the warps: native code, or the interpreter with the same results; "
        "default: auto, native code where the checks let it",
    )


def session(given: argparse.Namespace, name: str | None = None) -> Session:
    """The session that a command's options ask for.

    Raises ``ValueError``, naming the argument, its value and the limit.
    """
    name = name or given.call
    call = find_call(name)
    policy = call.policy
    if given.policy is not None:
        policy = replace(policy, name=given.policy)
    if given.seed is not None:
        policy = Policy(policy.name, given.seed)
    checks = replace(call.checks, on_finding="collect")
    if getattr(given, "checks", None) is not None:
        checks = Checks.of(*given.checks.split(","), on_finding="collect")
    call = replace(call, policy=policy, checks=checks)
    return Session(name, call, getattr(given, "engine", "auto"), given.accumulation)


def find_call(text: str) -> Call:
    """The call that ``text`` means: a folder, or ``path/file.py:function``."""
    path, separator, function = text.rpartition(":")
    if not separator or not path.endswith(".py"):
        return read(Path(text))
    if not Path(path).is_file():
        raise ArtefactError(f"CALL: there is no file {path}")
    spec = importlib.util.spec_from_file_location("<call>", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    make = getattr(module, function, None)
    if not callable(make):
        raise ArtefactError(f"CALL: {path} has no function {function!r}")
    call = make()
    if not isinstance(call, Call):
        raise ArtefactError(f"CALL: {text} returned a {type(call).__name__}, not a Call")
    return call


def check_names(checks: Checks) -> tuple[str, ...]:
    """The names of the checks that are on."""
    always: Mapping[str, bool] = {"bounds": True, "deadlock": True}
    return tuple(name for name in CHECKS if always.get(name) or getattr(checks, name, False))


def exit_code(error: SimulationError | None) -> int:
    """The exit code of a run that ended with ``error``."""
    if error is None:
        return DONE
    return PROGRAM_WRONG if isinstance(error, ProgramError | HostError) else SIMULATOR_LACKS
