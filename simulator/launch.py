"""Run a compiled CuTe DSL kernel on the CPU: ``load`` its PTX and host object, then ``launch`` it.

    compiled = cute.compile(scale, x, y, options="--enable-tvm-ffi")
    program = load(compiled.__ptx__, compiled.dump_to_object("scale"))
    launch(program, [Tensor.of(x, "x"), Tensor.of(y, "y")])

The host function runs as it would before a GPU: it checks its arguments, encodes tensor maps and
launches. Each launch is then executed from the PTX, in order, on the memory of the tensors.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, get_args

import numpy as np
from threadpoolctl import ThreadpoolController

from simulator.artefact import Call, save
from simulator.checks import USUAL, Checks
from simulator.codegen.accumulate import strategy
from simulator.coverage import Coverage, coverage_of, merged
from simulator.decode import decode
from simulator.errors import CheckFailed, SimulationError, SimulatorBug
from simulator.events import Observer
from simulator.host.capture import CapturedLaunch
from simulator.host.link import Argument, HostProgram
from simulator.host.tensor import Tensor
from simulator.interpreter import Interpreter
from simulator.machine.cluster import Dim3, Launch
from simulator.machine.global_memory import GlobalMemory, tensors_of
from simulator.machine.schedule import run_grid
from simulator.machine.steps import Choice
from simulator.native import NativeExecutor
from simulator.policy import FAIR, Policy
from simulator.profile import Profile
from simulator.profile import profile as profile_of
from simulator.ptx.parser import parse
from simulator.sanitizer.finding import Finding, Findings, failure
from simulator.sanitizer.watch import observer, together
from simulator.traffic import Traffic

__all__ = [
    "Checks",
    "Coverage",
    "Extent",
    "Finding",
    "KernelRun",
    "LoadedProgram",
    "Policy",
    "Result",
    "Tensor",
    "launch",
    "launch_kernel",
    "load",
    "merged",
]

INSTRUCTION_LIMIT = 10**10
"""Warp-instructions after which a launch counts as endless."""


ExecutorName = Literal["auto", "interpreter", "native"]
"""Who runs the warps: the specification, or native code with the same results.

``auto`` is native code, but the interpreter for a profile and where something watches that is no
check, so that it sees warps between events as they are. See docs/simulator/native.md.
"""


EXECUTORS: Final = get_args(ExecutorName)

AccumulationName = Literal["b200", "hopper", "ideal"]
"""How tensor cores add, by name: see docs/simulator/README.md, "What is simulated"."""

ACCUMULATIONS: Final = get_args(AccumulationName)


@dataclass(frozen=True)
class LoadedProgram:
    """A linked host function and the decoded kernels that it launches, by name."""

    host: HostProgram
    kernels: dict[str, Interpreter]
    ptx: str = field(repr=False)
    _native: dict[str, NativeExecutor] = field(default_factory=dict, repr=False)

    def call(self, arguments: Sequence[Argument], policy: Policy, checks: Checks) -> Call:
        """A call of this program, to be saved."""
        host = self.host
        return Call(self.ptx, host.object_bytes, tuple(arguments), host.entry, policy, checks)

    def executor(self, kernel: str, *, is_native: bool) -> Interpreter:
        """The executor of a kernel; native code is compiled when it is first asked for."""
        if not is_native:
            return self.kernels[kernel]
        if kernel not in self._native:
            self._native[kernel] = NativeExecutor(self.kernels[kernel].program)
        return self._native[kernel]


@dataclass(frozen=True)
class KernelRun:
    """One executed launch.

    ``counts`` has bytes and operations by name; ``seconds`` is time on the host. ``profile`` and
    ``coverage`` are there if they were asked for, ``findings`` if the checks collect them. Where
    the policy chooses each step, ``steps`` counts them and ``choices`` has (step, number of agents)
    for those that several could take.
    """

    name: str
    grid: Dim3
    block: Dim3
    cluster: Dim3
    warp_instructions: int
    polls: int
    seconds: float
    counts: Counter[str]
    profile: Profile | None = None
    steps: int = 0
    choices: tuple[Choice, ...] = ()
    findings: tuple[Finding, ...] = ()
    coverage: Coverage | None = None


@dataclass(frozen=True)
class Result:
    """What one call of the host function launched, in order."""

    kernels: tuple[KernelRun, ...]

    @property
    def warp_instructions(self) -> int:
        """Dynamic warp-instructions over all launches."""
        return sum(k.warp_instructions for k in self.kernels)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the checks have found in all launches."""
        return tuple(finding for k in self.kernels for finding in k.findings)


def load(ptx: str, host_object: bytes, entry: str | None = None) -> LoadedProgram:
    """The program that a PTX text and its exported host object make.

    ``entry`` names the host object's TVM-FFI function; None takes the only one. Raises
    ``Unsupported``, naming every PTX line concerned, if an instruction is not implemented.
    """
    module = parse(ptx)
    kernels = {name: Interpreter(decode(kernel)) for name, kernel in module.kernels.items()}
    return LoadedProgram(HostProgram.load(host_object, entry), kernels, ptx)


def launch(
    program: LoadedProgram,
    arguments: Sequence[Argument],
    *,
    policy: Policy = FAIR,
    checks: Checks = USUAL,
    executor: ExecutorName = "auto",
    accumulation: AccumulationName = "b200",
    instruction_limit: int = INSTRUCTION_LIMIT,
    profile: bool = False,
    coverage: bool = False,
    watch: Callable[[], Observer] | None = None,
    save_to: Path | None = None,
) -> Result:
    """Call the host function and execute what it launches; tensors are read and written in place.

    ``arguments`` are in the order of the compiled function: ``Tensor``, int, float, bool, or None
    for an absent one. ``profile`` counts what is executed, ``coverage`` says which blocks and edges
    were; ``watch`` makes an observer for each cluster, which the interpreter runs. ``save_to`` is
    a folder that the call is saved to before it runs (``simulator.artefact``).

    Raises ``ArtefactError`` if it cannot be, ``ValueError`` where native code is asked for and
    something else needs the interpreter, ``HostError`` if the host function refuses the arguments,
    and the errors of ``simulator.errors`` for what goes wrong on the simulated device.
    """
    asked = _Asked(profile, coverage, watch)
    is_native = _is_native(executor, asked)
    if save_to is not None:
        save(program.call(arguments, policy, checks), save_to)
    captured: list[CapturedLaunch] = []
    sizes = {name: [p.size for p in i.program.kernel.params] for name, i in program.kernels.items()}
    program.host.call(arguments, sizes, captured.append)
    memory = GlobalMemory(tensors_of(arguments), check_initialised=checks.initialisation)
    runs = []
    for item in captured:
        if item.kernel not in program.kernels:
            raise SimulatorBug(f"the host launches {item.kernel!r}, which the PTX does not define")
        interpreter = program.executor(item.kernel, is_native=is_native)
        state = Launch(
            program=interpreter.program,
            grid=item.grid,
            block=item.block,
            cluster=item.cluster,
            dynamic_shared_bytes=item.dynamic_shared_bytes,
            parameters=_parameters(interpreter, item.params),
            memory=memory,
            policy=policy,
            checks=checks,
            accumulate=strategy(accumulation),
            may_start_early=item.programmatic_serialization,
        )
        runs.append(_run(interpreter, state, instruction_limit, asked))
    return Result(tuple(runs))


@dataclass(frozen=True)
class Extent:
    """How many threads a launch has: ``grid`` and ``cluster`` in CTAs, ``block`` in threads.

    All three are (x, y, z); ``dynamic_shared_bytes`` is what each CTA has.
    """

    grid: Dim3 = (1, 1, 1)
    block: Dim3 = (32, 1, 1)
    cluster: Dim3 = (1, 1, 1)
    dynamic_shared_bytes: int = 0


def launch_kernel(
    ptx: str,
    extent: Extent,
    arguments: Sequence[Tensor | int | bytes],
    *,
    name: str | None = None,
    policy: Policy = FAIR,
    checks: Checks = USUAL,
    executor: ExecutorName = "auto",
    accumulation: AccumulationName = "b200",
    instruction_limit: int = INSTRUCTION_LIMIT,
    profile: bool = False,
    coverage: bool = False,
    watch: Callable[[], Observer] | None = None,
    may_start_early: bool = False,
) -> KernelRun:
    """Execute one kernel of a PTX text, without a host function, on tensors in place.

    ``arguments`` are the kernel's parameters in order: a ``Tensor`` gives its pointer, an int as
    many bytes as the parameter has, bytes themselves. ``name`` may be omitted if there is one
    kernel. ``may_start_early`` is programmatic stream serialisation, for the check ``grid_order``.
    Errors are those of ``load`` and ``launch``.
    """
    kernels = parse(ptx).kernels
    if name is None and len(kernels) != 1:
        raise ValueError(f"name None: the text has kernels {sorted(kernels)}")
    decoded = decode(kernels[name] if name else next(iter(kernels.values())))
    asked = _Asked(profile, coverage, watch)
    is_native = _is_native(executor, asked)
    interpreter = NativeExecutor(decoded) if is_native else Interpreter(decoded)
    params = interpreter.program.kernel.params
    if len(arguments) != len(params):
        raise ValueError(
            f"{len(arguments)} arguments for the {len(params)} parameters of the kernel"
        )
    values = [_bytes(a, p.size) for a, p in zip(arguments, params, strict=True)]
    state = Launch(
        program=interpreter.program,
        grid=extent.grid,
        block=extent.block,
        cluster=extent.cluster,
        dynamic_shared_bytes=extent.dynamic_shared_bytes,
        parameters=_parameters(interpreter, values),
        memory=GlobalMemory(tensors_of(arguments), check_initialised=checks.initialisation),
        policy=policy,
        checks=checks,
        accumulate=strategy(accumulation),
        may_start_early=may_start_early,
    )
    return _run(interpreter, state, instruction_limit, asked)


@dataclass(frozen=True)
class _Asked:
    """What a launch is asked to tell beside its results."""

    profile: bool = False
    coverage: bool = False
    watch: Callable[[], Observer] | None = None


def _is_native(executor: ExecutorName, asked: _Asked) -> bool:
    if executor == "native" and asked.profile:
        raise ValueError("profile: counted by executor 'interpreter' alone")
    if executor == "auto":
        return not (asked.profile or asked.watch)
    return executor == "native"


def _bytes(argument: Tensor | int | bytes, size: int) -> bytes:
    """A parameter of ``size`` bytes."""
    if isinstance(argument, bytes):
        if len(argument) != size:
            raise ValueError(f"{len(argument)} bytes for a parameter of {size}")
        return argument
    value = argument.pointer if isinstance(argument, Tensor) else argument
    return (value % (1 << 8 * size)).to_bytes(size, "little")


def _run(
    interpreter: Interpreter, state: Launch, instruction_limit: int, asked: _Asked
) -> KernelRun:
    started = time.perf_counter()
    state.memory.traffic = sectors = Counter[str]() if asked.profile else None
    traffic = Traffic() if asked.profile else None
    checks, findings = state.checks, Findings(raises=state.checks.on_finding == "raise")
    observe = _observers(checks, findings, traffic, asked.watch)
    if asked.profile or asked.coverage:
        interpreter.start_counting()
    try:
        with np.errstate(all="ignore"), _single_threaded().limit(limits=1):
            statistics = run_grid(state, interpreter, instruction_limit, observe)
    except SimulationError as error:
        _tell_before(error, findings.all)
        raise
    finally:
        counters = interpreter.stop_counting()
    if findings.all and checks.on_finding != "collect":
        raise failure(findings.all)
    program, profile = state.program, None
    if asked.profile:
        assert counters is not None
        assert traffic is not None
        profile = profile_of(
            program, counters.executed, sectors or {}, statistics.counts, traffic=traffic
        )
    return KernelRun(
        program.kernel.name,
        state.grid,
        state.block,
        state.cluster,
        statistics.warp_instructions,
        statistics.polls,
        time.perf_counter() - started,
        statistics.counts,
        profile,
        statistics.steps,
        tuple(statistics.choices),
        findings.all,
        coverage_of(program, counters) if counters and asked.coverage else None,
    )


def _tell_before(error: SimulationError, findings: tuple[Finding, ...]) -> None:
    """Add to an error, as a note, what the checks had found before it: often the reason."""
    if findings and not isinstance(error, CheckFailed):
        error.add_note("\n".join(["the checks had found before:", *map(str, findings)]))


def _observers(
    checks: Checks,
    findings: Findings,
    traffic: Traffic | None,
    watch: Callable[[], Observer] | None,
) -> Callable[[], Observer] | None:
    """What makes the observer of each cluster: all that somebody wants to be told."""
    makers: list[Callable[[], Observer]] = []
    if checks.watching:
        makers.append(functools.partial(observer, checks, findings))
    if traffic is not None:
        makers.append(lambda: traffic)
    if watch is not None:
        makers.append(watch)
    return (lambda: together([make() for make in makers])) if makers else None


@functools.cache
def _single_threaded() -> ThreadpoolController:
    """The BLAS of this process: products this small run several times faster on one thread."""
    return ThreadpoolController()


def _parameters(interpreter: Interpreter, values: Sequence[bytes]) -> bytes:
    """The parameter space: each parameter's bytes at its offset."""
    kernel = interpreter.program.kernel
    space = bytearray(kernel.param_bytes)
    for param, value in zip(kernel.params, values, strict=True):
        space[param.offset : param.offset + param.size] = value
    return bytes(space)
