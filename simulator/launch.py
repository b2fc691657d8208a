"""Run a compiled CuTe DSL kernel on the CPU: ``load`` its PTX and host object, then ``launch`` it.

    compiled = cute.compile(scale, x, y, options="--enable-tvm-ffi")
    program = load(compiled.__ptx__, compiled.dump_to_object("scale"))
    launch(program, [Tensor.of(x, "x"), Tensor.of(y, "y")])

The host function runs as it would before a GPU: it checks its arguments, encodes tensor maps and
launches. Each launch is then executed from the PTX, in order, on the memory of the tensors.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.checks import Checks
from simulator.decode import decode
from simulator.errors import SimulatorBug
from simulator.host.capture import CapturedLaunch
from simulator.host.link import Argument, HostProgram
from simulator.host.tensor import Tensor
from simulator.interpreter import Interpreter
from simulator.machine.cluster import Dim3, Launch
from simulator.machine.global_memory import GlobalMemory, tensors_of
from simulator.machine.schedule import run_grid
from simulator.policy import Policy
from simulator.ptx.parser import parse

__all__ = ["Checks", "KernelRun", "LoadedProgram", "Policy", "Result", "Tensor", "launch", "load"]

INSTRUCTION_LIMIT = 10**10
"""Warp-instructions after which a launch counts as endless."""


@dataclass(frozen=True)
class LoadedProgram:
    """A linked host function and the decoded kernels that it launches, by name."""

    host: HostProgram
    kernels: dict[str, Interpreter]


@dataclass(frozen=True)
class KernelRun:
    """One executed launch. ``counts`` has bytes and operations by name; ``seconds`` is host time."""

    name: str
    grid: Dim3
    block: Dim3
    cluster: Dim3
    warp_instructions: int
    polls: int
    seconds: float
    counts: Counter[str]


@dataclass(frozen=True)
class Result:
    """What one call of the host function launched, in order."""

    kernels: tuple[KernelRun, ...]

    @property
    def warp_instructions(self) -> int:
        """Dynamic warp-instructions over all launches."""
        return sum(k.warp_instructions for k in self.kernels)


def load(ptx: str, host_object: bytes, entry: str | None = None) -> LoadedProgram:
    """The program that a PTX text and its exported host object make.

    ``entry`` names the host object's TVM-FFI function; None takes the only one. Raises
    ``Unsupported``, naming every PTX line concerned, if an instruction is not implemented.
    """
    module = parse(ptx)
    kernels = {name: Interpreter(decode(kernel)) for name, kernel in module.kernels.items()}
    return LoadedProgram(HostProgram.load(host_object, entry), kernels)


def launch(
    program: LoadedProgram,
    arguments: Sequence[Argument],
    *,
    policy: Policy = Policy(),
    checks: Checks = Checks(),
    instruction_limit: int = INSTRUCTION_LIMIT,
) -> Result:
    """Call the host function and execute what it launches; tensors are read and written in place.

    ``arguments`` are in the order of the compiled function: ``Tensor``, int, float, bool, or None
    for an absent one. Raises ``HostError`` if the host function refuses them, and the errors of
    ``simulator.errors`` for what goes wrong on the simulated device.
    """
    captured: list[CapturedLaunch] = []
    sizes = {name: [p.size for p in i.program.kernel.params] for name, i in program.kernels.items()}
    program.host.call(arguments, sizes, captured.append)
    memory = GlobalMemory(tensors_of(arguments), check_initialised=checks.initialisation)
    runs = []
    with np.errstate(all="ignore"):
        for item in captured:
            runs.append(_run(program, item, memory, policy, checks, instruction_limit))
    return Result(tuple(runs))


def _run(
    program: LoadedProgram, item: CapturedLaunch, memory: GlobalMemory, policy: Policy, checks: Checks,
    instruction_limit: int,
) -> KernelRun:  # fmt: skip
    interpreter = program.kernels.get(item.kernel)
    if interpreter is None:
        raise SimulatorBug(f"the host launches {item.kernel!r}, which the PTX does not define")
    started = time.perf_counter()
    state = Launch(
        program=interpreter.program, grid=item.grid, block=item.block, cluster=item.cluster,
        dynamic_shared_bytes=item.dynamic_shared_bytes,
        parameters=_parameters(interpreter, item), memory=memory, policy=policy, checks=checks,
    )  # fmt: skip
    statistics = run_grid(state, interpreter, instruction_limit)
    return KernelRun(
        item.kernel, item.grid, item.block, item.cluster, statistics.warp_instructions, statistics.polls,
        time.perf_counter() - started, statistics.counts,
    )  # fmt: skip


def _parameters(interpreter: Interpreter, item: CapturedLaunch) -> bytes:
    """The parameter space: each parameter's bytes at its offset."""
    kernel = interpreter.program.kernel
    space = bytearray(kernel.param_bytes)
    for param, value in zip(kernel.params, item.params, strict=True):
        space[param.offset : param.offset + param.size] = value
    return bytes(space)
