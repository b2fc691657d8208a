"""mov: copies, packing and unpacking."""

from __future__ import annotations

import pytest

from simulator.isa import move
from simulator.isa.values import BITS
from tests.simulator.isa.instructions import Family

FAMILY = Family(move)
SCALARS = (
    "pred",
    "b16",
    "u16",
    "s16",
    "b32",
    "u32",
    "s32",
    "f32",
    "b64",
    "u64",
    "s64",
    "f64",
    "b128",
)
PARTS = {"b16": ("b8*2",), "b32": ("b16*2", "b8*4"), "b64": ("b32*2", "b16*4"),
         "b128": ("b64*2", "b32*4")}  # fmt: skip


@FAMILY.oracle("mov.<t>", "<t> = <t>", t=SCALARS)
def mov(a):
    return a


def whole(bits, kind):
    return (bits & (1 << 64) - 1, bits >> 64) if kind == "b128" else bits


for _kind, _vectors in PARTS.items():
    for _vector in _vectors:
        _count = int(_vector[-1])
        _width = BITS[_kind] // _count

        @FAMILY.oracle(f"mov.{_kind}", f"{_kind} = ({_vector})")
        def pack(parts, kind=_kind, width=_width):
            return whole(sum(p << width * i for i, p in enumerate(parts)), kind)

        @FAMILY.oracle(f"mov.{_kind}", f"({_vector}) = {_kind}")
        def unpack(a, width=_width, count=_count):
            a = a[0] | a[1] << 64 if isinstance(a, tuple) else a
            return tuple(a >> width * i & (1 << width) - 1 for i in range(count))


@pytest.mark.parametrize("template", FAMILY.templates)
def test_move(template):
    FAMILY.check(template)
