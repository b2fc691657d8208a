"""The accumulation strategies of ``numerics.accumulate`` as native code, where there is some."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from simulator.codegen.bulk_copy import TMA_LOAD, emit_bulk_copy
from simulator.codegen.dot_product import EXPONENTS, SUMS, DotCall
from simulator.codegen.library import Library, shared_library
from simulator.codegen.tensor_core import MMA, emit_tensor_core
from simulator.numerics.accumulate import FUSED_MODELS, STRATEGIES, Accumulate, FusedModel
from simulator.numerics.formats import Floats, Format

_STEP_LIMIT = 32
_COLUMNS = 8
_F32_CUT = -1 << 29
"""Of a float64 what float32 holds too."""

Prototype = Callable[[Any], int]


def strategy(name: str) -> Accumulate:
    """The fastest implementation of the strategy called ``name``.

    ``ValueError`` if there is none of that name.
    """
    if name in FUSED_MODELS:
        return Fused(FUSED_MODELS[name])
    if name not in STRATEGIES:
        raise ValueError(f"accumulation {name!r} is none of {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def engines(library: Library) -> dict[str, int]:
    """The addresses of the functions of tensor core and TMA unit, by symbol."""
    symbols = (EXPONENTS, SUMS, *MMA.values(), TMA_LOAD)
    return library.functions_of("engines", _emit_engines, symbols)


def _emit_engines(module: ir.Module) -> None:
    emit_tensor_core(module)
    emit_bulk_copy(module)


@functools.cache
def _function(symbol: str) -> Prototype:
    """One of them, of the library that this process shares."""
    return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(engines(shared_library())[symbol])


class Fused:
    """A fused model; an ``Accumulate``."""

    def __init__(self, model: FusedModel) -> None:
        self.model = model

    def __call__(
        self, a: Floats, b: Floats, c: Floats | None, *, step: int, formats: tuple[Format, Format]
    ) -> Floats:
        """The accumulator after ``a @ b.T`` was added, in fused steps."""
        (m, k), n = a.shape, len(b)
        if step > _STEP_LIMIT or n == 0 or m == 0:
            raise ValueError(f"step {step} of a fused sum of shape {m} x {n}: at most 32 products")
        columns = -(-n // _COLUMNS) * _COLUMNS
        total = np.zeros((m, columns), np.float32)
        if c is not None:
            total[:, :n] = c
        for start in range(0, k, step):
            part = slice(start, start + step)
            rows = _padded(a[:, part], 1, _COLUMNS)
            self._add(rows, _padded(b[:, part], _COLUMNS, _COLUMNS).T, total, formats)
        return total[:, :n]

    def _add(self, a: Floats, b: Floats, total: Floats, formats: tuple[Format, Format]) -> None:
        """One fused step, in place: ``a`` [m, k], ``b`` [k, n]."""
        b = np.ascontiguousarray(b)
        room = np.empty(a.size + b.size, np.int16)
        address, stride = _address(total), total.shape[1]
        call = DotCall(
            a=_address(a), b=_address(b), c=address, d=address,
            b_stride=stride, c_stride=stride, d_stride=stride,
            m=len(a), n=stride, k=a.shape[1],
            a_exponents=_address(room), b_exponents=_address(room[a.size :]),
            min_a=formats[0].min_exponent, min_b=formats[1].min_exponent,
            fraction=self.model.bits(formats), mask=_F32_CUT,
        )  # fmt: skip
        for symbol in (EXPONENTS, SUMS):
            _function(symbol)(ctypes.byref(call))


def _padded(values: Floats, rows: int, columns: int) -> Floats:
    """A contiguous copy, filled up with zeros to multiples of ``rows`` or ``columns``."""
    m, k = values.shape
    shape = (-(-m // rows) * rows, -(-k // columns) * columns)
    padded = np.zeros(shape, np.float32)
    padded[:m, :k] = values
    return padded


def _address(array: npt.NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
