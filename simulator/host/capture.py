"""What a host function asks of the CUDA runtime when it launches a kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.errors import Unsupported
from simulator.host import abi

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class CapturedLaunch:
    """One kernel launch: its extent and the raw bytes of each ``.param``, in declaration order.

    ``grid`` counts CTAs, ``block`` threads, ``cluster`` CTAs per cluster. ``params`` are copies, so
    they outlive the call. Padding inside them is whatever the host's stack held: never compare or
    hash whole parameters.
    """

    kernel: str
    grid: Dim3
    block: Dim3
    cluster: Dim3
    dynamic_shared_bytes: int
    programmatic_serialization: bool
    cooperative: bool
    params: tuple[bytes, ...]


def read_launch(
    config: abi.LaunchConfig, kernel: str, arguments: int, param_sizes: Sequence[int]
) -> CapturedLaunch:
    """The launch that a ``cudaLaunchKernelExC`` call describes.

    ``arguments`` is the address of an array of pointers, one per parameter; ``param_sizes`` are
    their sizes in bytes. Raises ``Unsupported`` for a launch attribute that would change what runs.
    """
    values = _attributes(config, kernel)
    pointers = ctypes.cast(arguments, ctypes.POINTER(ctypes.c_void_p))
    return CapturedLaunch(
        kernel=kernel,
        grid=_dim3(config.grid),
        block=_dim3(config.block),
        cluster=_dim3(values.get(abi.ATTRIBUTE_CLUSTER_DIMENSION, (1, 1, 1))),
        dynamic_shared_bytes=config.dynamic_shared_bytes,
        programmatic_serialization=bool(
            values.get(abi.ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, (0,))[0]
        ),
        cooperative=bool(values.get(abi.ATTRIBUTE_COOPERATIVE, (0,))[0]),
        params=tuple(
            ctypes.string_at(pointers[i] or 0, size) for i, size in enumerate(param_sizes)
        ),
    )


def _dim3(words: Sequence[int]) -> Dim3:
    return (words[0], words[1], words[2])


def _attributes(config: abi.LaunchConfig, kernel: str) -> dict[int, tuple[int, ...]]:
    """Attribute id -> its value as 32-bit words; the attributes without effect are left out."""
    known = {
        abi.ATTRIBUTE_COOPERATIVE,
        abi.ATTRIBUTE_CLUSTER_DIMENSION,
        abi.ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
    }
    values = {}
    for attribute in config.attributes[: config.num_attributes]:
        if attribute.id in known:
            values[attribute.id] = tuple(attribute.value)
        elif attribute.id not in abi.ATTRIBUTES_WITHOUT_EFFECT:
            raise Unsupported(f"launch of {kernel}: CUDA launch attribute {attribute.id}")
    return values
