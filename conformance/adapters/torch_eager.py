"""Plain PyTorch, as a kernel: keys gathered from their pages, two matrix products and a softmax.

No kernel of its own, and no other algorithm than the definition, all of it in float32. It runs
where PyTorch runs, so that the suite has something that is right on any machine: on a GPU of any
architecture it takes the engine cuda through everything that only a GPU can show, before a kernel
for that GPU exists. On the engine simulator it runs on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

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
from reference.inputs import Inputs
from reference.problem import Problem

DTYPES = ("bfloat16", "float16")
TILE_KEYS = 128
MOST_SCORES = 2**28  # of a call: about a gigabyte in float32


class TorchEager:
    """The definition in PyTorch operations; a `conformance.kernel.Kernel` that can be prepared."""

    name = "torch-eager"
    arches = ("sm_90a", "sm_100a", "sm_103a")
    algorithm = Algorithm(
        p_scale=1.0, rescale_threshold=0.0, tile_n=128, lse_base=2, split_rule="one", casts_p=False
    )
    limits = Limits()

    def supports(self, problem: Problem) -> Support:
        """Whether the scores of the call fit into memory, and its dtype is one of 16 bits."""
        if problem.dtype not in DTYPES:
            return Support(False, f"dtype must be one of {', '.join(DTYPES)}, got {problem.dtype}")
        dims = problem.dims
        rows = problem.batch_size * dims.seq_len_q * dims.num_heads
        scores = rows * problem.planning_max_seq_len
        if scores > MOST_SCORES:
            return Support(False, f"scores of the call must be at most {MOST_SCORES}, got {scores}")
        return Support(True)

    def plan(self, problem: Problem, num_sms: int) -> Plan:
        """One split, no workspace."""
        return Plan(1, 0)

    def specialisation_key(self, problem: Problem) -> Hashable:
        """Nothing is compiled."""
        return ()

    def compile(self, problem: Problem, arch: str) -> Compiled:
        """Raise UsageError: there is nothing to compile."""
        raise UsageError(f"{self.name}: nothing is compiled for {arch}")

    def run(self, problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        """Run one call, whatever number of splits is asked for."""
        call = self._call(problem, inputs, options)
        call.launch()
        return call.output()

    def prepared(self, problem: Problem, inputs: Inputs, options: RunOptions) -> _Call:
        """One call on a GPU, launched once: see `conformance.kernel.Preparing`."""
        if options.engine != "cuda":
            raise UsageError(f"engine: {options.engine!r}: calls are prepared on a GPU only")
        call = self._call(problem, inputs, options)
        call.launch()
        return call

    def _call(self, problem: Problem, inputs: Inputs, options: RunOptions) -> _Call:
        support = self.supports(problem)
        if not support.ok and not options.ask_anyway:
            raise UsageError(f"{self.name}: {support.reason}")
        where = torch.device("cpu")
        if options.engine == "cuda":
            choose_engine(self, options.engine, device_arch())
            where = torch.device("cuda", torch.cuda.current_device())
        canaries = Canaries(where) if where.type == "cuda" else None
        dims = problem.dims
        rows = (problem.batch_size, dims.seq_len_q, dims.num_heads)
        dtype = getattr(torch, problem.output_dtype)
        out = buffer("out", (*rows, dims.kv_lora_rank), dtype, options.poison, canaries)
        lse = buffer("lse", rows, torch.float32, options.poison, canaries)
        moved = inputs if where.type == "cpu" else inputs.to(where)
        return _Call(problem, moved, out, lse, canaries)


@dataclass(frozen=True, eq=False)
class _Call:
    """One call with all its tensors; lengths and tables are read on the device, at each launch."""

    problem: Problem
    inputs: Inputs
    out: Tensor
    lse: Tensor
    canaries: Canaries | None

    def launch(self) -> None:
        """Compute `out` and `lse`, on PyTorch's current stream."""
        if not self.problem.batch_size:
            return
        out, lse = _decode(self.problem, self.inputs)
        self.out.copy_(out)
        self.lse.copy_(lse)

    def output(self) -> Output:
        """What the launches before have left, on the CPU."""
        strayed = self.canaries.written() if self.canaries is not None else ()
        return Output(self.out.cpu(), self.lse.cpu(), strayed=strayed)


def _decode(problem: Problem, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """`out` [batch, seq_len_q, num_heads, kv_lora_rank] and `lse` of a call, in float32."""
    seen = _visible(problem, inputs)  # [batch, seq_len_q, keys]
    keys = _gathered(problem, inputs, seen.any(dim=1)).float()  # [batch, keys, qk_head_dim]
    parts = [
        _request(problem, inputs.query[request].float(), keys[request], seen[request])
        for request in range(problem.batch_size)
    ]
    out, lse = (torch.stack(tensors) for tensors in zip(*parts, strict=True))
    return out * problem.output_scale, lse if problem.lse_base == 2 else lse * math.log(2.0)


def _request(
    problem: Problem,
    query: Tensor,  # [seq_len_q, num_heads, qk_head_dim]
    keys: Tensor,  # [keys, qk_head_dim]
    seen: Tensor,  # [seq_len_q, keys]
) -> tuple[Tensor, Tensor]:
    """`out` and `lse` in base 2 of one request.

    Products have the shape of a tile, whatever the call: a library may choose its order of sums by
    the shape, and a request would depend on its batch mates and on max_seq_len.
    """
    scale = problem.softmax_scale * math.log2(math.e)
    scores = [
        (query @ keys[tile].T * scale).masked_fill(~seen[:, None, tile], -math.inf)
        for tile in _tiles(len(keys))
    ]
    top = torch.stack([tile.amax(dim=-1) for tile in scores]).amax(dim=0)
    base = torch.where(top == -math.inf, 0.0, top)[..., None]
    total, out = torch.zeros_like(top), torch.zeros_like(query[..., : problem.dims.kv_lora_rank])
    for tile, part in zip(_tiles(len(keys)), scores, strict=True):
        weights = torch.exp2(part - base)
        total = total + weights.sum(dim=-1)
        out = out + weights @ keys[tile, : problem.dims.kv_lora_rank]
    out = torch.where(total[..., None] == 0.0, 0.0, out / total[..., None])
    return out, top + total.log2()


def _tiles(num_keys: int) -> list[slice]:
    return [slice(start, start + TILE_KEYS) for start in range(0, num_keys, TILE_KEYS)]


def _padded(problem: Problem) -> int:
    """Keys of a request in whole tiles."""
    return -(-problem.planning_max_seq_len // TILE_KEYS) * TILE_KEYS


def _visible(problem: Problem, inputs: Inputs) -> Tensor:
    """Which keys each token sees: bool [batch, seq_len_q, keys]."""
    device, dcp, mask = inputs.query.device, problem.dcp, problem.mask
    key = torch.arange(_padded(problem), device=device)
    size = dcp.interleave_size
    position = (key // size * dcp.world + dcp.rank) * size + key % size
    lengths = inputs.seq_lens.long()
    contexts = lengths if inputs.causal_seqs is None else inputs.causal_seqs.long()
    tokens = torch.arange(problem.dims.seq_len_q, device=device)
    own = contexts[:, None] - problem.dims.seq_len_q + tokens  # [batch, seq_len_q]
    seen = (key < lengths[:, None]) & (position < contexts[:, None])
    seen = seen[:, None, :].expand(-1, len(tokens), -1)
    if mask.causal:
        seen = seen & (position <= own[..., None])
    if mask.window_left >= 0:
        seen = seen & (position >= own[..., None] - mask.window_left)
    return seen


def _gathered(problem: Problem, inputs: Inputs, used: Tensor) -> Tensor:
    """The requests' keys in order, [batch, keys, qk_head_dim]; zero where nobody sees one."""
    cache, tables = inputs.kv_cache, inputs.block_tables
    pages = cache.squeeze(1) if cache.dim() == 4 else cache
    key = torch.arange(_padded(problem), device=cache.device)
    column = (key // problem.page_size).clamp(max=tables.shape[1] - 1)
    page = torch.where(used, tables[:, column].long(), 0)
    rows = pages[page, key % problem.page_size]
    return torch.where(used[..., None], rows, torch.zeros((), dtype=rows.dtype, device=rows.device))


def kernel() -> TorchEager:
    """The definition in PyTorch."""
    return TorchEager()
