"""The symbols of a relocatable ELF object, read without any tool of a compiler.

Layout: "Tool Interface Standard, Executable and Linking Format", version 1.2, in its 64-bit form
(System V ABI, chapters "ELF Header", "Section Header" and "Symbol Table").
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")

_IDENT = b"\x7fELF\x02\x01"  # 64-bit, little endian
_RELOCATABLE = 1
_SYMBOL_TABLE = 2
_UNDEFINED_SECTION = 0
_GLOBAL_BINDING = 1
_FUNCTION_TYPE = 2


@dataclass(frozen=True)
class Symbol:
    """One entry of the symbol table: its name, and what of its attributes linking needs."""

    name: str
    is_defined: bool
    is_global: bool
    is_function: bool


def read_symbols(object_bytes: bytes) -> tuple[Symbol, ...]:
    """The named symbols of a relocatable object, in the order of its table.

    Raises ``ValueError`` for bytes that are not a complete 64-bit little-endian ELF object.
    """
    try:
        return tuple(_symbols(object_bytes))
    except (struct.error, IndexError, ValueError) as error:
        raise ValueError(
            f"host object of {len(object_bytes)} bytes is not a complete ELF object: {error}"
        ) from error


def _symbols(data: bytes) -> Iterator[Symbol]:
    header = _HEADER.unpack_from(data)
    if not header[0].startswith(_IDENT) or header[1] != _RELOCATABLE:
        raise ValueError("the header is not that of a 64-bit little-endian relocatable file")
    table_offset, entry_bytes, count = header[6], header[11], header[12]
    sections = [_SECTION.unpack_from(data, table_offset + i * entry_bytes) for i in range(count)]
    for _, kind, _, _, offset, size, link, _, _, _ in sections:
        if kind == _SYMBOL_TABLE:
            names_offset = sections[link][4]
            for position in range(offset, offset + size, _SYMBOL.size):
                name, info, _, section, _, _ = _SYMBOL.unpack_from(data, position)
                start = names_offset + name
                text = data[start : data.index(b"\0", start)].decode()
                if text:
                    yield Symbol(
                        name=text,
                        is_defined=section != _UNDEFINED_SECTION,
                        is_global=info >> 4 == _GLOBAL_BINDING,
                        is_function=info & 0xF == _FUNCTION_TYPE,
                    )
