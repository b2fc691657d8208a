"""ldmatrix and stmatrix: 8 x 8 matrices of 16 bits between shared memory and fragments.

Lanes 8 j to 8 j + 7 give the addresses of the rows of matrix j, 16 bytes each. In a fragment, lane
t holds of each matrix two adjacent elements: row t / 4, columns 2 (t % 4) and the next; ``.trans``
swaps rows and columns. Source: PTX ISA 9.7.14.5.15 ldmatrix, 9.7.14.5.16 stmatrix.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from simulator.isa.memory import load_shared, store_shared
from simulator.isa.table import Kind, instruction
from simulator.machine.warp import LANES, Mask, Warp

Array = Any
_ROWS, _WORDS = 8, 4
_SPACES = ("shared", "shared::cta")
_matrix = functools.partial(instruction, s=_SPACES, kind=Kind.EFFECT, converged=True)


def _addressing(mask: Mask | None, count: int) -> Mask:
    """The lanes whose addresses count."""
    lanes: Mask = np.arange(LANES) < _ROWS * count
    return lanes if mask is None else lanes & mask


def _transposed(words: Array) -> Array:
    """Matrices [count, row, word], two elements a word, with rows and columns swapped."""
    elements = np.ascontiguousarray(words).view(np.uint16)
    return np.ascontiguousarray(elements.swapaxes(1, 2)).view(np.uint32)


def _declare(count: int, trans: str) -> None:
    form = f"sync.aligned.m8n8.x{count}{trans}.<s>.b16"
    vector = f"(b32*{count})"

    @_matrix(f"ldmatrix.{form}", f"{vector} = [b32]", section="9.7.14.5.15 ldmatrix")
    def load(warp: Warp, mask: Mask | None, address: Array, *, s: str) -> Array:
        """The warp's fragments of ``count`` matrices, one a register."""
        rows = load_shared(warp, _addressing(mask, count), address, t="b32", v=".v4", space=s)
        words = rows.T[: _ROWS * count].reshape(count, _ROWS, _WORDS)
        fragments = (_transposed(words) if trans else words).reshape(count, LANES)
        return fragments[0].copy() if count == 1 else fragments

    @_matrix(f"stmatrix.{form}", f"[b32] {vector}", section="9.7.14.5.16 stmatrix")
    def store(
        warp: Warp, mask: Mask | None, address: Array, fragments: tuple[Array, ...], *, s: str
    ) -> None:
        """``count`` matrices from the warp's fragments."""
        words = np.stack(fragments).reshape(count, _ROWS, _WORDS)
        rows = np.zeros((_WORDS, LANES), np.uint32)
        rows[:, : _ROWS * count] = (_transposed(words) if trans else words).reshape(-1, _WORDS).T
        lanes = _addressing(mask, count)
        store_shared(warp, lanes, address, tuple(rows), t="b32", space=s)


for _count in (1, 2, 4):
    for _trans in ("", ".trans"):
        _declare(_count, _trans)
