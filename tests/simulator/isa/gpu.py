"""Runs single PTX instructions on a GPU, through the driver alone.

``Gpu.open()`` gives None where there is no driver or no device. An instruction becomes a kernel
whose threads each load their operands, execute it and store its results.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from simulator.isa.table import Entry
from simulator.isa.values import BITS, DTYPES

LANES = 32


class CompileError(Exception):
    """The driver refuses a kernel: the instruction isn't for this device."""


class Gpu:
    """The first CUDA device."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        capability = []
        for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
            number = ctypes.c_int()
            self._call("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
            capability.append(number.value)
        self.target = f"sm_{capability[0]}{capability[1]}{'a' if capability[0] >= 9 else ''}"
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    @classmethod
    def open(cls) -> Gpu | None:
        """The device, or None if this machine has none."""
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError:
            return None
        count = ctypes.c_int()
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
            return None
        return cls(driver)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: CUDA error {status}")

    def launch(
        self, source: str, arrays: Sequence[np.ndarray], threads: int, shared_bytes: int
    ) -> None:
        """Run the kernel ``k`` of a module, as one CTA, on arrays, which it may change."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        if self._driver.cuModuleLoadData(ctypes.byref(module), source.encode() + b"\0"):
            raise CompileError(source)
        self._call("cuModuleGetFunction", ctypes.byref(function), module, b"k")
        self._call("cuFuncSetAttribute", function, 8, shared_bytes)  # the most dynamic ones
        pointers = [ctypes.c_uint64() for _ in arrays]
        places = [ctypes.c_void_p(a.ctypes.data) for a in arrays]
        sizes = [ctypes.c_size_t(a.nbytes) for a in arrays]
        for pointer, place, size in zip(pointers, places, sizes, strict=True):
            self._call("cuMemAlloc_v2", ctypes.byref(pointer), size)
            self._call("cuMemcpyHtoD_v2", pointer, place, size)
        parameters = (ctypes.c_void_p * len(arrays))(*(ctypes.addressof(p) for p in pointers))
        shape = (1, 1, 1, threads, 1, 1, shared_bytes)
        self._call("cuLaunchKernel", function, *shape, None, parameters, None)
        for pointer, place, size in zip(pointers, places, sizes, strict=True):
            self._call("cuMemcpyDtoH_v2", place, pointer, size)
            self._call("cuMemFree_v2", pointer)
        self._call("cuModuleUnload", module)

    def run(self, entry: Entry, rounds: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
        """The results of each round of operands (arrays over 32 lanes) of one instruction."""
        source, result_bytes = kernel(entry, rounds, self.target)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        if self._driver.cuModuleLoadData(ctypes.byref(module), source.encode() + b"\0"):
            raise CompileError(entry.mnemonic)
        self._call("cuModuleGetFunction", ctypes.byref(function), module, b"probe")
        operands = b"".join(a.tobytes() for a in columns(entry, rounds))
        pointers = [ctypes.c_uint64(), ctypes.c_uint64()]
        for pointer, size in zip(pointers, (len(operands), result_bytes), strict=True):
            self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(size, 16)))
        self._call("cuMemcpyHtoD_v2", pointers[0], operands, ctypes.c_size_t(len(operands)))
        parameters = (ctypes.c_void_p * 2)(*(ctypes.addressof(p) for p in pointers))
        shape = (len(rounds), 1, 1, LANES, 1, 1, 0)
        self._call("cuLaunchKernel", function, *shape, None, parameters, None)
        raw = ctypes.create_string_buffer(result_bytes)
        self._call("cuMemcpyDtoH_v2", raw, pointers[1], ctypes.c_size_t(result_bytes))
        for pointer in pointers:
            self._call("cuMemFree_v2", pointer)
        self._call("cuModuleUnload", module)
        return split(entry, raw.raw, len(rounds))


# 1. Memory: each operand and each result has a column of its own, one element a thread


def stored_bytes(kind: str) -> int:
    return 1 if kind == "pred" else BITS[kind] // 8


def immediate(entry: Entry, position: int) -> bool:
    """Whether an operand has to be a constant in the text: the table of lop3."""
    return entry.mnemonic.startswith("lop3") and position == 3


def columns(entry: Entry, rounds: Sequence[Sequence[Any]]) -> list[np.ndarray]:
    """The operands in the order in which the kernel expects them."""
    out = []
    for position, slot in enumerate(entry.operands):
        if not immediate(entry, position):
            parts = [r[position] if slot.form == "vector" else (r[position],) for r in rounds]
            out += [np.concatenate([p[i] for p in parts]) for i in range(len(slot.types))]
    return out


def split(entry: Entry, raw: bytes, count: int) -> list[tuple[Any, ...]]:
    """The results of each round, as an instruction's function would give them."""
    rounds: list[list[Any]] = [[] for _ in range(count)]
    offset = 0
    for slot in entry.results:
        parts = []
        for kind in slot.types:
            size = stored_bytes(kind) * LANES
            column = np.frombuffer(raw, np.uint8, size * count, offset).reshape(count, size)
            parts.append(
                [c.astype(bool) if kind == "pred" else c.view(DTYPES[kind]) for c in column]
            )
            offset += size * count
        for i, results in enumerate(rounds):
            chosen = tuple(p[i] for p in parts)
            results.append(chosen if slot.form == "vector" else chosen[0])
    return [tuple(r) for r in rounds]


# 2. Text


def kernel(entry: Entry, rounds: Sequence[Sequence[Any]], target: str) -> tuple[str, int]:
    """The PTX of a kernel ``probe(operands, results)``, and how many bytes of results it writes."""
    threads = LANES * len(rounds)
    lines = [
        f".version 8.8\n.target {target}\n.address_size 64",
        ".visible .entry probe(.param .u64 p, .param .u64 q) {",
        ".reg .b32 t, c; .reg .b64 from, to, at; .reg .b16 bit;",
        "mov.u32 t, %tid.x; mov.u32 c, %ctaid.x; mad.lo.u32 t, c, 32, t;",
        "ld.param.u64 from, [p]; ld.param.u64 to, [q];",
    ]
    operands, offset = [], 0
    for position, slot in enumerate(entry.operands):
        if immediate(entry, position):
            operands.append(str(int(rounds[0][position][0])))
            continue
        names = [f"a{position}_{i}" for i in range(len(slot.types))]
        for name, kind in zip(names, slot.types, strict=True):
            lines += [declare(name, kind), at("from", kind, offset), load(name, kind)]
            offset += stored_bytes(kind) * threads
        operands.append(braced(slot.form, names))
    results, tail, offset = [], [], 0
    for position, slot in enumerate(entry.results):
        names = [f"d{position}_{i}" for i in range(len(slot.types))]
        for name, kind in zip(names, slot.types, strict=True):
            lines.append(declare(name, kind))
            tail += [at("to", kind, offset), store(name, kind)]
            offset += stored_bytes(kind) * threads
        results.append(braced(slot.form, names))
    lines += [f"{entry.mnemonic} {'|'.join(results)}, {', '.join(operands)};", *tail, "ret; }"]
    return "\n".join(lines), offset


def braced(form: str, names: list[str]) -> str:
    return "{" + ", ".join(names) + "}" if form == "vector" else names[0]


def declare(name: str, kind: str) -> str:
    # cvt takes its 8-bit integers from wider registers; only untyped bytes have their own.
    width = BITS[kind] if kind == "b8" else max(16, BITS[kind])
    return f".reg .{'pred' if kind == 'pred' else f'b{width}'} {name};"


def at(base: str, kind: str, offset: int) -> str:
    return f"mad.wide.u32 at, t, {stored_bytes(kind)}, {base}; add.u64 at, at, {offset};"


def load(name: str, kind: str) -> str:
    if kind == "pred":
        return f"ld.global.u8 bit, [at]; setp.ne.b16 {name}, bit, 0;"
    return f"ld.global.{access(kind)} {name}, [at];"


def store(name: str, kind: str) -> str:
    if kind == "pred":
        return f"selp.u16 bit, 1, 0, {name}; st.global.u8 [at], bit;"
    return f"st.global.{access(kind)} [at], {name};"


def access(kind: str) -> str:
    return "u8" if BITS[kind] == 8 else f"b{BITS[kind]}"
