"""wgmma: a warpgroup multiplies, B and perhaps A in shared memory, D in registers.

D [64, n] = A [64, k] B [n, k]^T (+ D), where k fills 32 bytes. Warp w of the four has rows 16 w to
16 w + 15 of A and of D, so each does its own quarter when it comes to the instruction: nothing that
a program may rely on tells that from four warps at once.

The operation is asynchronous: its operands in shared memory must stay until the warp has waited for
its group. D is computed at the issue, since registers can't be written later; the operands are read
once more when the operation completes, and ``Trap`` says if they have changed meanwhile. That D
itself isn't touched before the wait is **not** checked.

With the accumulation ``hopper`` the sums are those of an H200, bit for bit, but for f16 operands
into f16, which are rounded twice here (tests/simulator/isa/test_warpgroup_on_gpu.py). Products of
whole numbers, of single bits and of sparse matrices are not here.

Sources: PTX ISA 9.7.15, Asynchronous Warpgroup Level Matrix Instructions, with its figures of
fragments and its table of matrix descriptors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from simulator.errors import Trap, Unsupported
from simulator.isa.bulk_copy import engine_of, wait_for
from simulator.isa.table import Kind, instruction
from simulator.machine.tensor_core import K_BYTES, SharedDescriptor, operand_chunks
from simulator.machine.warp import LANES, Mask, Warp, uniform
from simulator.numerics.accumulate import written
from simulator.numerics.formats import BF16, E4M3, E5M2, F16, TF32, Floats, Format, decode, encode

Array = Any
_ENGINE = "wgmma"
_GROUP_WARPS, _ROWS, _GROUPS, _THREADS = 4, 16, 8, 4
_SWIZZLES = {0: 0, 1: 128, 2: 64, 3: 32}
"""Span in bytes, by code."""
_DESCRIPTOR_ZEROS = 0x3 << 14 | 0x3 << 30 | 0x7 << 46 | 0x3FF << 52
_FORMATS: dict[str, Format] = {
    "f16": F16, "bf16": BF16, "tf32": TF32, "e4m3": E4M3, "e5m2": E5M2,
}  # fmt: skip


# 1. Operands


@cache
def descriptor(value: int) -> SharedDescriptor:
    """The layout that a 64-bit matrix descriptor names; Unsupported, naming the field, if none."""
    if value & _DESCRIPTOR_ZEROS:
        raise Unsupported(f"wgmma descriptor {value:#018x}: bits {value & _DESCRIPTOR_ZEROS:#x}")
    if value >> 49 & 7:
        raise Unsupported(f"wgmma descriptor {value:#018x}: base offset {value >> 49 & 7}")
    start, leading, stride = ((value >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    return SharedDescriptor(start, leading, stride, _SWIZZLES[value >> 62])


class _Tile(NamedTuple):
    """An operand in shared memory: its 16-byte chunks, as ``operand_chunks`` has them."""

    chunks: Array
    fmt: Format
    mn_major: bool

    def values(self, data: Array) -> Floats:
        """The values [rows, k] of the chunks' bytes."""
        codes = data.reshape(len(self.chunks), -1).view(f"u{self.fmt.storage_bits // 8}")
        return decode(codes.T if self.mn_major else codes, self.fmt)


def _tile(register: Array, rows: int, fmt: Format, mn_major: bool) -> _Tile:
    if not uniform(register):
        raise Trap("wgmma with a matrix descriptor that differs between lanes")
    layout = descriptor(int(register[0]))
    size = fmt.storage_bits // 8
    return _Tile(operand_chunks(layout, rows, element_bytes=size, mn_major=mn_major), fmt, mn_major)


def _quarter(tile: _Tile, warp: Warp) -> _Tile:
    """Of A [64, k] the sixteen rows of the warp."""
    first = warp.rank % _GROUP_WARPS * _ROWS
    if not tile.mn_major:
        return tile._replace(chunks=tile.chunks[first : first + _ROWS])
    per_chunk = 16 * 8 // tile.fmt.storage_bits
    columns = slice(first // per_chunk, (first + _ROWS) // per_chunk)
    return tile._replace(chunks=tile.chunks[:, columns])


def _fragment_values(registers: tuple[Array, ...], fmt: Format) -> Floats:
    """A [16, k] from four registers a lane: row g, row g + 8, and both again k / 2 further."""
    words = np.ascontiguousarray(np.stack(registers))
    held = words.view(f"u{fmt.storage_bits // 8}").reshape(2, 2, _GROUPS, _THREADS, -1)
    return decode(held.transpose(1, 2, 0, 3, 4).reshape(_ROWS, -1), fmt)


# 2. D: register 4 j + 2 h + e of lane 4 g + t holds row g + 8 h, column 8 j + 2 t + e


def _matrix(registers: Array) -> Array:
    """D [16, n] from ``n / 2`` registers a lane."""
    held = registers.reshape(-1, 2, 2, _GROUPS, _THREADS)
    return held.transpose(1, 3, 0, 4, 2).reshape(_ROWS, -1)


def _registers(d: Array) -> Array:
    """``n / 2`` registers a lane of D [16, n]."""
    parts = d.reshape(2, _GROUPS, -1, _THREADS, 2).transpose(2, 0, 4, 1, 3)
    return np.ascontiguousarray(parts.reshape(-1, LANES))


def _widened(registers: tuple[Array, ...], is_half: bool) -> Array:
    """The registers of D, of f16 two out of each."""
    if not is_half:
        return np.stack(registers)
    pairs = np.stack(registers).view(np.float16).reshape(-1, LANES, 2)
    return pairs.transpose(0, 2, 1).reshape(-1, LANES).astype(np.float32)


def _narrowed(registers: Array, is_half: bool) -> Array:
    """What ``_widened`` was given; f16 is rounded to nearest once: an assumption."""
    if not is_half:
        return registers
    codes = encode(registers.view(np.uint32), F16).astype(np.uint16)
    pairs = codes.reshape(-1, 2, LANES).transpose(0, 2, 1)
    return np.ascontiguousarray(pairs).reshape(-1, 2 * LANES).view(np.float16)


# 3. The instruction


class _Form(NamedTuple):
    """One shape and choice of formats."""

    n: int
    d: str
    a: str
    b: str
    a_in_registers: bool

    @property
    def depth(self) -> int:
        return K_BYTES * 8 // _FORMATS[self.a].storage_bits

    @property
    def may_transpose(self) -> bool:
        """Whether operands may be MN-major: 16-bit ones."""
        return _FORMATS[self.a].storage_bits == 16

    @property
    def mnemonic(self) -> str:
        shape = f"m64n{self.n}k{self.depth}"
        return f"wgmma.mma_async.sync.aligned.{shape}.{self.d}.{self.a}.{self.b}"

    @property
    def signature(self) -> str:
        d = f"(f16x2*{self.n // 4})" if self.d == "f16" else f"(f32*{self.n // 2})"
        majors = " s32" * (2 - self.a_in_registers) if self.may_transpose else ""
        return f"&{d} = {'(b32*4)' if self.a_in_registers else 'b64'} b64 pred s32 s32{majors}"


def _sign(values: Array) -> float:
    if int(values[0]) not in (1, -1):
        raise Trap(f"wgmma with a scale of {int(values[0])}, neither 1 nor -1")
    return float(values[0])


def _multiplier(form: _Form) -> Callable[..., Array]:
    """The function of one form."""
    of_a, of_b = _FORMATS[form.a], _FORMATS[form.b]

    def multiply(warp: Warp, mask: Mask | None, *operands: Any) -> Array:
        """One warp's quarter of D."""
        d, a, b, added, sign_a, sign_b, *majors = operands
        if not uniform(added):
            raise Trap("wgmma whose scale-d differs between lanes")
        tiles = [_tile(b, form.n, of_b, bool(majors and majors[-1][0]))]
        if not form.a_in_registers:
            tiles.insert(0, _quarter(_tile(a, 64, of_a, bool(majors and majors[0][0])), warp))
        data = [warp.cta.shared.read_chunks(t.chunks, reported=False) for t in tiles]
        values = [t.values(x) for t, x in zip(tiles, data, strict=True)]
        rows = _fragment_values(a, of_a) if form.a_in_registers else values[0]
        is_half = form.d == "f16"
        accumulate = warp.cta.cluster.launch.accumulate
        total = accumulate(
            rows * np.float32(_sign(sign_a)),
            values[-1] * np.float32(_sign(sign_b)),
            _matrix(_widened(d, is_half)) if added[0] else None,
            step=form.depth,
            formats=(of_a, of_b),
        )
        if not is_half:
            total = written(total, accumulate, (of_a, of_b))
        _issue(warp, form, tiles, data)
        return _narrowed(_registers(total), is_half)

    return multiply


def _issue(warp: Warp, form: _Form, tiles: list[_Tile], data: list[Array]) -> None:
    """Count the operation, and read its operands again when it completes."""
    cluster, shared = warp.cta.cluster, warp.cta.shared
    flop = 2 * _ROWS * form.n * form.depth
    cluster.counts["mma"] += 1
    cluster.counts["mma_flop"] += flop
    if cluster.observer is not None:
        cluster.observer.multiplies(form.a, flop)

    def complete() -> None:
        for tile, read in zip(tiles, data, strict=True):
            if not np.array_equal(shared.read_chunks(tile.chunks), read):
                raise Trap("shared memory that wgmma reads has changed before it was complete")

    cluster.asynchronous.submit(engine_of(warp, _ENGINE), complete, cluster.site(warp))


def _declare(form: _Form) -> None:
    instruction(
        form.mnemonic, form.signature, section="9.7.15.5.2 wgmma.mma_async", kind=Kind.EFFECT,
        converged=True,
    )(_multiplier(form))  # fmt: skip


for _n in range(8, 257, 8):
    for _in_registers in (False, True):
        for _operand in ("f16", "bf16", "tf32"):
            _declare(_Form(_n, "f32", _operand, _operand, _in_registers))
        _declare(_Form(_n, "f16", "f16", "f16", _in_registers))
        for _a in ("e4m3", "e5m2"):
            for _b in ("e4m3", "e5m2"):
                _declare(_Form(_n, "f32", _a, _b, _in_registers))
                _declare(_Form(_n, "f16", _a, _b, _in_registers))


# 4. Order

_order = "9.7.15.7 wgmma"


@instruction("wgmma.fence.sync.aligned", section=_order, kind=Kind.EFFECT, converged=True)
def fence(warp: Warp, mask: Mask | None) -> None:
    """Orders accesses to registers against wgmma.mma_async: they are in order here."""


@instruction("wgmma.commit_group.sync.aligned", section=_order, kind=Kind.EFFECT, converged=True)
def commit_group(warp: Warp, mask: Mask | None) -> None:
    """Close a group: it holds the warp's operations since the last one."""
    warp.groups.setdefault(_ENGINE, []).append(warp.cta.cluster.asynchronous.submitted)


@instruction("wgmma.wait_group.sync.aligned", "u32", section=_order, kind=Kind.WAIT, converged=True)
def wait_group(warp: Warp, mask: Mask | None, pending: Array) -> Any:
    """Wait until only the ``pending`` newest groups may be incomplete."""
    groups, count = warp.groups.get(_ENGINE, []), int(pending[0])
    return wait_for(warp, _ENGINE, groups[-1 - count] if len(groups) > count else 0)
