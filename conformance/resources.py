"""What a compiled kernel takes of the machine, read from the device code inside its host object.

The host object that the CuTe DSL exports carries the device code as an ELF file. Its ``.nv.info``
sections hold attributes, four bytes of head each: format, attribute, and two bytes of value or
size. The codes were matched with what ``ptxas -v`` says of the same PTX, and a test does so again.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

MAGIC = b"\x7fELF"
CUDA_MACHINE = (190).to_bytes(2, "little")  # e_machine of device code
MACHINE_OFFSET = 18  # of e_machine in the head of an ELF file
SIZED = 4  # the format of an attribute whose value follows
REGISTERS, FRAME_BYTES, LEAST_STACK_BYTES = 0x2F, 0x11, 0x12


@dataclass(frozen=True)
class Resources:
    """What one kernel takes: registers a thread, and bytes of local memory a thread.

    Local memory holds the stack: spilled registers and arrays that are not in registers. With none
    there can be no spill.
    """

    kernel: str
    registers: int
    local_bytes: int


def resources(host_object: bytes) -> tuple[Resources, ...]:
    """Return what each kernel in a host object takes; ValueError where it has no device code."""
    found = [entry for image in _images(host_object) for entry in _of_image(image)]
    if not found:
        raise ValueError(f"host_object: no device code in its {len(host_object)} bytes")
    return tuple(sorted(found, key=lambda entry: entry.kernel))


def _images(host_object: bytes) -> Iterator[bytes]:
    """Yield the ELF files of device code inside a host object, each with all that follows it."""
    start = host_object.find(MAGIC)
    while start >= 0:
        head = host_object[start : start + MACHINE_OFFSET + 2]
        if head[MACHINE_OFFSET:] == CUDA_MACHINE:
            yield host_object[start:]
        start = host_object.find(MAGIC, start + 1)


def _of_image(image: bytes) -> Iterator[Resources]:
    elf = ELFFile(io.BytesIO(image))
    symbols, info = elf.get_section_by_name(".symtab"), elf.get_section_by_name(".nv.info")
    if not isinstance(symbols, SymbolTableSection) or info is None:
        return
    values: dict[int, dict[int, int]] = {}
    for attribute, symbol, value in _attributes(info.data()):
        values.setdefault(symbol, {})[attribute] = value
    for symbol, known in values.items():
        if REGISTERS in known:
            local = max(known.get(FRAME_BYTES, 0), known.get(LEAST_STACK_BYTES, 0))
            yield Resources(symbols.get_symbol(symbol).name, known[REGISTERS], local)


def _attributes(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (attribute, symbol, value) of those that give a function a number."""
    at = 0
    while at < len(data):
        kind, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if kind == SIZED:
            if size == 8:
                yield (attribute, *struct.unpack_from("<II", data, at))
            at += size
