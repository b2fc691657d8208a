"""A tensor argument of a simulated launch: a view of memory that somebody else owns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulator.host.abi import DTYPES, lanes


@dataclass(frozen=True)
class Tensor:
    """A strided view of host memory that a kernel takes for device memory.

    ``pointer`` is the address of element 0, ``shape`` and ``strides`` count elements. The view lies
    in an allocation of ``storage_bytes`` bytes at ``storage_pointer``; ``owner`` keeps it alive.
    ``strict`` asks that a kernel touch only elements of the view, not the rest of its allocation.
    ``initialised=False`` says that the contents mean nothing until the kernel has written them.
    """

    name: str
    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    storage_pointer: int
    storage_bytes: int
    owner: object = field(repr=False, compare=False)
    strict: bool = False
    initialised: bool = True

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"tensor {self.name}: dtype {self.dtype} is not one of {[*DTYPES]}")
        if len(self.shape) != len(self.strides):
            raise ValueError(
                f"tensor {self.name}: shape {self.shape} and strides {self.strides} differ in rank"
            )

    @property
    def item_bytes(self) -> int:
        """Size of one element in bytes."""
        return DTYPES[self.dtype][1] * lanes(self.dtype) // 8

    @classmethod
    def of(cls, obj: Any, name: str, *, strict: bool = False, initialised: bool = True) -> Tensor:
        """The tensor that a numpy array or a torch CPU tensor is; no data are copied.

        Accepts whatever has ``data_ptr`` and ``untyped_storage`` (torch) or is an ``ndarray``.
        Raises ``TypeError`` for anything else, ``ValueError`` for memory of another device, for a
        stride that is no multiple of the element, and for an element type without a DLPack code.
        """
        describe = _describe_torch if hasattr(obj, "untyped_storage") else _describe_numpy
        return cls(
            name=name, owner=obj, strict=strict, initialised=initialised, **describe(obj, name)
        )


def _describe_torch(obj: Any, name: str) -> dict[str, Any]:
    if obj.device.type != "cpu":
        raise ValueError(
            f"tensor {name}: device {obj.device}; the simulator reads host memory only"
        )
    storage = obj.untyped_storage()
    return {
        "pointer": obj.data_ptr(),
        "shape": tuple(obj.shape),
        "strides": tuple(obj.stride()),
        "dtype": str(obj.dtype).removeprefix("torch."),
        "storage_pointer": storage.data_ptr(),
        "storage_bytes": storage.nbytes(),
    }


def _describe_numpy(obj: Any, name: str) -> dict[str, Any]:
    if not isinstance(obj, np.ndarray):
        raise TypeError(
            f"tensor {name}: {type(obj).__name__} is neither a numpy array nor a tensor"
        )
    if any(stride % obj.itemsize for stride in obj.strides):
        raise ValueError(
            f"tensor {name}: strides {obj.strides} bytes are not multiples of {obj.itemsize} bytes"
        )
    base = obj
    while isinstance(base.base, np.ndarray):
        base = base.base
    start, end = np.lib.array_utils.byte_bounds(base)
    return {
        "pointer": obj.ctypes.data,
        "shape": obj.shape,
        "strides": tuple(stride // obj.itemsize for stride in obj.strides),
        "dtype": obj.dtype.name,
        "storage_pointer": start,
        "storage_bytes": end - start,
    }
