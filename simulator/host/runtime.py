"""The runtime symbols that an exported host object needs, bound to functions of ours.

CuTe DSL objects call a thin layer over the CUDA runtime (``_cuda…``, ``cuda_dialect_…``; declared
by ``cutlass/cutlass_dsl/tvm_ffi_provider.py`` and ``CuteDSLRuntime.h`` of nvidia-cutlass-dsl 4.8)
and TVM FFI's error functions (``tvm/ffi/c_api.h``). LLVM keeps added symbols for the whole process,
so each is bound once and acts on the call in progress; a lock admits one call at a time.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm

from simulator.errors import HostError, Unsupported
from simulator.host import abi
from simulator.host.capture import CapturedLaunch, read_launch

_INT, _POINTER = ctypes.c_int32, ctypes.c_void_p
_INT_OUT, _POINTER_OUT = ctypes.POINTER(_INT), ctypes.POINTER(_POINTER)
_TEXT, _TEXTS = ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p)
_INIT_LIBRARY = ctypes.CFUNCTYPE(_INT, _POINTER_OUT)
_LOAD_LIBRARY = ctypes.CFUNCTYPE(_INT, _POINTER_OUT, _INT)


@dataclass
class Call:
    """One call of a host function: what it asks for, and what went wrong in it.

    ``error`` is an exception raised while the host function waited for one of our functions: it
    cannot cross the C frames, so the caller raises it afterwards. ``refusal`` is the message that
    the host function set before it returned an error. ``kernels`` lists the names of the program's
    kernels, as far as its object has asked for them; it outlives the call, for an object asks once.
    """

    param_sizes: Mapping[str, Sequence[int]]
    on_launch: Callable[[CapturedLaunch], None]
    kernels: list[str]
    error: BaseException | None = None
    refusal: str | None = None

    def launch(self, config: Any, kernel: int, arguments: int) -> int:
        """Hands a launch to ``on_launch``."""
        name = self.kernels[kernel - 1]
        if name not in self.param_sizes:
            raise HostError(
                f"the host function launches kernel {name}, which is not in the PTX; "
                f"the PTX has {[*self.param_sizes]}"
            )
        self.on_launch(read_launch(config.contents, name, arguments, self.param_sizes[name]))
        return abi.CUDA_SUCCESS

    def library_load_data(self, library: Any, code: int, *_: object) -> int:
        """Takes the address of the embedded binary for the library's handle; it is never read."""
        library[0] = code
        return abi.CUDA_SUCCESS

    def library_get_kernel(self, kernel: Any, _library: int, name: bytes) -> int:
        """Gives the name's position in ``kernels``, counted from 1, for the kernel's handle."""
        self.kernels.append(name.decode())
        kernel[0] = len(self.kernels)
        return abi.CUDA_SUCCESS

    def get_device(self, device: Any) -> int:
        """There is one device, number 0."""
        device[0] = 0
        return abi.CUDA_SUCCESS

    def device_get_attribute(self, value: Any, attribute: int, _device: int) -> int:
        """The limits of a compute capability 10.0 device."""
        if attribute not in abi.DEVICE_ATTRIBUTES:
            raise Unsupported(f"the host function asks for CUDA device attribute {attribute}")
        value[0] = abi.DEVICE_ATTRIBUTES[attribute]
        return abi.CUDA_SUCCESS

    def kernel_get_attribute(self, value: Any, attribute: int, _kernel: int, _device: int) -> int:
        """No static shared memory: what a kernel declares is counted when it is launched."""
        if attribute != abi.KERNEL_SHARED_BYTES:
            raise Unsupported(f"the host function asks for CUDA kernel attribute {attribute}")
        value[0] = 0
        return abi.CUDA_SUCCESS

    def init_library_once(self, state: Any, init: int, load: int, _set_error: int) -> int:
        """Runs the object's own loading functions, on its first call only."""
        if state[0]:
            return abi.CUDA_SUCCESS
        library = _POINTER(None)
        status = _INIT_LIBRARY(init)(ctypes.byref(library))
        if status == abi.CUDA_SUCCESS:
            status = _LOAD_LIBRARY(load)(ctypes.byref(library), 0)
        if status == abi.CUDA_SUCCESS:
            state[0] = library.value
        return int(status)

    def accept(self, *_: object) -> int:
        """Succeeds at something that has no effect here, such as raising a limit."""
        return abi.CUDA_SUCCESS

    def no_stream(self, *_: object) -> int:
        """The default stream."""
        return 0

    def refuse(self, kind: bytes, message: bytes) -> None:
        """Keeps the message of a host function that refuses its arguments."""
        self.refusal = f"{kind.decode()}: {message.decode()}"

    def refuse_in_parts(self, kind: bytes, parts: Any, num_parts: int) -> None:
        """The same with the message in parts, any of which may be missing."""
        self.refuse(kind, b"".join(parts[i] or b"" for i in range(num_parts)))

    def cuda_error(self, _set_error: int, code: int, *_: object) -> None:
        """Keeps the code of a CUDA call that failed."""
        self.refusal = f"CUDA error {code}"


# Symbol -> (what does it, result, arguments).
_SYMBOLS: dict[str, tuple[Callable[..., int | None], Any, tuple[Any, ...]]] = {
    "_cudaLaunchKernelEx": (
        Call.launch, _INT, (ctypes.POINTER(abi.LaunchConfig), _POINTER, _POINTER)
    ),
    "_cudaLibraryLoadData": (
        Call.library_load_data,
        _INT,
        (_POINTER_OUT, *[_POINTER] * 3, ctypes.c_uint32, *[_POINTER] * 2, ctypes.c_uint32),
    ),
    "_cudaLibraryGetKernel": (Call.library_get_kernel, _INT, (_POINTER_OUT, _POINTER, _TEXT)),
    "_cudaGetDevice": (Call.get_device, _INT, (_INT_OUT,)),
    "_cudaSetDevice": (Call.accept, _INT, (_INT,)),
    "_cudaDeviceGetAttribute": (Call.device_get_attribute, _INT, (_INT_OUT, _INT, _INT)),
    "_cuKernelGetAttribute": (Call.kernel_get_attribute, _INT, (_INT_OUT, _INT, _POINTER, _INT)),
    "_cudaKernelSetAttributeForDevice": (Call.accept, _INT, (_POINTER, _INT, _INT, _INT)),
    "_cudaFuncSetAttribute": (Call.accept, _INT, (_POINTER, _INT, _INT)),
    "cuda_dialect_init_library_once": (
        Call.init_library_once, _INT, (_POINTER_OUT, _POINTER, _POINTER, _POINTER)
    ),
    "cuda_dialect_unload_library_once": (Call.accept, None, (_POINTER,)),
    "CuteDSLRT_TVMFFISetRaisedCudaError": (Call.cuda_error, None, (_POINTER, _INT)),
    "TVMFFIEnvGetStream": (Call.no_stream, _POINTER, (_INT, _INT)),
    "TVMFFIErrorSetRaisedFromCStr": (Call.refuse, None, (_TEXT, _TEXT)),
    "TVMFFIErrorSetRaisedFromCStrParts": (Call.refuse_in_parts, None, (_TEXT, _TEXTS, _INT)),
}  # fmt: skip


class Runtime:
    """The process's one set of bound symbols, and the call in progress that they act on."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._call: Call | None = None
        self._callbacks = {
            name: ctypes.CFUNCTYPE(result, *arguments)(self._carrying_over(function))
            for name, (function, result, arguments) in _SYMBOLS.items()
        }
        for name, callback in self._callbacks.items():
            llvm.add_symbol(name, ctypes.cast(callback, ctypes.c_void_p).value)

    @property
    def symbols(self) -> frozenset[str]:
        """The names that an object may leave undefined."""
        return frozenset(self._callbacks)

    @contextmanager
    def serving(self, call: Call) -> Iterator[None]:
        """Makes ``call`` the one in progress. Other threads wait; a call from a launch nests."""
        with self._lock:
            before, self._call = self._call, call
            try:
                yield
            finally:
                self._call = before

    def _carrying_over(self, function: Callable[..., int | None]) -> Callable[..., int | None]:
        def callback(*arguments: Any) -> int | None:
            call = self._call
            if call is None or call.error is not None:
                return abi.CUDA_ERROR_LAUNCH_FAILURE
            try:
                return function(call, *arguments)
            except BaseException as error:
                call.error = error
                return abi.CUDA_ERROR_LAUNCH_FAILURE

        return callback


@functools.cache
def runtime() -> Runtime:
    """The process's runtime, bound at first use."""
    return Runtime()
