"""`mla_decode`: one call of multi-head latent attention in decoding.

Tensors on a GPU are served there, tensors on the CPU by the simulator, through the same host code
and the same compiled object.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from optimized.compile import CudaDevice, Device, SimulatedDevice
from optimized.errors import INT32_MAX
from optimized.plan import Plan
from optimized.validate import OUT_DTYPES, Arguments, validate

__all__ = ["Arguments", "decode_on", "mla_decode"]

Tensor = torch.Tensor


def mla_decode(  # noqa: PLR0917 - the drop-in has these
    query: Tensor,  # [batch, seq_len_q, num_heads, qk_head_dim]
    kv_cache: Tensor,  # [num_pages, (1,) page_size, qk_head_dim]
    workspace_buffer: Tensor,  # [bytes]
    kv_lora_rank: int,
    qk_rope_head_dim: int,
    block_tables: Tensor,  # [batch, max_pages]
    seq_lens: Tensor,  # [batch]
    max_seq_len: int,
    softmax_scale: float,
    output_scale: float = 1.0,
    out: Tensor | None = None,  # [batch, seq_len_q, num_heads, kv_lora_rank]
    is_var_seq: bool = True,
    causal_mask: bool = True,
    enable_pdl: bool = False,
    return_lse: bool = False,
    causal_seqs: Tensor | None = None,  # [batch]
    cp_world: int = 1,
    cp_rank: int = 0,
    *,
    cp_interleave_size: int = 1,
    window_left: int = -1,
    lse_base: int | str = 2,
    num_splits: int | None = None,
    split_policy: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """The attention of each query token over its request's cached keys.

    Gives back ``out``, that very object if one was passed, or ``(out, lse)`` with ``return_lse``;
    lse is [batch, seq_len_q, num_heads] float32 in ``lse_base``. A row without a visible key is 0
    with an lse of -inf. The arguments' meaning is in docs/plan.md.
    Raises TypeError or ValueError, before anything is launched, for what `validate` refuses.
    """
    names = Arguments.__dataclass_fields__
    given = locals()
    arguments = Arguments(**{name: given[name] for name in names})
    result, lse = decode_on(_device_of(query), arguments)
    return (result, lse) if return_lse else result


def _device_of(query: Any) -> Device:
    """The device that serves a query; the simulator also gets what is no tensor, to refuse it."""
    if getattr(getattr(query, "device", None), "type", "cpu") == "cuda":
        return CudaDevice(query.device)
    return SimulatedDevice()


def decode_on(
    device: Device, arguments: Arguments, lse: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """``(out, lse)`` of a call on ``device``, in ``lse`` if given. Raises as `mla_decode` does."""
    plan = validate(arguments, device.num_sms, device.capability)
    query: Any = arguments.query
    rows = tuple(query.shape[:3])
    out: Any = arguments.out
    if out is None:
        dtype = getattr(torch, OUT_DTYPES[plan.call.dtype])
        out = query.new_empty((*rows, arguments.kv_lora_rank), dtype=dtype)
    if lse is None:
        lse = torch.empty(rows, dtype=torch.float32, device=query.device)
    if plan.call.batch_size:
        device.launch(plan.specialisation, _launch_arguments(arguments, plan, out, lse))
    return out, lse


def _launch_arguments(arguments: Arguments, plan: Plan, out: Tensor, lse: Tensor) -> list[Any]:
    """The arguments of `optimized.sm100.decode.decode`, in its order, without the stream."""
    cache: Any = arguments.kv_cache
    seq_lens: Any = arguments.seq_lens
    causal_seqs: Any = arguments.causal_seqs
    workspace: Any = arguments.workspace_buffer
    lengths = _int32(seq_lens)
    return [
        _with_strides(arguments.query),
        _with_strides(cache.squeeze(1) if cache.dim() == 4 else cache),
        _with_strides(arguments.block_tables),
        lengths,
        lengths if causal_seqs is None else _int32(causal_seqs),
        out.view(out.shape),
        lse,
        workspace.view(torch.int8),
        plan.partial_out_bytes,
        plan.tiling.heads_eff,
        plan.tiling.seq_eff,
        plan.num_splits,
        plan.split_grid[0],
        int(arguments.causal_mask),
        # A window is subtracted in int32 from a length that may be less than the tokens'.
        min(arguments.window_left, INT32_MAX - plan.call.dims.seq_len_q),
        arguments.cp_world,
        arguments.cp_rank,
        arguments.cp_interleave_size,
        float(arguments.softmax_scale),
        float(arguments.output_scale),
        1.0 if arguments.lse_base == 2 else math.log(2.0),
        int(arguments.enable_pdl),
    ]


def _int32(lengths: Tensor) -> Tensor:
    """Lengths as int32; those that are stay what they are."""
    return _with_strides(lengths.to(torch.int32))


def _with_strides(tensor: Any) -> Tensor:
    """The same elements, where a dimension of fewer than two has the stride of a row-major tensor.

    Such a stride leads nowhere, and a caller may have left anything in it; the host function
    checks it all the same.
    """
    strides, size = list(tensor.stride()), 1
    for dim in reversed(range(tensor.dim())):
        if tensor.shape[dim] < 2:
            strides[dim] = size
        size = max(size, tensor.shape[dim] * strides[dim])
    view: Tensor = tensor.as_strided(tensor.shape, strides)
    return view
