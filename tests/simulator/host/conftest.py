"""Host objects to link: two small CuTe DSL kernels of ours, compiled once per session."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import cutlass
import numpy as np
import pytest
from cutlass import cute


@cute.kernel
def scale_kernel(src: cute.Tensor, dst: cute.Tensor, factor: cutlass.Float32):
    i = cute.arch.block_idx()[0] * 32 + cute.arch.thread_idx()[0]
    if i < src.shape[0]:
        dst[i] = src[i] * factor


@cute.jit
def scale(src: cute.Tensor, dst: cute.Tensor, factor: cutlass.Float32):
    grid = [cute.ceil_div(src.shape[0], 32), 1, 1]
    scale_kernel(src, dst, factor).launch(grid=grid, block=[32, 1, 1])


@cute.kernel
def fill_kernel(dst: cute.Tensor, value: cutlass.Int32):
    dst[cute.arch.block_idx()[0] * 64 + cute.arch.thread_idx()[0]] = value


@cute.jit
def fill(dst: cute.Tensor, value: cutlass.Int32):
    fill_kernel(dst, value).launch(
        grid=[cute.ceil_div(dst.shape[0], 64), 2, 3], block=[64, 1, 1], cluster=[1, 2, 1]
    )


@dataclass(frozen=True)
class HostObject:
    object_bytes: bytes
    kernel: str


def _export(function, *arguments) -> HostObject:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = cute.compile(function, *arguments, options="--enable-tvm-ffi --gpu-arch sm_100a")
    # The same prefix for all: most of their symbols have the same names.
    return HostObject(compiled.dump_to_object("ours"), next(iter(compiled.kernel_info)))


def _fake_vector(dtype, length):
    return cute.runtime.make_fake_compact_tensor(dtype, (length,), assumed_align=16)


@pytest.fixture(scope="session")
def scale_object() -> HostObject:
    length = cute.sym_int()
    vectors = [_fake_vector(cutlass.Float32, length) for _ in range(2)]
    return _export(scale, *vectors, cutlass.Float32(1.0))


@pytest.fixture(scope="session")
def fill_object() -> HostObject:
    return _export(fill, _fake_vector(cutlass.Int32, cute.sym_int()), cutlass.Int32(0))


@pytest.fixture
def vector():
    """A factory of 16-byte aligned one-dimensional arrays."""

    def make(length: int, dtype: str = "float32") -> np.ndarray:
        size = length * np.dtype(dtype).itemsize
        raw = np.zeros(size + 64, np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + size].view(dtype)

    return make
