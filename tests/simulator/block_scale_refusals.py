"""Calls that block-scaled MMAs and A in tensor memory refuse, for the page of errors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

from simulator.machine import mma, tensor_core
from simulator.machine.block_scale import ScaledDescriptor, Scales, read_scales
from simulator.machine.tensor_memory import TensorMemory
from simulator.numerics.accumulate import ideal

_F16_M_MAJOR = 1 << 4 | 1 << 15 | 64 >> 3 << 17 | 128 >> 4 << 24
_MXF4 = 1 << 7 | 1 << 10 | 8 << 17 | 8 << 24 | 1 << 23


def scaled_refusals() -> Iterator[tuple[str, Callable[[], object]]]:
    """The error's class by name, and what provokes it."""
    memory = TensorMemory(checked=False)
    memory.allocate(32)
    memory.words[40, 0] = 0
    for address, kind in ((0, "Trap"), (1 << 16, "Unsupported")):
        yield kind, functools.partial(read_scales, memory, Scales(address, 0, 1), 32, "ue8m0")
    yield "Unsupported", functools.partial(ScaledDescriptor.decode, 1 << 2, "mxf4")
    mxf4 = ScaledDescriptor.decode(_MXF4, "mxf4")
    for kind, changes in (
        ("Trap", {"scale": "ue4m3"}),
        ("Unsupported", {"m": 64}),
        ("Trap", {"mn_major_a": True}),
        ("Trap", {"first_a": 1}),
    ):
        yield kind, functools.partial(replace(mxf4, **changes).validate, "mxf4", 32, 1)
    yield "Unsupported", functools.partial(mma.read_tensor_operand, memory, 0, 64, mxf4.a)
    scaled = mma.ScaledMma(1, mxf4, 0, None, 1 << 20, False, ())
    yield "Unsupported", functools.partial(mma.scaled_mma, scaled, [], is_ideal=True)
    shape = tensor_core.InstructionDescriptor.decode(_F16_M_MAJOR, "f16")
    turned = mma.Mma(1, False, shape, 0, None, 0, False)
    yield "Unsupported", functools.partial(mma.mma, turned, [mma.Cta(None, memory)], ideal)
