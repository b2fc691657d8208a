"""Control flow and hints to the hardware. Source: PTX ISA 9.7.12 and 9.7.19."""

from __future__ import annotations

from typing import Any

from simulator.errors import Trap
from simulator.isa.table import Kind, instruction
from simulator.machine.warp import Mask, Warp

Array = Any


@instruction("bra<u>", u=("", ".uni"), section="9.7.12.3 bra", kind=Kind.BRANCH)
def bra() -> None:
    """Continue at a label; the executor does it."""


@instruction("<op>", op=("ret", "exit"), section="9.7.12.6 ret, 9.7.12.7 exit", kind=Kind.EXIT)
def leave() -> None:
    """The active lanes leave the kernel; the executor does it."""


@instruction("trap", section="9.7.19.4 trap", kind=Kind.EFFECT)
def trap(warp: Warp, mask: Mask | None) -> None:
    """The kernel gives up, on an assertion of its own for example."""
    raise Trap("the kernel executed trap")


@instruction(
    "setmaxnreg.<way>.sync.aligned.u32",
    "u32",
    way=("inc", "dec"),
    section="9.7.19.5 setmaxnreg",
    kind=Kind.EFFECT,
    converged=True,
)
def setmaxnreg(warp: Warp, mask: Mask | None, count: Array, *, way: str) -> None:
    """A change of the warp's register budget: registers are not scarce here."""
    if int(count[0]) % 8 or not 24 <= int(count[0]) <= 256:
        raise Trap(f"setmaxnreg {int(count[0])} is not a multiple of 8 in 24..256")
    if warp.cta.cluster.observer is not None:
        warp.cta.cluster.observer.resized(way, int(count[0]))


@instruction("nanosleep.u32", "u32", section="9.7.19.2 nanosleep", kind=Kind.EFFECT)
def nanosleep(warp: Warp, mask: Mask | None, duration: Array) -> None:
    """A hint to wait: time does not pass here."""


@instruction(
    "griddepcontrol.<way>",
    way=("wait", "launch_dependents"),
    section="9.7.13.13 griddepcontrol",
    kind=Kind.EFFECT,
)
def griddepcontrol(warp: Warp, mask: Mask | None, *, way: str) -> None:
    """Order between dependent grids: here each grid ends before the next begins."""
    if way == "wait" and warp.cta.cluster.observer is not None:
        warp.cta.cluster.observer.fenced("griddepcontrol.wait", mask)
