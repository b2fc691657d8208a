"""Small PTX kernels for tests: statements become a module, which is run on numpy arrays.

Every kernel may use the registers ``%p0`` (predicates), ``%h0`` (16 bits), ``%r0`` (32), ``%rd0``
(64) and so on up to 99, and the dynamic shared memory ``smem``. ``%idx`` is the thread's number in
the grid and ``%lane`` that in its warp.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from simulator.checks import Checks
from simulator.errors import SimulationError
from simulator.launch import Extent, KernelRun, Tensor, launch_kernel
from simulator.policy import Policy

_PROLOGUE = """
    .reg .pred %p<100>; .reg .b16 %h<100>; .reg .b32 %r<100>; .reg .b64 %rd<100>;
    .reg .b32 %idx, %lane, %t<3>; .reg .b64 %at<2>;
    mov.u32 %t0, %ctaid.x; mov.u32 %t1, %ntid.x; mov.u32 %t2, %tid.x;
    mad.lo.u32 %idx, %t0, %t1, %t2;
    and.b32 %lane, %t2, 31;"""

Value = np.ndarray | Tensor | int | bytes


def module(
    body: str, params: Sequence[str] = (), *, directives: str = "", target: str = "sm_100a"
) -> str:
    """A module with one kernel ``k``; ``params`` are its parameters as PTX declares them."""
    return (
        f".version 8.8\n.target {target}\n.address_size 64\n"
        ".extern .shared .align 1024 .b8 smem[];\n"
        f".visible .entry k({', '.join(params)})\n{directives}\n"
        f"{{{_PROLOGUE}\n{body}\n    ret;\n}}\n"
    )


def run(
    body: str,
    arguments: Mapping[str, Value] | None = None,
    *,
    threads: int = 32,
    grid: int = 1,
    cluster: int = 1,
    shared_bytes: int = 0,
    instruction_limit: int = 10**6,
    **options: Policy | Checks,
) -> KernelRun:
    """Run a kernel of one-dimensional extent; arrays are read and written in place.

    Each argument is a parameter under its name: of an array or tensor the address, of an int 32
    bits, bytes themselves at an alignment of 64. Both executors run the kernel, and must agree in
    all that they write, count and complain of.
    """
    arguments = arguments or {}
    text = module(body, [_declaration(name, value) for name, value in arguments.items()])
    extent = Extent((grid, 1, 1), (threads, 1, 1), (cluster, 1, 1), shared_bytes)
    values = [Tensor.of(v, n) if isinstance(v, np.ndarray) else v for n, v in arguments.items()]
    arrays = [v.owner for v in values if isinstance(v, Tensor)]

    def run_with(executor: str) -> tuple[KernelRun | SimulationError, list[bytes]]:
        try:
            outcome = launch_kernel(
                text, extent, values, executor=executor, instruction_limit=instruction_limit,
                **options,
            )  # fmt: skip
        except SimulationError as error:
            outcome = error
        return outcome, [array.tobytes() for array in arrays]

    start = [array.copy() for array in arrays]
    specified, expected = run_with("interpreter")
    for array, content in zip(arrays, start, strict=True):
        array[...] = content
    native, written = run_with("native")
    assert written == expected
    assert _facts(native) == _facts(specified)
    if isinstance(specified, SimulationError):
        raise specified
    return specified


def _facts(outcome: KernelRun | SimulationError) -> tuple[object, ...]:
    """What does not depend on who runs a kernel.

    Where a loop is when a limit is reached does: native code looks at it now and then.
    """
    if not isinstance(outcome, SimulationError):
        return (outcome.counts, outcome.warp_instructions, outcome.polls, outcome.findings)
    return (type(outcome), "" if "endless loop" in outcome.message else str(outcome))


def _declaration(name: str, value: Value) -> str:
    if isinstance(value, bytes):
        return f".param .align 64 .b8 {name}[{len(value)}]"
    return f".param .u{32 if isinstance(value, int) else 64} {name}"


def address(
    parameter: str, register: str = "%at0", *, item_bytes: int = 4, index: str = "%idx"
) -> str:
    """Statements that put the address of one element of a parameter's array into ``register``."""
    return (
        f"ld.param.u64 {register}, [{parameter}]; cvt.u64.u32 %at1, {index};"
        f" mad.lo.u64 {register}, %at1, {item_bytes}, {register};"
    )


def store(register: str, parameter: str = "out", *, kind: str = "u32", index: str = "%idx") -> str:
    """Statements that store a register of every thread into the thread's element of an array."""
    item_bytes = int(kind[1:]) // 8
    place = address(parameter, item_bytes=item_bytes, index=index)
    return f"{place} st.global.{kind} [%at0], {register};\n"


def load(register: str, parameter: str, *, kind: str = "u32", index: str = "%idx") -> str:
    """Statements that load the thread's element of an array into a register."""
    item_bytes = int(kind[1:]) // 8
    place = address(parameter, item_bytes=item_bytes, index=index)
    return f"{place} ld.global.{kind} {register}, [%at0];\n"


def aligned(shape: int | tuple[int, ...], dtype: str, alignment: int = 256) -> np.ndarray:
    """An array of 0xA5 bytes at a multiple of ``alignment``, for the simulator an allocation."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    # Not a part of a larger numpy array, whose whole would count as the allocation.
    raw = (ctypes.c_uint8 * (size + alignment)).from_buffer_copy(b"\xa5" * (size + alignment))
    return np.ndarray(shape, dtype, raw, -ctypes.addressof(raw) % alignment)


def random(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An aligned array of random bytes."""
    array = aligned(shape, dtype)
    data = np.random.default_rng(len(shape)).integers(0, 256, array.nbytes, np.uint8)
    array.reshape(-1).view(np.uint8)[...] = data
    return array


def copy_out(words: int, base: str = "smem") -> str:
    """Every thread of one warp copies every 32nd word of shared memory to ``out``."""
    return f"""
        mov.u32 %r80, %lane; mov.u32 %r81, {base}; ld.param.u64 %rd81, [out];
        COPY: setp.ge.u32 %p80, %r80, {words}; @%p80 bra COPIED;
        shl.b32 %r82, %r80, 2; add.u32 %r83, %r81, %r82; ld.shared.u32 %r84, [%r83];
        cvt.u64.u32 %rd82, %r82; add.u64 %rd83, %rd81, %rd82; st.global.u32 [%rd83], %r84;
        add.u32 %r80, %r80, 32; bra COPY;
        COPIED:
    """


def failure(kind: type[SimulationError], body: str, *arguments, **options) -> SimulationError:
    """The error, of exactly this kind, that ``run`` raises."""
    with pytest.raises(kind) as caught:
        run(body, *arguments, **options)
    assert type(caught.value) is kind
    return caught.value
