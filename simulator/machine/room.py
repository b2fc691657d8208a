"""Room for the machine's memories, given back to the operating system when it is dropped.

Arrays of a few hundred kilobytes, made for each launch among small objects that live longer, leave
holes in the C library's heap that it never gives back: a long session would grow by half a
megabyte a call. So large ones are mappings of their own.
"""

from __future__ import annotations

import math
import mmap
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_LEAST: Final = 1 << 15
"""Bytes from which a mapping pays: it is made of pages and costs a call of the system."""


def room(shape: int | tuple[int, ...], dtype: npt.DTypeLike, value: int = 0) -> npt.NDArray[Any]:
    """A writable array of ``shape`` filled with ``value``."""
    kind = np.dtype(dtype)
    size = math.prod(shape if isinstance(shape, tuple) else (shape,)) * kind.itemsize
    if size < _LEAST:
        return np.full(shape, value, kind)
    array: npt.NDArray[Any] = np.frombuffer(mmap.mmap(-1, size), kind).reshape(shape)
    if value:  # fresh pages are zero
        array[...] = value
    return array
