"""This repository's own kernels, judged through their public entry."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace

import torch

from conformance.canaries import Canaries, buffer
from conformance.kernel import (
    Algorithm,
    Compiled,
    Limits,
    Output,
    Plan,
    RunOptions,
    Support,
    UsageError,
    choose_engine,
    device_arch,
)
from optimized import plan as planning
from optimized.api import Arguments, decode_on
from optimized.compile import ARCHES, CudaDevice, SimulatedDevice, compiled
from reference.inputs import Inputs
from reference.problem import Problem
from simulator.checks import Checks
from simulator.launch import Result


@dataclass(frozen=True, eq=False)
class _DecodeCall:
    """One call with all its tensors, which can be launched again and again."""

    device: CudaDevice | SimulatedDevice
    arguments: Arguments
    inputs: Inputs
    out: torch.Tensor
    lse: torch.Tensor
    canaries: Canaries | None

    def launch(self) -> None:
        """Make the call; on a GPU it is enqueued on PyTorch's current stream."""
        decode_on(self.device, self.arguments, self.lse)

    def output(self) -> Output:
        """What the launches before have left, on the CPU."""
        strayed = self.canaries.written() if self.canaries is not None else ()
        return Output(self.out.cpu(), self.lse.cpu(), strayed=strayed)


def _short_workspace(arguments: Arguments) -> Arguments:
    workspace = arguments.workspace_buffer
    assert isinstance(workspace, torch.Tensor)
    if not len(workspace):
        raise ValueError("the call needs no workspace")
    return replace(arguments, workspace_buffer=workspace[:-1])


CONTRADICTIONS: Mapping[str, Callable[[Arguments], Arguments]] = {
    "a workspace one byte short": _short_workspace,
    "a rank beyond the ranks": lambda arguments: replace(arguments, cp_rank=arguments.cp_world),
    "ranks without the length of the context": lambda arguments: replace(
        arguments, cp_world=2, causal_seqs=None
    ),
}


class Optimized:
    """The kernel of `optimized.mla_decode`; a `conformance.kernel.Kernel`.

    ``transform`` changes the PTX before the simulator sees it, to judge a mutated kernel.
    """

    name = "optimized"
    arches = tuple(ARCHES.values())
    algorithm = Algorithm(
        p_scale=4.0, rescale_threshold=6.0, tile_n=128, lse_base=2, split_rule="normalised"
    )
    limits = Limits()

    def __init__(self, transform: Callable[[str], str] | None = None) -> None:
        self._transform = transform

    def supports(self, problem: Problem) -> Support:
        """Whether the kernels take ``problem``."""
        support = planning.supports(problem)
        return Support(support.ok, support.reason)

    def plan(self, problem: Problem, num_sms: int) -> Plan:
        """What the host chooses on a device with ``num_sms`` SMs."""
        plan = planning.plan(problem, num_sms)
        return Plan(plan.num_splits, plan.workspace_bytes)

    def specialisation_key(self, problem: Problem) -> Hashable:
        """What must be compiled for ``problem``."""
        return planning.specialisation_key(problem)

    def compile(self, problem: Problem, arch: str) -> Compiled:
        """The compilation that ``problem`` needs, for ``arch``."""
        if arch not in self.arches:
            raise UsageError(f"arch: {arch!r} is none of {', '.join(self.arches)}")
        made = compiled(planning.specialisation_key(problem), arch)
        ptx = made.ptx if self._transform is None else self._transform(made.ptx)
        return Compiled(ptx, made.host_object, made.entry)

    def run(self, problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        """Run one call, with a workspace of exactly the size that is asked for."""
        results: list[Result] = []
        call = self._call(problem, inputs, options, results.append)
        call.launch()
        launches = tuple(run for counted in results for run in counted.kernels)
        return replace(call.output(), launches=launches)

    def prepared(self, problem: Problem, inputs: Inputs, options: RunOptions) -> _DecodeCall:
        """One call on a GPU, compiled and launched once: see `conformance.kernel.Preparing`."""
        if options.engine != "cuda":
            raise UsageError(f"engine: {options.engine!r}: calls are prepared on a GPU only")
        call = self._call(problem, inputs, options, lambda result: None)
        call.launch()
        return call

    @property
    def contradictions(self) -> tuple[str, ...]:
        """What the wrapper refuses beside what `supports` says."""
        return tuple(CONTRADICTIONS)

    def run_contradictory(
        self, problem: Problem, inputs: Inputs, options: RunOptions, contradiction: str
    ) -> Output:
        """The call with a contradiction in it, which the wrapper should refuse."""
        call = self._call(problem, inputs, options, lambda result: None)
        arguments = CONTRADICTIONS[contradiction](call.arguments)
        out, lse = decode_on(call.device, arguments, call.lse)
        return Output(out.cpu(), lse.cpu())

    def run_without_buffers(self, problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        """The call whose results the wrapper makes; the LSE is made anyway, and comes back."""
        call = self._call(problem, inputs, options, lambda result: None)
        arguments = replace(call.arguments, out=None, return_lse=False)
        out, lse = decode_on(call.device, arguments)
        return Output(out.cpu(), lse.cpu())

    def _call(
        self,
        problem: Problem,
        inputs: Inputs,
        options: RunOptions,
        on_result: Callable[[Result], None],
    ) -> _DecodeCall:
        support = self.supports(problem)
        if not support.ok and not options.ask_anyway:
            raise UsageError(f"{self.name}: {support.reason}")
        device = self._device(options, on_result)
        where = torch.device("cuda" if options.engine == "cuda" else "cpu")
        needed = planning.workspace_size(
            problem, device.num_sms, options.num_splits, capability=device.capability
        )
        dims = problem.dims
        rows = (problem.batch_size, dims.seq_len_q, dims.num_heads)
        shapes = {
            "out": ((*rows, dims.kv_lora_rank), getattr(torch, problem.output_dtype)),
            "lse": (rows, torch.float32),
            "workspace_buffer": ((needed,), torch.int8),
        }
        canaries = Canaries(where) if where.type == "cuda" else None
        out, lse, workspace = (
            buffer(name, shape, dtype, options.poison, canaries)
            for name, (shape, dtype) in shapes.items()
        )
        moved = inputs if where.type == "cpu" else inputs.to(where)
        arguments = Arguments(
            query=moved.query,
            kv_cache=moved.kv_cache,
            workspace_buffer=workspace,
            kv_lora_rank=dims.kv_lora_rank,
            qk_rope_head_dim=dims.qk_rope_head_dim,
            block_tables=moved.block_tables,
            seq_lens=moved.seq_lens,
            max_seq_len=problem.planning_max_seq_len,
            softmax_scale=problem.softmax_scale,
            output_scale=problem.output_scale,
            out=out,
            is_var_seq=problem.is_var_seq,
            causal_mask=problem.mask.causal,
            enable_pdl=problem.enable_pdl,
            return_lse=True,
            causal_seqs=moved.causal_seqs,
            cp_world=problem.dcp.world,
            cp_rank=problem.dcp.rank,
            cp_interleave_size=problem.dcp.interleave_size,
            window_left=problem.mask.window_left,
            lse_base=problem.lse_base,
            num_splits=options.num_splits,
        )
        return _DecodeCall(device, arguments, moved, out, lse, canaries)

    def _device(
        self, options: RunOptions, on_result: Callable[[Result], None]
    ) -> CudaDevice | SimulatedDevice:
        if options.engine == "cuda":
            choose_engine(self, options.engine, device_arch())
            if self._transform is not None:
                raise UsageError(
                    f"engine: 'cuda': {self.name} changes the PTX; a GPU would not see it"
                )
            return CudaDevice(torch.device("cuda", torch.cuda.current_device()))
        return SimulatedDevice(
            num_sms=options.num_sms,
            policy=options.policy,
            seed=options.policy_seed,
            checks=Checks.of(*options.checks, on_finding=options.on_finding),
            transform=self._transform,
            options={
                "executor": options.executor,
                "accumulation": options.accumulation,
                "profile": options.profile,
                "coverage": options.coverage,
                "save_to": options.save_to,
            },
            on_result=on_result,
        )


def kernel(transform: Callable[[str], str] | None = None) -> Optimized:
    """This repository's kernel."""
    return Optimized(transform)
