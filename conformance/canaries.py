"""Buffers with bytes before and after them that nobody may write, for kernels on a GPU.

The simulator knows where each tensor ends and stops a store beyond it. A GPU does not, so that an
output or workspace of exactly the size asked for is laid between two guards, whose bytes are looked
at after the call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from conformance.kernel import poisoned

GUARD_BYTES = 64 * 1024  # before and after: a multiple of every alignment that a kernel asks for
CANARY = 0x5A


class Canaries:
    """Allocates buffers between guards, and says which guards were written."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._whole: dict[str, Tensor] = {}

    def empty(self, name: str, shape: Sequence[int], dtype: torch.dtype, poison: bool) -> Tensor:
        """A contiguous buffer of zeros, or of poison, in the middle of an allocation of its own."""
        count = torch.Size(shape).numel() * dtype.itemsize
        whole = torch.full((count + 2 * GUARD_BYTES,), CANARY, dtype=torch.uint8)
        whole = self._whole[name] = whole.to(self._device)
        buffer = whole[GUARD_BYTES : GUARD_BYTES + count].view(dtype).view(tuple(shape))
        return poisoned(buffer) if poison else buffer.zero_()

    def written(self) -> tuple[str, ...]:
        """Where guards were written, in words: the first byte of each and how many."""
        return tuple(text for name, whole in self._whole.items() for text in _written(name, whole))


def buffer(
    name: str,
    shape: Sequence[int],
    dtype: torch.dtype,
    poison: bool,
    canaries: Canaries | None = None,
) -> Tensor:
    """A contiguous buffer of zeros, or of poison: between guards on a GPU, exact on the CPU."""
    if canaries is not None:
        return canaries.empty(name, shape, dtype, poison)
    plain = torch.zeros(tuple(shape), dtype=dtype)
    return poisoned(plain) if poison else plain


def _written(name: str, whole: Tensor) -> list[str]:
    found = []
    for side, guard in (("before", whole[:GUARD_BYTES]), ("after", whole[-GUARD_BYTES:])):
        places = (guard != CANARY).nonzero().flatten().tolist()
        if places:
            away = GUARD_BYTES - places[-1] if side == "before" else places[0] + 1
            found.append(f"{len(places)} bytes {side} {name}, the nearest {away} bytes away")
    return found
