"""The native MMA against the array code, bit by bit, on memories filled at random.

``tests/simulator/machine/test_tensor_core.py`` holds the array code to float64 products.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from simulator.codegen.accumulate import Fused, engines
from simulator.codegen.emit import OK, PYTHON
from simulator.codegen.library import shared_library
from simulator.codegen.native_state import address_of
from simulator.codegen.state import ClusterState, CtaState, WarpState
from simulator.codegen.tensor_core import FORM_PAIR, FORM_WEIGHT_STATIONARY, MMA, Scratch
from simulator.machine import mma
from simulator.machine.shared_memory import SharedMemory
from simulator.machine.tensor_core import InstructionDescriptor, SharedDescriptor
from simulator.machine.tensor_memory import TensorMemory
from simulator.numerics.accumulate import B200, HOPPER, FusedModel

SHARED_BYTES = 1 << 16
COLUMN = 64
WS, PAIR = FORM_WEIGHT_STATIONARY, FORM_PAIR


@dataclass(frozen=True)
class Form:
    """An MMA: shapes, format codes, layouts, flags of the instruction descriptor."""

    kind: str
    form: int
    m: int
    n: int
    a_format: int = 0
    b_format: int = 0
    mode: int = 2
    majors: int = 0
    negates: int = 0
    fixed: int = 0
    enabled: int = 1

    def instruction(self) -> int:
        flags = self.negates << 13 | self.majors << 15
        shape = self.n >> 3 << 17 | self.m >> 4 << 24
        return 1 << 4 | self.a_format << 7 | self.b_format << 10 | flags | shape | self.fixed

    def descriptor(self, start: int) -> int:
        return start >> 4 | 512 >> 4 << 16 | 1024 >> 4 << 32 | 1 << 46 | self.mode << 61


FORMS = [
    Form("f8f6f4", PAIR, 256, 256),
    Form("f8f6f4", PAIR, 128, 128, mode=4),
    Form("f8f6f4", PAIR, 128, 96, a_format=1, majors=3, negates=1),
    Form("f8f6f4", WS, 64, 256, b_format=1),
    Form("f8f6f4", WS, 64, 64, majors=2, negates=2, enabled=0),
    Form("f8f6f4", 0, 128, 24, negates=3),
    Form("f8f6f4", 0, 64, 72, mode=4, a_format=1, b_format=1),
    Form("f16", PAIR, 256, 16, a_format=1, b_format=1),
    Form("f16", PAIR, 128, 96, majors=1),
    Form("f16", WS, 64, 128, a_format=1, mode=4, majors=2),
    Form("f16", 0, 128, 8, b_format=1),
    Form("f16", 0, 64, 120, majors=3, enabled=0),
]


class Machine:
    """Two CTAs outside any launch, with their native state."""

    def __init__(self, seed: int, model: FusedModel = B200, *, check: bool = True) -> None:
        rng = np.random.default_rng(seed)
        self.model = model
        self.ctas = []
        self.warp, self.cluster, self.scratch = WarpState(), ClusterState(), Scratch()
        self.states = (CtaState * 2)()
        for rank, state in enumerate(self.states):
            shared = SharedMemory(SHARED_BYTES, check_initialised=check)
            shared.bytes[:] = _codes(rng)
            shared.valid[:] = 1
            memory = TensorMemory(checked=check)
            memory.allocate(512)
            c = rng.standard_normal((128, 512)) * 2.0 ** rng.integers(-30, 20, (128, 512))
            memory.words[:] = c.astype(np.float32).view(np.uint32)
            memory.valid[:] = True
            self.ctas.append(mma.Cta(shared, memory))
            state.rank, state.cta_count = rank, 2
            state.shared, state.shared_valid = address_of(shared.bytes), address_of(shared.valid)
            state.shared_size, state.check_shared, state.check_tensor = shared.size, check, check
            state.tensor, state.tensor_valid = address_of(memory.words), address_of(memory.valid)
            state.tensor_owner = address_of(memory.owners)
        self.warp.cta, self.warp.cluster = map(ctypes.addressof, (self.states, self.cluster))
        self.cluster.scratch = ctypes.addressof(self.scratch)
        self.cluster.fraction_f16, self.cluster.fraction_f8f6f4 = model.wide, model.narrow

    def native(self, form: Form, starts: tuple[int, int]) -> int:
        address = engines(shared_library())[MMA[form.kind]]
        function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, *[ctypes.c_int64] * 6)(address)
        a, b = (ctypes.c_int64(form.descriptor(start)).value for start in starts)
        status: int = function(
            ctypes.addressof(self.warp), COLUMN, a, b, form.instruction(), form.enabled, form.form
        )
        return status

    def arrays(self, form: Form, starts: tuple[int, int]) -> None:
        group = 2 if form.form & PAIR else 1
        kind: Any = form.kind
        operation = mma.Mma(
            group,
            bool(form.form & WS),
            InstructionDescriptor.decode(form.instruction(), kind),
            *(SharedDescriptor.decode(form.descriptor(start)) for start in starts),
            COLUMN,
            bool(form.enabled),
        )
        with np.errstate(all="ignore"):
            mma.mma(operation, self.ctas[:group], Fused(self.model))

    def contents(self) -> tuple[bytes, ...]:
        memories = [cta.tensor_memory for cta in self.ctas]
        return tuple(part.tobytes() for m in memories for part in (m.words, m.valid))


def _codes(rng: np.random.Generator) -> np.ndarray:
    """Bytes that are seldom an infinity or NaN in any format."""
    codes = rng.integers(0, 256, SHARED_BYTES, dtype=np.uint8)
    codes = np.where(rng.random(SHARED_BYTES) < 0.1, 0, codes)
    return np.where((codes & 0x78 == 0x78) & (rng.random(SHARED_BYTES) < 0.995), 0x35, codes)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("model", [B200, HOPPER], ids=["b200", "hopper"])
def test_bits_and_valid_bits_of_the_array_code(form: Form, model: FusedModel) -> None:
    for seed, starts in enumerate([(0, 32768), (1024 + 64, 32768 + 32)]):
        one, other = Machine(seed, model), Machine(seed, model)
        before = one.contents()
        assert one.native(form, starts) == OK
        other.arrays(form, starts)
        assert one.contents() == other.contents() != before
        group = 2 if form.form & PAIR else 1
        depth = 16 if form.kind == "f16" else 32
        assert (one.cluster.mma, one.cluster.completed) == (1, 1)
        assert one.cluster.mma_flop == 2 * form.m * form.n * depth
        assert group == 2 or one.contents()[2:] == before[2:]


def unwritten_operand(machine: Machine) -> None:
    machine.ctas[0].shared.valid[17] = 0


def unwritten_accumulator(machine: Machine) -> None:
    machine.ctas[0].tensor_memory.valid[127, COLUMN + 5] = False


def other_allocation(machine: Machine) -> None:
    machine.ctas[0].tensor_memory.owners[COLUMN + 24 :] = 9


def no_allocation(machine: Machine) -> None:
    machine.states[0].tensor = 0


def other_model(machine: Machine) -> None:
    machine.cluster.fraction_f8f6f4 = -1


def short_memory(machine: Machine) -> None:
    machine.states[0].shared_size = 33000


def nothing(machine: Machine) -> None:
    """The form itself is what Python must see."""


PLAIN = Form("f8f6f4", 0, 128, 40)


@pytest.mark.parametrize(
    ("change", "form"),
    [
        *((change, PLAIN) for change in (
            unwritten_operand, unwritten_accumulator, other_allocation, no_allocation, other_model,
            short_memory,
        )),
        *((nothing, form) for form in (
            replace(PLAIN, n=0), replace(PLAIN, m=96), replace(PLAIN, mode=0),
            replace(PLAIN, mode=6), replace(PLAIN, a_format=3), replace(PLAIN, fixed=1 << 2),
            replace(PLAIN, fixed=1 << 29), Form("f8f6f4", WS, 128, 64), Form("f8f6f4", WS, 64, 192),
            Form("f8f6f4", PAIR, 128, 24), Form("f8f6f4", PAIR, 64, 32),
        )),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)  # fmt: skip
def test_the_uncommon_is_left_to_python_and_nothing_is_changed(
    change: Callable[[Machine], None], form: Form
) -> None:
    machine = Machine(3)
    change(machine)
    before = machine.contents()
    assert machine.native(form, (0, 32768)) == PYTHON
    assert machine.contents() == before
    assert (machine.cluster.mma, machine.cluster.completed) == (0, 0)


def test_what_is_not_checked_may_be_unwritten() -> None:
    machine = Machine(4, check=False)
    unwritten_operand(machine)
    unwritten_accumulator(machine)
    assert machine.native(PLAIN, (0, 32768)) == OK
