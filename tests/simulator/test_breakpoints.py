"""Stops before instructions: what registers and memories hold there is computed by hand."""

import numpy as np
import pytest

from simulator.breakpoints import Break, Debugger, Stop
from simulator.decode import decode
from simulator.launch import Extent, launch_kernel
from simulator.ptx.parser import parse
from tests.simulator.ptx_text import module

BODY = """
    mul.lo.u32 %r1, %lane, 3;
    cvt.rn.f32.u32 %t0, %r1;
    mov.u32 %r2, smem; shl.b32 %r3, %lane, 2; add.u32 %r2, %r2, %r3;
    st.shared.u32 [%r2], %r1;
    setp.lt.u32 %p1, %lane, 8;
    @%p1 bra FEW;
    mov.u32 %r4, 1;
FEW:
    add.u32 %r5, %r1, 1;
    bar.sync 0;"""
TEXT = module(BODY) + '\n.file 1 "folder/kernel.py"\n'


def line(text: str) -> int:
    return next(n for n, one in enumerate(TEXT.splitlines(), 1) if one.strip().startswith(text))


said: list[str] = []
"""The words of the stops of the last run."""


def stops(monkeypatch, *breaks: str, threads: int = 32, text: str = TEXT) -> list:
    """What ``look`` sees at each stop, run through the door that every launch uses."""
    seen: list = []
    said.clear()
    wanted = tuple(map(Break.parse, breaks))

    def on_stop(stop: Stop) -> None:
        held = {name: value.copy() for name, value in stop.operands().items()}
        seen.append((stop.node.line, stop.warp.rank, stop.warp.mask, stop, held))
        said.append(str(stop))

    monkeypatch.setattr(
        "simulator.launch.Interpreter", lambda program: Debugger(program, wanted, on_stop)
    )
    extent = Extent(block=(threads, 1, 1), dynamic_shared_bytes=256)
    launch_kernel(text, extent, [], executor="interpreter")
    return seen


def test_registers_are_those_before_the_instruction(monkeypatch) -> None:
    ((number, warp, mask, _, held),) = stops(monkeypatch, f"ptx:{line('st.shared')}")
    assert (number, warp, mask) == (line("st.shared"), 0, None)
    np.testing.assert_array_equal(held["%r1"], 3 * np.arange(32))
    ((*_, before),) = stops(monkeypatch, f"ptx:{line('mul.lo')}")
    assert not before["%r1"].any()


def test_memories_are_shown_as_arrays(monkeypatch) -> None:
    shown = []

    def look(self: Stop) -> dict:
        shown.append((self.shared(0, "u32", (4, 8)), self.tensor_memory(slice(0, 2), slice(0, 3))))
        return {}

    monkeypatch.setattr(Stop, "operands", look)
    stops(monkeypatch, f"ptx:{line('bar.sync')}")
    (shared, tensor), *_ = shown
    np.testing.assert_array_equal(shared, 3 * np.arange(32).reshape(4, 8))
    assert np.isnan(tensor).all()


def test_every_warp_stops_and_a_wait_stops_once(monkeypatch) -> None:
    found = stops(monkeypatch, f"ptx:{line('bar.sync')}", threads=96)
    assert sorted(warp for _, warp, *_ in found) == [0, 1, 2]


def test_a_diverged_warp_stops_with_its_active_lanes(monkeypatch) -> None:
    ((_, _, mask, *_),) = stops(monkeypatch, f"ptx:{line('mov.u32 %r4')}")
    assert mask.tolist() == [False] * 8 + [True] * 24
    assert "24 lanes" in said[0]


def test_a_branch_can_be_stopped_at(monkeypatch) -> None:
    ((number, *_, held),) = stops(monkeypatch, f"ptx:{line('@%p1 bra')}")
    assert number == line("@%p1 bra")
    assert held["%p1"].tolist() == [True] * 8 + [False] * 24


def test_a_source_line_stops_at_the_first_of_its_instructions(monkeypatch) -> None:
    placed = TEXT.replace("    mov.u32 %r2, smem", "    .loc 1 7 2\n    mov.u32 %r2, smem").replace(
        "    setp.lt", "    .loc 1 8 2\n    setp.lt"
    )
    ((*_, stop, _),) = stops(monkeypatch, "kernel.py:7", text=placed)
    assert stop.node.text().startswith("mov.u32 %r2")
    assert "source folder/kernel.py:7" in str(stop)
    assert not stops(monkeypatch, "nel.py:7", text=placed)


def test_every_line_can_be_stopped_at(monkeypatch) -> None:
    program = decode(next(iter(parse(TEXT).kernels.values())))
    lines = sorted({o.node.line for block in program.blocks for o in block.operations})
    found = [number for number, *_ in stops(monkeypatch, *(f"ptx:{n}" for n in lines))]
    assert sorted(set(found)) == lines
    assert len(program.register_names) == len(program.registers)


@pytest.mark.parametrize("text", ["", "12", "ptx:", "ptx:x", "ptx:0", ":7"])
def test_what_is_no_break_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is neither ptx:LINE nor FILE:LINE"):
        Break.parse(text)


def test_what_cannot_be_shown_is_refused(monkeypatch) -> None:
    ((*_, stop, _),) = stops(monkeypatch, f"ptx:{line('st.shared')}")
    for ask, message in (
        (lambda: stop.register("%none"), "no such register"),
        (lambda: stop.register("%r1", "f64"), "type 'f64' for a register of type b32"),
        (lambda: stop.shared(0, "u9", (1,)), "type 'u9' is none of u8"),
        (lambda: stop.shared(200, "u32", (32,)), "128 bytes from 200 on, of 256"),
    ):
        with pytest.raises(ValueError, match=message):
            ask()
    np.testing.assert_array_equal(stop.register("%r1", "s32"), 3 * np.arange(32))
