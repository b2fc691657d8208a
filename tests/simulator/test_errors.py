"""What an error tells: kernel, PTX line and text, source line, CTA, warp and lanes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from simulator import errors
from simulator.errors import Location, OutOfBounds, SimulationError, SimulatorBug, Trap
from simulator.isa.table import TABLE
from simulator.launch import Extent, Tensor, launch_kernel
from tests.simulator.ptx_text import failure, module, run

BARRIER = "mov.u32 %r1, smem;\n"
FAULTS = {
    "Trap": ("ld.shared.u32 %r2, [%r1+2];", True),
    "OutOfBounds": ("st.shared.u32 [%r1+64], %r1;", True),
    "Uninitialised": ("ld.shared.u32 %r2, [%r1];", True),
    "ProtocolError": ("mbarrier.init.shared.b64 [%r1], 0;", False),
    "Unsupported": ("barrier.sync 0;", True),
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_error_of_an_instruction_is_fully_located(name):
    """The second warp of CTA 1 fails in lanes 3 to 31, in the middle of a block."""
    statement, names_lanes = FAULTS[name]
    body = (
        BARRIER
        + "setp.lt.u32 %p1, %idx, 99; @%p1 bra END;\nmov.u32 %r3, 1;\n"
        + statement
        + "\nmov.u32 %r4, 1;\nEND: mov.u32 %r5, 1;"
    )
    error = failure(getattr(errors, name), body, threads=64, grid=2, shared_bytes=64)
    assert error.kernel == "k"
    assert error.ptx_text == statement
    text = module(body).splitlines()
    assert text[error.ptx_line - 1].strip() == statement
    assert error.cta == (1, 0, 0)
    assert error.warp == 1
    assert error.lanes == (tuple(range(3, 32)) if names_lanes else None)
    shown = str(error)
    assert shown.startswith(error.message)
    assert f"kernel k, PTX line {error.ptx_line}, cta (1,0,0), warp 1" in shown
    assert ("lanes 3-31" in shown) == names_lanes
    assert shown.endswith(f": {statement}")


def test_an_error_of_a_wait_is_located():
    statement = "mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0;"
    error = failure(Trap, BARRIER + "mov.u32 %r2, 0;\n" + statement, shared_bytes=64)
    assert (error.ptx_text, error.warp, error.cta) == (statement, 0, (0, 0, 0))


def test_the_source_line_comes_from_loc():
    text = module("\n.loc 1 77 3\ntrap;").replace(".extern", '.file 1 "kernel.py"\n.extern', 1)
    with pytest.raises(Trap) as caught:
        launch_kernel(text, Extent(), [])
    assert caught.value.source == "kernel.py:77"
    assert "source kernel.py:77" in str(caught.value)


@pytest.mark.parametrize(
    ("extent", "word"),
    [
        (Extent(block=(1025, 1, 1)), "1025 threads; 1..1024"),
        (Extent(block=(0, 1, 1)), "0 threads"),
        (Extent(grid=(20, 1, 1), cluster=(20, 1, 1)), "20 CTAs; at most 16"),
        (Extent(grid=(3, 1, 1), cluster=(2, 1, 1)), "not a multiple of cluster"),
        (Extent(dynamic_shared_bytes=232449), "at most 232448"),
        (Extent(block=(64, 1, 1)), "where the kernel requires (32,)"),
    ],
)
def test_a_launch_that_no_device_accepts(extent, word):
    directive = ".reqntid 32" if "requires" in word else ""
    text = module("", directives=directive)
    with pytest.raises(Trap) as caught:
        launch_kernel(text, extent, [])
    assert word in caught.value.message
    assert caught.value.kernel == "k"
    launch_kernel(text, Extent(dynamic_shared_bytes=232448 - 1024), [])


def test_shared_memory_may_fill_what_a_device_has():
    launch_kernel(module("mov.u32 %r1, smem;"), Extent(dynamic_shared_bytes=232448), [])


def test_what_the_simulator_does_wrong_is_its_bug(monkeypatch):
    """An exception that nobody raises on purpose is located like the rest, and keeps its cause."""
    (entry,) = TABLE["trap"]

    def broken(*_: object) -> None:
        raise KeyError("lost")

    monkeypatch.setitem(TABLE, "trap", [type(entry)(*_fields(entry, function=broken))])
    with pytest.raises(SimulatorBug) as caught:
        launch_kernel(module("trap;"), Extent(), [])
    assert "KeyError: 'lost'" in caught.value.message
    assert caught.value.ptx_text == "trap;"
    assert isinstance(caught.value.__cause__, KeyError)


def _fields(entry: object, **changes: object) -> list[object]:
    return [changes.get(n, getattr(entry, n)) for n in type(entry).__dataclass_fields__]


def test_arguments_of_launch_kernel():
    text = module("", [".param .u64 x", ".param .u32 n", ".param .align 4 .b8 b[6]"])
    x = Tensor.of(np.zeros(1), "x")
    launch_kernel(text, Extent(), [x, -1, bytes(6)])
    with pytest.raises(ValueError, match="2 arguments for the 3 parameters"):
        launch_kernel(text, Extent(), [x, 1])
    with pytest.raises(ValueError, match="5 bytes for a parameter of 6"):
        launch_kernel(text, Extent(), [x, 1, bytes(5)])
    with pytest.raises(ValueError, match=r"kernels \['a', 'b'\]"):
        launch_kernel(".entry a() { ret; } .entry b() { ret; }", Extent(), [])
    launch_kernel(".entry a() { ret; } .entry b() { ret; }", Extent(), [], name="b")


# The classes themselves


def test_lanes_are_written_as_ranges():
    for lanes, text in [((4,), "lane 4"), ((0, 1, 2, 7), "lanes 0-2,7"), ((30, 31), "lanes 30-31")]:
        assert str(Location(lanes=lanes)) == text
    assert str(Location()) == ""


def test_a_long_kernel_name_is_cut():
    assert str(Location(kernel="k" * 61)) == f"kernel {'k' * 57}..."
    assert str(Location(kernel="k" * 60)) == f"kernel {'k' * 60}"


def test_locate_fills_in_what_is_unknown_and_nothing_else():
    error = Trap("wrong", Location(lanes=(3,), ptx_line=7))
    error.locate(kernel="k", ptx_line=9, warp=2)
    assert (error.kernel, error.ptx_line, error.warp, error.lanes) == ("k", 7, 2, (3,))


def test_errors_travel_between_processes():
    error = OutOfBounds("out", Location(kernel="k", lanes=(1, 2)))
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.lanes) == (OutOfBounds, str(error), (1, 2))


def test_the_three_kinds_of_failure_are_apart():
    wrong = ("Trap", "OutOfBounds", "Uninitialised", "Deadlock", "ProtocolError")
    assert all(issubclass(getattr(errors, n), errors.ProgramError) for n in wrong)
    kinds = (errors.ProgramError, errors.Unsupported, SimulatorBug)
    assert all(k.__mro__[1] is SimulationError for k in kinds)


def test_a_run_without_faults_raises_nothing():
    assert run("mov.u32 %r1, 1;").name == "k"
