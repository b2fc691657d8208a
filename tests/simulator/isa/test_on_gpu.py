"""Every pure instruction against a GPU, bit for bit, where the machine has one.

What differs on purpose is listed here: the approximate functions, within a few units in the last
place, and operands or results that the ISA leaves undefined. Instructions that the device doesn't
have are passed over; on an H200 (compute capability 9.0) these are f32x2 arithmetic, min and max
of three, mixed precision and the formats of six and four bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from simulator.isa.families import TABLE
from simulator.isa.table import Entry, Kind
from tests.simulator.isa.gpu import CompileError, Gpu
from tests.simulator.isa.instructions import FLOATS, LANES, draw, home, lanes, shown

ROUNDS = 16
ENTRIES = [
    e
    for forms in TABLE.values()
    for e in forms
    if e.kind is Kind.PURE and home(e) != "simulator.isa.memory"
]
TEMPLATES = sorted({(home(e).rpartition(".")[2], e.template) for e in ENTRIES})

# Units in the last place by which the device's approximations may differ; PTX ISA, 9.7.3 and 9.7.4.
UNITS = {"ex2": 2, "rcp": 1, "rsqrt": 2, "sqrt": 1, "div": 2}
# Bounded by absolute errors only, or, for tanh, by a relative one of 2**-11.
LOOSE = ("lg2", "sin", "cos", "tanh")


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    device = Gpu.open()
    if device is None:
        pytest.skip("no GPU on this machine")
    return device


@pytest.mark.parametrize(("module", "template"), TEMPLATES)
def test_instruction_on_gpu(gpu, module, template):
    entries = [e for e in ENTRIES if home(e).endswith(module) and e.template == template]
    compared = 0
    for entry in entries:
        if "b128" in {t for s in (*entry.results, *entry.operands) for t in s.types}:
            continue
        try:
            compared += compare(gpu, entry)
        except CompileError:
            continue
    if not compared:
        pytest.skip(f"{gpu.target} has none of these")


def compare(gpu: Gpu, entry: Entry) -> int:
    rounds = list(operands(entry))
    results = gpu.run(entry, rounds)
    allowed = tolerance(entry.mnemonic)
    for drawn, given in zip(rounds, results, strict=True):
        with np.errstate(all="ignore"):
            ours = entry.function(*drawn)
        ours = (ours,) if len(entry.results) == 1 else ours
        for slot, x, y in zip(entry.results, ours, given, strict=True):
            values = [lanes(s, d) for s, d in zip(entry.operands, drawn, strict=True)]
            for lane, (a, b) in enumerate(zip(lanes(slot, x), lanes(slot, y), strict=True)):
                assert close(a, b, allowed), (
                    f"{entry.mnemonic} {shown(tuple(v[lane] for v in values))}: "
                    f"{shown((a,))}, on the GPU {shown((b,))}"
                )
    return 1


def tolerance(mnemonic: str) -> int | None:
    """The allowed distance; None if the result is not compared."""
    name = mnemonic.partition(".")[0]
    if ".approx" not in mnemonic and ".full" not in mnemonic:
        return 0
    return None if name in LOOSE else UNITS[name]


def close(a: Any, b: Any, allowed: int | None) -> bool:
    if allowed is None or a == b:
        return True
    if isinstance(a, tuple):
        return all(close(x, y, allowed) for x, y in zip(a, b, strict=True))
    return not isinstance(a, bool) and abs(a - b) <= allowed


# Operands


def operands(entry: Entry) -> Iterator[list[Any]]:
    rng = np.random.default_rng(11)
    name = entry.mnemonic.partition(".")[0]
    for number in range(ROUNDS):
        drawn = [draw(slot, rng) for slot in entry.operands]
        if number % 4 == 1:
            drawn = [
                near_limits(s.types[0], x, rng) if s.types[0].removesuffix("x2") in FLOATS else x
                for s, x in zip(entry.operands, drawn, strict=True)
            ]
        if name == "lop3":
            drawn[3] = np.full(LANES, 0x96, np.uint32)
        elif name in ("bfe", "bfi"):
            # Positions and lengths past 255 are undefined.
            drawn[-2:] = [x & np.uint32(255) for x in drawn[-2:]]
        elif name == "fns":
            drawn[1] = drawn[1] & np.uint32(31)
            drawn[2] = rng.integers(-33, 34, LANES).astype(np.int32)
        elif entry.mnemonic.startswith("cvt.rna"):
            # The ISA asks for a NaN; the device carries into the exponent.
            drawn[0] = np.nan_to_num(drawn[0], nan=1.5)
        yield drawn


def near_limits(kind: str, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Numbers around one and around the smallest normal one, where flushing and rounding meet."""
    half = kind in ("f16", "f16x2")
    smallest = 2.0**-14 if half else 2.0**-126
    step = 2.0**-11 if half else 2.0**-8 if kind.startswith("bf16") else 2.0**-24
    below = [smallest * (1 - step * k) for k in (0.25, 0.5, 1, 2)]
    around = [1, 1 - step, 1 - 2 * step, 1 + 2 * step, 0.5, 0.5 + step]
    choice = [smallest, *below, smallest / 2, 2 * smallest, smallest * step, *around, 0]
    numbers = rng.choice(np.array(choice), x.size) * rng.choice([-1.0, 1.0], x.size)
    if kind.startswith("bf16"):
        return (numbers.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return numbers.astype(x.dtype)
