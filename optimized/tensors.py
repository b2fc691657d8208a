"""What a tensor says of itself, and what can be asked of it before anything is launched.

A tensor is anything that describes itself as torch's do; no element is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from optimized.errors import refusal

TMA_BYTES = 16  # what bases and strides of a tensor map are multiples of (PTX ISA, tensor maps)


class Tensor(Protocol):
    """What is asked of a tensor."""

    @property
    def shape(self) -> Sequence[int]:
        """Entries of each dimension."""

    @property
    def dtype(self) -> object:
        """Its name is what str() gives, after ``torch.``."""

    @property
    def device(self) -> object:
        """Equal for tensors on one device."""

    def stride(self) -> Sequence[int]:
        """Elements from one entry of each dimension to the next."""

    def element_size(self) -> int:
        """Bytes of an element."""

    def data_ptr(self) -> int:
        """Address of the first element."""


@dataclass(frozen=True)
class Described:
    """One tensor argument: its name, its dimensions' names, and what it says of itself.

    Each ``require`` method raises ValueError naming the tensor, what it must be, and what it is.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    dtype: str
    device: str
    address: int
    element_bytes: int

    @staticmethod
    def of(name: str, value: Tensor, *layouts: str) -> Described:
        """The argument ``name``, laid out as the one of ``layouts`` that has its rank.

        A layout names the dimensions, with spaces between. TypeError for what is no tensor,
        ValueError for another rank.
        """
        try:
            shape, strides = tuple(value.shape), tuple(value.stride())
            dtype, device = str(value.dtype).removeprefix("torch."), str(value.device)
            address, element_bytes = value.data_ptr(), value.element_size()
        except (AttributeError, TypeError):
            kind = type(value).__name__
            raise TypeError(refusal(name, "be a tensor", f"a {kind}")) from None
        for layout in layouts:
            dims = tuple(layout.split())
            if len(dims) == len(shape):
                return Described(name, dims, shape, strides, dtype, device, address, element_bytes)
        known = " or ".join(f"[{', '.join(layout.split())}]" for layout in layouts)
        raise ValueError(refusal(name, f"have the dimensions {known}", f"the shape {shape}"))

    def require_dtype(self, *known: str) -> None:
        """One of the dtypes ``known``."""
        if self.dtype not in known:
            raise ValueError(refusal(f"{self.name}.dtype", f"be {_either(known)}", self.dtype))

    def require_device_of(self, other: Described) -> None:
        """The device of ``other``."""
        if self.device != other.device:
            limit = f"be on {other.device} as {other.name} is"
            raise ValueError(refusal(self.name, limit, self.device))

    def require_extents(self, **extents: int) -> None:
        """So many entries in the dimensions named, where the layout has them."""
        for dim, extent in extents.items():
            found = dict(zip(self.dims, self.shape, strict=True)).get(dim, extent)
            if found != extent:
                limit = f"have {extent} in dimension {self.dims.index(dim)} ({dim})"
                raise ValueError(refusal(self.name, limit, found))

    def require_alignment(self, alignment_bytes: int) -> None:
        """An address that is a multiple of ``alignment_bytes``."""
        if self.address % alignment_bytes:
            limit = f"start at a multiple of {alignment_bytes} bytes"
            raise ValueError(refusal(self.name, limit, hex(self.address)))

    def require_unit_stride(self) -> None:
        """Neighbours in the last dimension are neighbours in memory."""
        self._require_stride(len(self.shape) - 1, 1)

    def require_contiguous(self) -> None:
        """Row-major, with nothing between."""
        stride = 1
        for index in reversed(range(len(self.shape))):
            self._require_stride(index, stride)
            stride *= self.shape[index]

    def require_tensor_map(self) -> None:
        """What the tensor memory accelerator can read: aligned, along rows of neighbours."""
        self.require_unit_stride()
        self.require_alignment(TMA_BYTES)
        for index in range(len(self.shape) - 1):
            stride_bytes = self.strides[index] * self.element_bytes
            if self.shape[index] > 1 and stride_bytes % TMA_BYTES:
                limit = f"have a multiple of {TMA_BYTES} bytes as {self._stride(index)}"
                raise ValueError(refusal(self.name, limit, stride_bytes))

    def _require_stride(self, index: int, stride: int) -> None:
        if self.shape[index] > 1 and self.strides[index] != stride:
            limit = f"have {stride} element{'s' * (stride != 1)} as {self._stride(index)}"
            raise ValueError(refusal(self.name, limit, self.strides[index]))

    def _stride(self, index: int) -> str:
        return f"the stride of dimension {index} ({self.dims[index]})"


def _either(known: Sequence[str]) -> str:
    return known[0] if len(known) == 1 else f"{', '.join(known[:-1])} or {known[-1]}"
