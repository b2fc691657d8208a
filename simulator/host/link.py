"""Links an exported host object in this process, with no compiler and no CUDA, and calls it.

A CuTe DSL kernel compiled with ``--enable-tvm-ffi`` exports an object (``dump_to_object``) whose
entry checks the arguments, encodes tensor maps, plans the launch and launches. That object runs as
it is: LLVM's MCJIT loads it and ``simulator.host.runtime`` stands in for the CUDA runtime.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import llvmlite.binding as llvm

from simulator.errors import HostError, Unsupported
from simulator.host import abi
from simulator.host.capture import CapturedLaunch
from simulator.host.elf import Symbol, read_symbols
from simulator.host.runtime import Call, runtime
from simulator.host.tensor import Tensor

Argument = Tensor | int | float | bool | None

_ENTRY_MARK = "__tvm_ffi_"
_WRAPPER_MARK = "_mlir_"  # each function has a twin of this prefix that takes one packed pointer
_LINKER_SYMBOLS = frozenset({"_GLOBAL_OFFSET_TABLE_"})


class HostProgram:
    """A linked host object. It holds its code in memory until it is garbage collected.

    Calls from several threads take turns: the runtime symbols are the process's (see ``runtime``).
    """

    def __init__(self, engine: Any, entry: str, object_bytes: bytes) -> None:
        self._engine = engine
        self.object_bytes = object_bytes
        self._function = abi.SafeCall(engine.get_function_address(entry))
        self._kernels: list[str] = []
        self.entry = entry

    @classmethod
    def load(cls, object_bytes: bytes, entry: str | None = None) -> HostProgram:
        """The program that ``object_bytes`` holds, ready to be called at ``entry``.

        ``entry`` names a ``…__tvm_ffi_…`` symbol; None takes the only one there is. Nothing of the
        object runs here. Raises ``ValueError`` if it is not an ELF object or has no such entry,
        ``Unsupported`` naming every runtime symbol it needs that the simulator does not provide.
        """
        symbols = read_symbols(object_bytes)
        name = _find_entry(symbols, entry)
        _refuse_unknown(symbols)
        return cls(_link(object_bytes), name, object_bytes)

    def call(
        self,
        args: Sequence[Argument],
        param_sizes: Mapping[str, Sequence[int]],
        on_launch: Callable[[CapturedLaunch], None],
    ) -> None:
        """Runs the host function on ``args``; ``on_launch`` gets each launch, in order.

        ``param_sizes`` gives each kernel's ``.param`` sizes in bytes, as the PTX declares them.
        Raises ``HostError`` with the host function's own message when it refuses, and whatever
        ``on_launch`` raises; nothing more is launched after that.
        """
        call = Call(param_sizes, on_launch, self._kernels)
        packed, keep_alive = _pack(args)
        with runtime().serving(call):
            status = self._function(None, packed, len(args), ctypes.byref(abi.AnyView()))
        del keep_alive
        if call.error is not None:
            raise call.error
        if status != abi.CUDA_SUCCESS:
            raise HostError(call.refusal or f"the host function returned {status} without a reason")


def _find_entry(symbols: Sequence[Symbol], entry: str | None) -> str:
    entries = [
        symbol.name
        for symbol in symbols
        if symbol.is_defined and symbol.is_global and symbol.is_function
        if _ENTRY_MARK in symbol.name and not symbol.name.startswith(_WRAPPER_MARK)
    ]
    if entry is None and len(entries) == 1:
        return entries[0]
    if entry is not None and entry in entries:
        return entry
    raise ValueError(
        f"entry {entry}: the host object exports {entries or 'no __tvm_ffi_ function'}"
    )


def _refuse_unknown(symbols: Sequence[Symbol]) -> None:
    needed = {symbol.name for symbol in symbols if not symbol.is_defined}
    unknown = sorted(needed - runtime().symbols - _LINKER_SYMBOLS)
    if unknown:
        # LLVM would end the process here.
        raise Unsupported(f"the host object needs {', '.join(unknown)}")


def _link(object_bytes: bytes) -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # The objects are compiled position-independent for the large code model: data may lie anywhere.
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(codemodel="large", reloc="pic")
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(object_bytes))
    engine.finalize_object()
    return engine


def _pack(args: Sequence[Argument]) -> tuple[Any, list[object]]:
    """The arguments as an array of TVM FFI values, and what must outlive the call."""
    packed = (abi.AnyView * len(args))()
    keep_alive: list[object] = []
    for position, (slot, value) in enumerate(zip(packed, args, strict=True)):
        if isinstance(value, Tensor):
            tensor = _dl_tensor(value)
            keep_alive.append(tensor)
            slot.type_index, slot.value.v_ptr = abi.TYPE_DLTENSOR_POINTER, ctypes.addressof(tensor)
        elif isinstance(value, bool):
            slot.type_index, slot.value.v_int64 = abi.TYPE_BOOL, value
        elif isinstance(value, int):
            slot.type_index, slot.value.v_int64 = abi.TYPE_INT, value
        elif isinstance(value, float):
            slot.type_index, slot.value.v_float64 = abi.TYPE_FLOAT, value
        elif value is not None:
            raise TypeError(
                f"argument {position} of type {type(value).__name__} is not one of {Argument}"
            )
    return packed, keep_alive


def _dl_tensor(tensor: Tensor) -> abi.DLTensor:
    code, bits = abi.DTYPES[tensor.dtype]
    rank = len(tensor.shape)
    return abi.DLTensor(
        data=tensor.pointer,
        device=abi.DLDevice(abi.DLPACK_CUDA, 0),
        ndim=rank,
        dtype=abi.DLDataType(code, bits, abi.lanes(tensor.dtype)),
        shape=(ctypes.c_int64 * rank)(*tensor.shape),
        strides=(ctypes.c_int64 * rank)(*tensor.strides),
        byte_offset=0,
    )
