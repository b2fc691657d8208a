"""The ways in which running a kernel on the simulator can end other than well.

Three kinds of failure carry three names, because three different people have to act:

* ``ProgramError``: the program under test is wrong. Its author acts.
* ``Unsupported``: the simulator is incomplete. It says so and never guesses. Extend the simulator.
* ``SimulatorBug``: the simulator contradicts itself. Report it.

The split follows the WebAssembly reference interpreter, which separates traps from exhaustion and
from crashes of the interpreter itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Location:
    """Where in the program, and where in the grid, something happened; unknown parts are None.

    ``ptx_line`` counts from 1 in the PTX text, ``source`` is the CuTe line as ``file:line`` when
    the kernel was compiled with line information, ``cta`` is ``%ctaid`` as (x, y, z), ``warp`` is
    the warp's rank in its CTA and ``lanes`` lists the lanes concerned.
    """

    kernel: str | None = None
    ptx_line: int | None = None
    ptx_text: str | None = None
    source: str | None = None
    cta: tuple[int, int, int] | None = None
    warp: int | None = None
    lanes: tuple[int, ...] | None = None

    def __str__(self) -> str:
        parts = []
        if self.kernel:
            name = self.kernel if len(self.kernel) <= 60 else self.kernel[:57] + "..."
            parts.append(f"kernel {name}")
        if self.ptx_line is not None:
            parts.append(f"PTX line {self.ptx_line}")
        if self.source:
            parts.append(f"source {self.source}")
        if self.cta is not None:
            parts.append("cta ({},{},{})".format(*self.cta))
        if self.warp is not None:
            parts.append(f"warp {self.warp}")
        if self.lanes:
            parts.append("lane" + ("s " if len(self.lanes) > 1 else " ") + _ranges(self.lanes))
        text = ", ".join(parts)
        return f"{text}: {self.ptx_text}" if self.ptx_text else text


def _ranges(lanes: tuple[int, ...]) -> str:
    """Compact text of a sorted tuple of lanes: (0, 1, 2, 5) -> ``0-2,5``."""
    runs: list[list[int]] = []
    for lane in lanes:
        if runs and lane == runs[-1][1] + 1:
            runs[-1][1] = lane
        else:
            runs.append([lane, lane])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


class SimulationError(Exception):
    """Base of everything the simulator raises on purpose.

    ``message`` says what is wrong in one sentence. ``location`` is filled in by whoever knows it:
    the memories know lanes, the executor adds kernel, PTX line, CTA and warp on the way out.
    """

    def __init__(self, message: str, location: Location | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.location = location or Location()

    kernel = property(lambda self: self.location.kernel)
    ptx_line = property(lambda self: self.location.ptx_line)
    ptx_text = property(lambda self: self.location.ptx_text)
    source = property(lambda self: self.location.source)
    cta = property(lambda self: self.location.cta)
    warp = property(lambda self: self.location.warp)
    lanes = property(lambda self: self.location.lanes)

    def locate(self, **known: object) -> None:
        """Fill in those parts of the location that are still unknown."""
        current = {**self.location.__dict__}
        for name, value in known.items():
            if current[name] is None:
                current[name] = value
        self.location = Location(**current)

    def __str__(self) -> str:
        where = str(self.location)
        return f"{self.message}\n  at {where}" if where else self.message


class ProgramError(SimulationError):
    """The program under test did something the PTX ISA forbids or leaves undefined."""


class Trap(ProgramError):
    """An instruction breaks its own rules: alignment, convergence, operands, divergent ``.uni``."""


class OutOfBounds(ProgramError):
    """An access outside every allocation, or outside the tensor it is meant for."""


class Uninitialised(ProgramError):
    """A read of shared memory, TMEM or a buffer that nothing has written."""


class Deadlock(ProgramError):
    """No warp can make progress; the message lists what each one waits for."""


class ProtocolError(ProgramError):
    """A rule about the use of a barrier, an allocation or an asynchronous operation is broken."""


class Unsupported(SimulationError):
    """An instruction, modifier, descriptor or runtime call that the simulator does not know."""


class SimulatorBug(SimulationError):
    """The simulator reached a state that it should never reach."""


class CheckFailed(ProgramError):
    """Checks that watch an execution have found faults. ``findings`` has each of them once.

    Unless the first finding was to stop it, the launch has run to its end, and its outputs are
    those of this run's order.
    """

    def __init__(self, findings: Sequence[object], location: Location | None = None) -> None:
        super().__init__("\n".join(str(finding) for finding in findings), location)
        self.findings = tuple(findings)


class DataRace(CheckFailed):
    """Accesses that nothing orders, each pair of program lines once."""


class HostError(SimulationError):
    """The exported host function refused its arguments; the message is its own."""
