"""The published wrapper ``tokenspeed_mla_decode``, unmodified, with or without a GPU to ask."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch

from conformance.adapters.isolated import IsolatedPackage
from conformance.kernel import UsageError

PEERS = Path(__file__).parents[2] / ".peers"
CAPABILITIES = {"sm_100a": (10, 0), "sm_103a": (10, 3)}
COMPILED_FOR_SMS = 148  # of a B200: kernels are compiled for it, whatever num_sms a call plans with

Decode = Callable[..., Any]
DecodeKernel = Callable[..., None]
# Called as the wrapper calls its compile cache, but with what the cache would call put before:
# get_kernel(compile_kernel, **key).
GetKernel = Callable[..., DecodeKernel]


@dataclass(frozen=True)
class Device:
    """What the wrapper is told of a device: its architecture, as ``sm_100a``, and its SMs."""

    arch: str
    num_sms: int


class Wrapper:
    """One published version's wrapper, from the folder under ``peers`` where nox installed it."""

    def __init__(self, version: str, peers: Path) -> None:
        self._version = version
        self._folder = peers / f"tokenspeed-mla-{version}"
        self._package = IsolatedPackage(self._folder, "tokenspeed_mla")

    @contextmanager
    def untouched(self) -> Iterator[Decode]:
        """The wrapper as it is, for a machine with a GPU. UsageError if it is not installed."""
        with self._module() as module:
            yield module.tokenspeed_mla_decode

    @contextmanager
    def without_gpu(self, device: Device, get_kernel: GetKernel) -> Iterator[Decode]:
        """The wrapper with ``device`` for its GPU and its kernels had from ``get_kernel``."""
        with self._module() as module, ExitStack() as stack:
            for owner, name, value in replacements(module, device, get_kernel):
                stack.enter_context(mock.patch.object(owner, name, value))
            yield module.tokenspeed_mla_decode

    @contextmanager
    def _module(self) -> Iterator[ModuleType]:
        if not (self._folder / f"tokenspeed_mla-{self._version}.dist-info").is_dir():
            raise UsageError(
                f"tokenspeed-mla {self._version} is not in {self._folder}: run nox -s peers"
            )
        with self._package.active():
            yield self._package.module("mla_decode")


def replacements(
    module: ModuleType, device: Device, get_kernel: GetKernel
) -> tuple[tuple[ModuleType, str, Callable[..., Any]], ...]:
    """All that is replaced for a call without a GPU: (owner, name, replacement).

    Four questions to the device, and the compile cache, whose kernels could only run on one.
    """
    import tvm_ffi

    compile_kernel = module._get_compiled_mla_kernel.__wrapped__
    return (
        (torch.cuda, "get_device_capability", lambda _device: CAPABILITIES[device.arch]),
        (tvm_ffi, "use_torch_stream", ExitStack),
        (module, "get_num_sm", lambda _device: device.num_sms),
        (module, "get_max_active_clusters", lambda cluster_size: COMPILED_FOR_SMS // cluster_size),
        (module, "_get_compiled_mla_kernel", functools.partial(get_kernel, compile_kernel)),
    )
