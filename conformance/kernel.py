"""What a kernel under test is, and how one is found by name.

A kernel is judged when it offers the members of `Kernel`. It plugs in in one of three ways:

* registered here, with the kernels of this repository (`REPOSITORY_KERNELS`);
* as an entry point of the group ``mla_testbed.kernels`` of any installed distribution, whose object
  is a factory: called without arguments, it returns the kernel;
* as ``path/file.py:factory``, for a kernel that is not packaged at all.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast, runtime_checkable

import torch

from reference.inputs import Inputs
from reference.problem import LAYOUTS, TABLE_TAILS, Problem
from simulator.checks import CHECKS, PRESETS, OnFinding
from simulator.launch import (
    ACCUMULATIONS,
    EXECUTORS,
    AccumulationName,
    ExecutorName,
    KernelRun,
)
from simulator.policy import Policy

ENTRY_POINT_GROUP = "mla_testbed.kernels"
ENGINES = ("simulator", "cuda")
POISON_BYTE = 0xFF
MAX_SPLITS = 256

# Imported when asked for: an adapter pulls in its kernel's whole toolchain.
REPOSITORY_KERNELS = {
    "optimized": "conformance.adapters.optimized:kernel",
    "torch-eager": "conformance.adapters.torch_eager:kernel",
    "tokenspeed-mla-2.0.4-fp8": "conformance.adapters.tokenspeed:fp8_2_0_4",
    "tokenspeed-mla-2.0.4-bf16": "conformance.adapters.tokenspeed:bf16_2_0_4",
    "tokenspeed-mla-2.0.4-fp16": "conformance.adapters.tokenspeed:fp16_2_0_4",
    "tokenspeed-mla-0.2.5-fp8": "conformance.adapters.tokenspeed:fp8_0_2_5",
    "tokenspeed-mla-0.2.5-bf16": "conformance.adapters.tokenspeed:bf16_0_2_5",
    "tokenspeed-mla-0.2.5-fp16": "conformance.adapters.tokenspeed:fp16_0_2_5",
}
DEFAULT_KERNELS = ("optimized", "tokenspeed-mla-2.0.4-fp8")


class UsageError(ValueError):
    """A request that cannot be met; the message names the argument, its value and the limit."""


@dataclass(frozen=True)
class Algorithm:
    """What an emulation of the kernel's own arithmetic needs to know.

    ``p_scale`` multiplies P before its cast; ``rescale_threshold`` is the growth of the running row
    maximum, in powers of two, up to which the accumulator is not rescaled; ``tile_n`` is the number
    of keys of a tile; ``lse_base`` is 2 or "e"; ``split_rule`` names the rule that chooses splits;
    ``casts_p`` says whether P is cast to the input's dtype at all. Tiles are taken in the order of
    the keys, each split has as many as the first, and the row sum takes P before the cast.
    """

    p_scale: float
    rescale_threshold: float
    tile_n: int
    lse_base: int | str
    split_rule: str
    casts_p: bool = True


@dataclass(frozen=True)
class Limits:
    """What a kernel asks beyond the contract, and what it does not claim, as its adapter declares.

    Generated problems stay inside; the expectations show what happens outside. ``table_tails`` are
    the recipes' block-table tails it copes with, ``poison`` whether NaN in slots that no query
    token may see is harmless, ``empty_rows`` whether rows without a visible key are right;
    ``layouts`` are the strides that it takes; ``inputs_ready`` says that inputs must be complete
    before a call is launched, also with enable_pdl. ``orders_accesses`` says that no check of the
    simulator has anything to say of the kernel.
    """

    table_tails: tuple[str, ...] = TABLE_TAILS
    layouts: tuple[str, ...] = LAYOUTS
    poison: bool = True
    empty_rows: bool = True
    inputs_ready: bool = False
    orders_accesses: bool = True


@dataclass(frozen=True)
class Support:
    """Whether a kernel takes a problem; ``reason`` says why not, with argument, value and limit."""

    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class Plan:
    """What the host chooses for a call: partitions of the keys, and the workspace they need."""

    num_splits: int
    workspace_bytes: int


@dataclass(frozen=True)
class Compiled:
    """One compilation: PTX text, host object file, and the name of the exported host function."""

    ptx: str
    host_object: bytes
    entry: str


@dataclass(frozen=True)
class RunOptions:
    """How to run a call: where, on how many SMs, scheduled and checked how.

    ``num_splits`` None leaves the count to the kernel's plan. ``policy`` and ``policy_seed`` choose
    the simulator's schedule, ``checks`` what it watches, ``on_finding`` what becomes of what they
    find (`simulator.checks`); the cuda engine has none of them. ``poison``
    fills outputs and workspace with `POISON_BYTE` before the call, which reads as a NaN that no
    arithmetic makes, so that an element nobody wrote shows. ``executor`` and ``accumulation`` are
    those of `simulator.launch`; no case holds them, for judgements are made with the defaults.
    ``profile`` has the simulator count what is executed, ``coverage`` has it say which blocks and
    branch edges were, both for `Output.launches`. ``save_to`` is a new folder that the simulator's
    call is saved to before it runs, for ``python -m simulator``. ``ask_anyway`` calls the kernel
    with what it is said not to take, so that it can refuse by itself. Raises UsageError for a value
    beyond its limit.
    """

    engine: str = "simulator"
    num_sms: int = 148
    num_splits: int | None = None
    policy: str = "fair"
    policy_seed: int = 0
    checks: tuple[str, ...] = ("bounds", "initialisation", "deadlock")
    on_finding: OnFinding = "finish"
    poison: bool = True
    executor: ExecutorName = "auto"
    accumulation: AccumulationName = "b200"
    profile: bool = False
    coverage: bool = False
    save_to: Path | None = None
    ask_anyway: bool = False

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UsageError(f"engine: {self.engine!r} is none of {', '.join(ENGINES)}")
        try:
            Policy(self.policy)
        except ValueError as error:
            raise UsageError(str(error)) from error
        for name, known in (("executor", EXECUTORS), ("accumulation", ACCUMULATIONS)):
            if getattr(self, name) not in known:
                raise UsageError(f"{name}: {getattr(self, name)!r} is none of {', '.join(known)}")
        for check in self.checks:
            if check not in CHECKS and check not in PRESETS:
                names = ", ".join((*CHECKS, *PRESETS))
                raise UsageError(f"checks: {check!r} is none of {names}")
        if self.num_sms < 1:
            raise UsageError(f"num_sms: {self.num_sms} is below 1")
        if self.num_splits is not None and not 1 <= self.num_splits <= MAX_SPLITS:
            raise UsageError(f"num_splits: {self.num_splits} is outside [1, {MAX_SPLITS}]")


@dataclass(frozen=True)
class Output:
    """What a call returned, on the CPU.

    ``num_splits`` says with how many splits it ran, where that may differ from what was asked, and
    ``strayed`` where bytes beside the buffers were written, as `conformance.canaries` tells.
    """

    out: torch.Tensor  # [batch, seq_len_q, num_heads, kv_lora_rank]
    lse: torch.Tensor  # [batch, seq_len_q, num_heads], float32
    launches: tuple[KernelRun, ...] = ()  # what the simulator counted, in order
    num_splits: int | None = None
    strayed: tuple[str, ...] = ()


class Kernel(Protocol):
    """One MLA decode kernel, as the suite sees it.

    ``arches`` are the targets it can be compiled for, as ``sm_100a``; the first is the one that the
    simulator runs.
    """

    @property
    def name(self) -> str:
        """The name that reports and replays use."""

    @property
    def arches(self) -> tuple[str, ...]:
        """Targets it can be compiled for, the simulator's first."""

    @property
    def algorithm(self) -> Algorithm:
        """What an emulation of its arithmetic needs."""

    @property
    def limits(self) -> Limits:
        """What it asks of its input tensors beyond the contract."""

    def supports(self, problem: Problem) -> Support:
        """Whether it takes ``problem``, without raising."""

    def plan(self, problem: Problem, num_sms: int) -> Plan:
        """What its host would choose for ``problem`` on ``num_sms`` SMs."""

    def specialisation_key(self, problem: Problem) -> Hashable:
        """Equal for problems that share one compilation."""

    def compile(self, problem: Problem, arch: str) -> Compiled:
        """The compilation that ``problem`` needs, for ``arch``."""

    def run(self, problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        """Run one call; ``inputs`` are on the CPU and stay as they are.

        A simulated program that is wrong raises a simulator.errors.ProgramError. UsageError says
        that this kernel cannot be asked for these options.
        """


class Prepared(Protocol):
    """One call on a GPU, whose tensors are there and stay where they are."""

    @property
    def inputs(self) -> Inputs:
        """The input tensors on the GPU; what is written to them, the next launch reads."""

    def launch(self) -> None:
        """Enqueue the call on PyTorch's current stream, without waiting and without allocating."""

    def output(self) -> Output:
        """What the launches before have left, on the CPU."""


@runtime_checkable
class Preparing(Protocol):
    """A kernel that can also be launched many times, as graphs and benchmarks need it; optional."""

    def prepared(self, problem: Problem, inputs: Inputs, options: RunOptions) -> Prepared:
        """The call, ready to be launched; compiled and launched once, so that it can be captured.

        Raises UsageError as `Kernel.run` does, and for the engine simulator.
        """


@runtime_checkable
class Wrapped(Protocol):
    """A kernel whose wrapper can be asked in other ways than `Kernel.run` asks it; optional."""

    @property
    def contradictions(self) -> tuple[str, ...]:
        """What can be wrong with a call's arguments, in words, that the wrapper must refuse."""

    def run_contradictory(
        self, problem: Problem, inputs: Inputs, options: RunOptions, contradiction: str
    ) -> Output:
        """Make the call with one of `contradictions` in it; whatever the wrapper raises, goes on.

        Raises ValueError too where the call cannot have this contradiction.
        """

    def run_without_buffers(self, problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        """Make the call without buffers for its results, and without asking for the LSE."""


@dataclass(frozen=True)
class EngineChoice:
    """Where a kernel runs and for which target it is compiled, with the reason in words."""

    engine: str
    arch: str
    reason: str


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """Fill a contiguous tensor of any dtype with `POISON_BYTE`, and return it."""
    tensor.view(-1).view(torch.uint8).fill_(POISON_BYTE)
    return tensor


def known_kernels() -> dict[str, str]:
    """Return every registered kernel, name -> ``module:factory``, this repository's first."""
    found = {point.name: point.value for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}
    return {**REPOSITORY_KERNELS, **found}


def load_kernel(name: str, transform: Callable[[str], str] | None = None) -> Kernel:
    """Return the kernel called ``name``: registered, ``path/file.py:factory``, or a mutant.

    ``mutant:KERNEL:ID`` is the kernel with one change of `mutation.operators`, ``mutant:ID`` our
    own with an edit of the catalogue in `mutation.source`. ``transform`` changes the PTX before the
    simulator sees it, for kernels whose factory takes one. Raises UsageError for a name that is
    unknown or of a kind not available yet, for a file or factory that is not there, and for an
    object that lacks a member of `Kernel`.
    """
    if name.startswith("mutant:"):
        kernel, _, mutation = name.removeprefix("mutant:").rpartition(":")
        if not mutation:
            raise UsageError(f"--kernel: {name!r}: a mutant is mutant:ID or mutant:KERNEL:ID")
        # Not at the top: mutants are made of kernels, so that package imports this one.
        if not kernel:
            edited: Kernel = importlib.import_module("mutation.source").kernel(mutation)
            return edited
        make: Callable[[str], Callable[[str], str]] = importlib.import_module(
            "mutation.operators"
        ).change
        return load_kernel(kernel, make(mutation))
    path, separator, factory = name.rpartition(":")
    if separator and path.endswith(".py"):
        return _from_factory(name, _module_from_file(Path(path)), factory, transform)
    if "@" in name:
        raise UsageError(
            f"--kernel: {name!r}: kernels of another git revision cannot be judged yet"
        )
    known = known_kernels()
    if name not in known:
        raise UsageError(f"--kernel: {_unknown(name, known)}")
    module, _, factory = known[name].partition(":")
    return _from_factory(name, importlib.import_module(module), factory, transform)


def choose_engine(kernel: Kernel, requested: str, device_arch: str | None) -> EngineChoice:
    """Return where ``kernel`` runs when ``requested`` is asked of a machine with ``device_arch``.

    ``auto`` is cuda only where the device is one of the kernel's targets, else the simulator.
    ``device_arch`` is None on a machine without a CUDA device. Raises UsageError for cuda on a
    machine that cannot run the kernel, and for an unknown engine.
    """
    targets = ", ".join(kernel.arches)
    device = "no CUDA device" if device_arch is None else f"an {device_arch} device"
    if requested == "simulator":
        return EngineChoice("simulator", kernel.arches[0], "asked for")
    if requested not in ("auto", "cuda"):
        raise UsageError(f"--engine: {requested!r} is none of auto, {', '.join(ENGINES)}")
    if device_arch in kernel.arches:
        assert device_arch is not None
        return EngineChoice("cuda", device_arch, f"this machine has {device}")
    if requested == "auto":
        reason = f"this machine has {device}, the kernel needs {targets}"
        return EngineChoice("simulator", kernel.arches[0], reason)
    raise UsageError(
        f"--engine: 'cuda' cannot run {kernel.name}: it needs one of {targets}, "
        f"and this machine has {device}; use --engine simulator"
    )


def device_arch() -> str | None:
    """Return the target of this machine's first CUDA device, as ``sm_100a``; None without one."""
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def _unknown(name: str, known: dict[str, str]) -> str:
    """Say that ``name`` is unknown, what was perhaps meant, and what there is."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f", did you mean {close[0]}?" if close else "."
    return (
        f"{name!r} is unknown{hint} Known kernels: {', '.join(known)}; "
        "a kernel of your own is given as path/file.py:factory"
    )


def _module_from_file(path: Path) -> ModuleType:
    """Return the module in ``path``, registered under a name that no package can have."""
    if not path.is_file():
        raise UsageError(f"--kernel: there is no file {path}")
    name = f"<kernel file {path.resolve()}>"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _from_factory(
    name: str, module: ModuleType, factory: str, transform: Callable[[str], str] | None
) -> Kernel:
    """Return what ``module.factory()`` returns, after checking that it is a kernel."""
    make: Callable[..., object] | None = getattr(module, factory, None)
    if not callable(make):
        raise UsageError(f"--kernel: {name!r}: {module.__file__} has no function {factory!r}")
    if transform is not None and "transform" not in inspect.signature(make).parameters:
        raise UsageError(f"--kernel: {name!r}: its {factory}() takes no transform: no mutants")
    kernel = make() if transform is None else make(transform=transform)
    members = [member for member, _ in inspect.getmembers(Kernel) if not member.startswith("_")]
    missing = [member for member in members if not hasattr(kernel, member)]
    if missing:
        raise UsageError(f"--kernel: {name!r}: its {factory}() lacks {', '.join(missing)}")
    return cast(Kernel, kernel)
