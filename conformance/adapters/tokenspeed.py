"""tokenspeed-mla's SM100 decode kernels, as published, judged through their own wrapper.

``tokenspeed_mla_decode`` runs as it is: it validates, plans, asks its compile cache for a kernel
and calls it. For the simulator the cache hands out a kernel that launches the same exported object
there; `tokenspeed_wrapper.replacements` lists all that is replaced. On a GPU nothing is.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from conformance.adapters import cutedsl
from conformance.adapters.artefacts import ArtefactStore
from conformance.adapters.tokenspeed_versions import FP8, V0_2_5, V2_0_4, Version
from conformance.adapters.tokenspeed_wrapper import (
    CAPABILITIES,
    COMPILED_FOR_SMS,
    PEERS,
    DecodeKernel,
    Device,
    Wrapper,
)
from conformance.kernel import (
    POISON_BYTE,
    Algorithm,
    Compiled,
    Output,
    Plan,
    RunOptions,
    Support,
    UsageError,
    choose_engine,
    device_arch,
)
from reference.inputs import Inputs
from reference.problem import Problem
from simulator import launch as simulation
from simulator.checks import Checks
from simulator.policy import Policy

KEPT_PROGRAMS = 32  # decoded; beyond that the least recently used one is decoded again
PLANNING_BYTES = 2**40  # a workspace to plan with: on the meta device it takes no memory

# A compiled kernel's leading arguments, as reports call them. The rest are no tensors.
ARGUMENTS = (
    "query (latent)", "query (rope)", "kv_cache (latent)", "kv_cache (rope)", "block_tables",
    "out", "lse", "workspace_buffer", "split_kv", "seq_lens", "causal_seqs",
)  # fmt: skip
BOUNDED = ("kv_cache (latent)", "kv_cache (rope)")  # a page id outside the pool is an error
WRITTEN_FIRST = ("out", "workspace_buffer")  # what they hold before the call means nothing

Key = Mapping[str, Any]  # the wrapper's arguments to its compile cache


@dataclass(frozen=True)
class _Call:
    """How the wrapper asks for a kernel, and what it calls it with."""

    key: Key
    arguments: Sequence[Any]

    @property
    def plan(self) -> Plan:
        named = dict(zip(ARGUMENTS, self.arguments, strict=False))
        workspace = named["workspace_buffer"]
        return Plan(named["split_kv"].value, 0 if workspace is None else workspace.nbytes)


class TokenspeedMla:
    """One version's kernels for one input dtype; a `conformance.kernel.Kernel`.

    ``transform`` changes the PTX before the simulator sees it, to judge a mutated kernel. ``peers``
    is the folder that ``nox -s peers`` fills.
    """

    arches = tuple(CAPABILITIES)

    def __init__(
        self,
        version: Version,
        dtype: str,
        *,
        name: str,
        transform: Callable[[str], str] | None = None,
        store: ArtefactStore | None = None,
        peers: Path = PEERS,
    ) -> None:
        self.name = name
        self.algorithm = Algorithm(
            p_scale=1.0,
            rescale_threshold=version.rescale_threshold(dtype),
            tile_n=128,
            lse_base=2,
            split_rule=version.split_rule(dtype),
        )
        self.limits = version.limits(dtype)
        self._version = version
        self._dtype = dtype
        self._transform = transform
        self._store = store or ArtefactStore()
        self._wrapper = Wrapper(version.number, peers)
        self._program = functools.lru_cache(KEPT_PROGRAMS)(_load)

    def supports(self, problem: Problem) -> Support:
        """Whether the wrapper takes ``problem``."""
        return self._version.support(self._dtype, problem)

    def plan(self, problem: Problem, num_sms: int) -> Plan:
        """What the wrapper chooses by itself on a device with ``num_sms`` SMs."""
        return self._plan(
            problem, RunOptions(num_sms=num_sms), Device(self.arches[0], num_sms)
        ).plan

    def specialisation_key(self, problem: Problem) -> Hashable:
        """The wrapper's arguments to its compile cache, with the default run options."""
        options = RunOptions()
        call = self._plan(problem, options, Device(self.arches[0], options.num_sms))
        return json.dumps(_plain(call.key), sort_keys=True)

    def compile(self, problem: Problem, arch: str) -> Compiled:
        """The compilation that ``problem`` needs with the default run options, transformed."""
        if arch not in CAPABILITIES:
            raise UsageError(f"arch: {arch!r} is none of {', '.join(CAPABILITIES)}")
        made: list[Compiled] = []

        def get_kernel(compile_kernel: Callable[..., Any], **key: Any) -> DecodeKernel:
            made.append(self._compiled(compile_kernel, key, arch))
            return lambda *arguments: None

        options = RunOptions()
        with self._wrapper.without_gpu(Device(arch, options.num_sms), get_kernel) as decode:
            decode(**self._arguments(problem, _shapes(problem), options), **_unlimited())
        return made[0]

    def run(self, problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        """Run one call. On the simulator ``num_splits`` is met, though no split is left empty.

        For that the wrapper is told of one SM: its own rule then asks for one split, and the lower
        bound that it is given decides. On a GPU the SMs are the GPU's, and the bound is a bound.
        The wrapper allocates ``lse`` by itself, full of zeros: ``poison`` does not reach it. Raises
        UsageError for a problem or an option that this kernel does not take.
        """
        self._refuse(problem, options)
        if options.engine == "cuda":
            return self._run_on_gpu(problem, inputs, options)
        device = Device(self.arches[0], 1 if options.num_splits else options.num_sms)
        plan = self._plan(problem, options, device).plan
        launches: list[simulation.KernelRun] = []

        def get_kernel(compile_kernel: Callable[..., Any], **key: Any) -> DecodeKernel:
            program = self._program(self._compiled(compile_kernel, key, device.arch))
            return functools.partial(self._launch, program, options, launches)

        arguments = self._arguments(problem, inputs, options)
        with self._wrapper.without_gpu(device, get_kernel) as decode:
            out, lse = decode(**arguments, **_buffers(problem, plan, options.poison))
        return Output(out, lse, tuple(launches), plan.num_splits)

    def _run_on_gpu(self, problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        arch = choose_engine(self, options.engine, device_arch()).arch
        num_sms = torch.cuda.get_device_properties().multi_processor_count
        plan = self._plan(problem, options, Device(arch, num_sms)).plan
        buffers = _buffers(problem, plan, options.poison)
        with self._wrapper.untouched() as decode:
            out, lse = decode(
                **self._arguments(problem, inputs.to("cuda"), options),
                **{name: buffer.cuda() for name, buffer in buffers.items()},
            )
        return Output(out.cpu(), lse.cpu(), num_splits=plan.num_splits)

    def _refuse(self, problem: Problem, options: RunOptions) -> None:
        support = self._version.support(self._dtype, problem, can_be_asked=options.ask_anyway)
        if not support.ok:
            raise UsageError(f"{self.name}: {support.reason}")
        if options.num_splits is not None and not self._version.is_2:
            raise UsageError(
                f"num_splits: {options.num_splits}: {self.name} has no such argument; "
                "fewer num_sms give fewer splits"
            )
        if options.engine == "cuda" and self._transform is not None:
            raise UsageError(f"engine: 'cuda': {self.name} changes the PTX; a GPU would not see it")

    def _plan(self, problem: Problem, options: RunOptions, device: Device) -> _Call:
        """What the wrapper would do for ``problem``: it is called with tensors without contents."""
        calls: list[_Call] = []

        def get_kernel(_compile_kernel: Callable[..., Any], **key: Any) -> DecodeKernel:
            return lambda *arguments: calls.append(_Call(key, arguments))

        with self._wrapper.without_gpu(device, get_kernel) as decode:
            decode(**self._arguments(problem, _shapes(problem), options), **_unlimited())
        return calls[0]

    def _arguments(self, problem: Problem, inputs: Inputs, options: RunOptions) -> dict[str, Any]:
        """The wrapper's arguments, but for the buffers it writes."""
        arguments = {
            "query": inputs.query,
            "kv_cache": inputs.kv_cache,
            "kv_lora_rank": problem.dims.kv_lora_rank,
            "qk_rope_head_dim": problem.dims.qk_rope_head_dim,
            "block_tables": inputs.block_tables,
            "seq_lens": inputs.seq_lens,
            "max_seq_len": problem.planning_max_seq_len,
            "softmax_scale": problem.softmax_scale,
            "output_scale": problem.output_scale,
            "is_var_seq": problem.is_var_seq,
            "causal_mask": problem.mask.causal,
            "enable_pdl": problem.enable_pdl,
            "return_lse": True,
            "causal_seqs": inputs.causal_seqs,
            "cp_world": problem.dcp.world,
            "cp_rank": problem.dcp.rank,
        }
        if self._version.is_2:
            arguments["window_left"] = problem.mask.window_left
            arguments["cp_interleave_size"] = problem.dcp.interleave_size
            arguments["min_split_kv"] = options.num_splits or 1
        return arguments

    def _compiled(self, compile_kernel: Callable[..., Any], key: Key, arch: str) -> Compiled:
        facts = {
            "tokenspeed-mla": self._version.number,
            "arch": arch,
            "compiled_for_sms": COMPILED_FOR_SMS,
            "arguments": _plain(key),
            **cutedsl.toolchain(),
        }
        make = functools.partial(cutedsl.export, functools.partial(compile_kernel, **key), arch)
        compiled = self._store.get(facts, make)
        if self._transform is None:
            return compiled
        return replace(compiled, ptx=self._transform(compiled.ptx))

    def _launch(
        self,
        program: simulation.LoadedProgram,
        options: RunOptions,
        launches: list[simulation.KernelRun],
        *arguments: Any,
    ) -> None:
        # Version 2 ends with local_visible_lens, which the wrapper leaves out where it is absent.
        absent = [None] if self._version.is_2 else []
        named = [*ARGUMENTS, *[""] * (len(arguments) - len(ARGUMENTS))]
        result = simulation.launch(
            program,
            [*map(_simulated, named, arguments), *absent],
            policy=Policy(options.policy, options.policy_seed),
            checks=Checks.of(*options.checks, on_finding=options.on_finding),
            executor=options.executor,
            accumulation=options.accumulation,
            profile=options.profile,
            coverage=options.coverage,
            save_to=options.save_to,
        )
        launches += result.kernels


def _load(compiled: Compiled) -> simulation.LoadedProgram:
    return simulation.load(compiled.ptx, compiled.host_object, compiled.entry)


def _simulated(name: str, argument: Any) -> Any:
    """A kernel's argument as the simulator takes it; scalars come wrapped in the DSL's types."""
    if argument is None:
        return None
    if isinstance(argument, torch.Tensor):
        return simulation.Tensor.of(
            argument, name, strict=name in BOUNDED, initialised=name not in WRITTEN_FIRST
        )
    return argument.value


def _shapes(problem: Problem) -> Inputs:
    """Inputs of the problem's shapes and dtypes that hold no numbers."""
    dims, batch = problem.dims, problem.batch_size
    values = functools.partial(torch.empty, dtype=getattr(torch, problem.dtype), device="meta")
    indices = functools.partial(torch.empty, dtype=torch.int32, device="meta")
    return Inputs(
        query=values(batch, dims.seq_len_q, dims.num_heads, dims.qk_head_dim),
        kv_cache=values(1, problem.page_size, dims.qk_head_dim),
        block_tables=indices(batch, 1),
        seq_lens=indices(batch),
        causal_seqs=None if problem.dcp.causal_seqs is None else indices(batch),
    )


def _unlimited() -> dict[str, torch.Tensor]:
    return {"workspace_buffer": torch.empty(PLANNING_BYTES, dtype=torch.int8, device="meta")}


def _buffers(problem: Problem, plan: Plan, poison: bool) -> dict[str, torch.Tensor]:
    """What the wrapper writes: ``out`` and a workspace of exactly the size that it plans."""
    dims = problem.dims
    shape = (problem.batch_size, dims.seq_len_q, dims.num_heads, dims.kv_lora_rank)
    buffers = {
        "out": torch.empty(shape, dtype=getattr(torch, problem.output_dtype)),
        "workspace_buffer": torch.empty(plan.workspace_bytes, dtype=torch.int8),
    }
    for buffer in buffers.values():
        buffer.view(torch.uint8).fill_(POISON_BYTE if poison else 0)
    return buffers


def _plain(key: Key) -> dict[str, Any]:
    """The key as JSON values."""
    return {
        name: str(value) if isinstance(value, torch.dtype) else value for name, value in key.items()
    }


def _factory(version: Version, dtype: str, suffix: str) -> Callable[..., TokenspeedMla]:
    return functools.partial(
        TokenspeedMla, version, dtype, name=f"tokenspeed-mla-{version.number}-{suffix}"
    )


fp8_2_0_4 = _factory(V2_0_4, FP8, "fp8")
bf16_2_0_4 = _factory(V2_0_4, "bfloat16", "bf16")
fp16_2_0_4 = _factory(V2_0_4, "float16", "fp16")
fp8_0_2_5 = _factory(V0_2_5, FP8, "fp8")
bf16_0_2_5 = _factory(V0_2_5, "bfloat16", "bf16")
fp16_0_2_5 = _factory(V0_2_5, "float16", "fp16")
