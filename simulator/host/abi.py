"""The C structures that the exported host function receives and hands on.

Sources: DLPack ``include/dlpack/dlpack.h`` (github.com/dmlc/dlpack, BSD-like Apache-2.0 header),
TVM FFI ``include/tvm/ffi/c_api.h`` (github.com/apache/tvm-ffi), CUDA Toolkit 13.0
``driver_types.h``. Each structure names its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from types import MappingProxyType

DLPACK_CUDA = 2  # kDLCUDA: the host function asks for tensors on a CUDA device

# Element type -> (DLDataTypeCode, bits). dlpack.h, enum DLDataTypeCode.
DTYPES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "int8": (0, 8),
        "int16": (0, 16),
        "int32": (0, 32),
        "int64": (0, 64),
        "uint8": (1, 8),
        "uint16": (1, 16),
        "uint32": (1, 32),
        "uint64": (1, 64),
        "float16": (2, 16),
        "float32": (2, 32),
        "float64": (2, 64),
        "bfloat16": (4, 16),
        "bool": (6, 8),
        "float8_e4m3fn": (10, 8),
        "float8_e5m2": (12, 8),
        "float8_e8m0fnu": (14, 8),
        "float4_e2m1fn_x2": (17, 4),
    }
)


def lanes(dtype: str) -> int:
    """How many numbers one element holds."""
    return 2 if dtype.endswith("_x2") else 1


# TVM FFI type indices of the values that a host function takes. c_api.h, enum TVMFFITypeIndex.
TYPE_NONE, TYPE_INT, TYPE_BOOL, TYPE_FLOAT, TYPE_DLTENSOR_POINTER = 0, 1, 2, 3, 7


class DLDevice(ctypes.Structure):
    """dlpack.h, ``DLDevice``."""

    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class DLDataType(ctypes.Structure):
    """dlpack.h, ``DLDataType``."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class DLTensor(ctypes.Structure):
    """dlpack.h, ``DLTensor``; shape and strides count elements."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class AnyValue(ctypes.Union):
    """c_api.h, the 8-byte value of ``TVMFFIAny``."""

    _fields_ = (
        ("v_int64", ctypes.c_int64),
        ("v_float64", ctypes.c_double),
        ("v_ptr", ctypes.c_void_p),
    )


class AnyView(ctypes.Structure):
    """c_api.h, ``TVMFFIAny``; all zero is None."""

    _fields_ = (
        ("type_index", ctypes.c_int32),
        ("zero_padding", ctypes.c_uint32),
        ("value", AnyValue),
    )


# c_api.h, TVMFFISafeCallType: (handle, args, num_args, result) -> 0, or -1 after raising.
SafeCall = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.POINTER(AnyView),
    ctypes.c_int32,
    ctypes.POINTER(AnyView),
)

CUDA_SUCCESS = 0
CUDA_ERROR_LAUNCH_FAILURE = 719  # driver_types.h, cudaErrorLaunchFailure


class LaunchAttribute(ctypes.Structure):
    """driver_types.h, ``cudaLaunchAttribute``: the id, then a 64-byte union of values."""

    _fields_ = (("id", ctypes.c_int32), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint32 * 16))


class LaunchConfig(ctypes.Structure):
    """driver_types.h, ``cudaLaunchConfig_t``."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_shared_bytes", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("num_attributes", ctypes.c_uint32),
    )


# driver_types.h, enum cudaLaunchAttributeID.
ATTRIBUTE_COOPERATIVE = 2
ATTRIBUTE_CLUSTER_DIMENSION = 4
ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6
# Ignored entry, synchronization policy, cluster scheduling preference, priority, shared memory
# carve-out, NVLink hint: they steer when and where work runs, never what it computes.
ATTRIBUTES_WITHOUT_EFFECT = frozenset({0, 3, 5, 8, 14, 16})

# driver_types.h, enum cudaDeviceAttr -> the value of a compute capability 10.0 device
# (CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability").
DEVICE_ATTRIBUTES: Mapping[int, int] = MappingProxyType(
    {
        1: 1024,  # cudaDevAttrMaxThreadsPerBlock
        2: 1024,  # cudaDevAttrMaxBlockDimX
        3: 1024,  # cudaDevAttrMaxBlockDimY
        4: 64,  # cudaDevAttrMaxBlockDimZ
        5: 2**31 - 1,  # cudaDevAttrMaxGridDimX
        6: 65535,  # cudaDevAttrMaxGridDimY
        7: 65535,  # cudaDevAttrMaxGridDimZ
        8: 48 * 1024,  # cudaDevAttrMaxSharedMemoryPerBlock
        10: 32,  # cudaDevAttrWarpSize
        97: 227 * 1024,  # cudaDevAttrMaxSharedMemoryPerBlockOptin
    }
)
KERNEL_SHARED_BYTES = 1  # cuda.h, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
