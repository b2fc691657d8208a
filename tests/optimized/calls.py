"""A call that is served, tensors to spoil it with, and what PyTorch is asked meanwhile."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from optimized.validate import Arguments

BATCH, TOKENS, HEADS, PAGES = 3, 4, 96, 7  # 4 x 96 rows pack into 3 tiles
WIDTH, LATENT = 576, 512
FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16
ENOUGH = 2**26  # bytes of workspace for any call here that does not say otherwise


def ints(*shape: int, dtype: torch.dtype = torch.int32, device: str = "cpu") -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def values(*shape: int, dtype: torch.dtype = BF16, device: str = "cpu") -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def at(offset_bytes: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor that starts ``offset_bytes`` past a multiple of 64 bytes."""
    count = math.prod(shape) * dtype.itemsize
    room = torch.empty(count + 128, dtype=torch.int8)
    start = -room.data_ptr() % 64 + offset_bytes
    return room[start : start + count].view(dtype).view(shape)


def arguments(dtype: torch.dtype = BF16, page_size: int = 64, **changes: Any) -> Arguments:
    """A call that is served, but for ``changes``."""
    valid: dict[str, Any] = {
        "query": values(BATCH, TOKENS, HEADS, WIDTH, dtype=dtype),
        "kv_cache": values(PAGES, page_size, WIDTH, dtype=dtype),
        "workspace_buffer": at(0, ENOUGH, dtype=torch.int8),
        "kv_lora_rank": LATENT,
        "qk_rope_head_dim": 64,
        "block_tables": ints(BATCH, 5),
        "seq_lens": ints(BATCH),
        "max_seq_len": 300,
        "softmax_scale": 1 / math.sqrt(192),
    }
    return Arguments(**(valid | changes))


class Recorder(TorchDispatchMode):
    """Names the operators that PyTorch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operator(*args, **kwargs or {})
        self.names.append(operator.overloadpacket.__name__)
        return result
