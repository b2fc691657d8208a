"""The observers that a choice of checks makes for each cluster."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final

from simulator.events import Observer
from simulator.sanitizer.finding import Check, Findings
from simulator.sanitizer.proxy import ProxyCheck
from simulator.sanitizer.race import RaceCheck

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from simulator.checks import Checks
    from simulator.errors import Location
    from simulator.machine.warp import Mask, Warp

_CHECKS: Final[dict[str, type[Check]]] = {"races": RaceCheck, "proxy": ProxyCheck}


def observer(checks: Checks, findings: Findings) -> Observer:
    """What watches one cluster for all of the checks that are chosen."""
    made = [kind(findings) for name, kind in _CHECKS.items() if getattr(checks, name)]
    return made[0] if len(made) == 1 else _Several(made)


class _Several(Observer):
    """Tells several observers of everything."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def turn(self, warp: Warp) -> None:
        for one in self._observers:
            one.turn(warp)

    def issue(self, engine: Hashable) -> object:
        return [one.issue(engine) for one in self._observers]

    def begin(self, engine: Hashable, token: Any, location: Location) -> None:
        for one, own in zip(self._observers, token, strict=True):
            one.begin(engine, own, location)

    def end(self) -> None:
        for one in self._observers:
            one.end()

    def shared_access(self, memory: object, granules: npt.NDArray[np.int64], write: bool) -> None:
        for one in self._observers:
            one.shared_access(memory, granules, write)

    def tensor_access(self, memory: object, granules: npt.NDArray[np.int64], write: bool) -> None:
        for one in self._observers:
            one.tensor_access(memory, granules, write)

    def release(self, barrier: object) -> None:
        for one in self._observers:
            one.release(barrier)

    def opened(self, barrier: object) -> None:
        for one in self._observers:
            one.opened(barrier)

    def acquire(self, barrier: object) -> None:
        for one in self._observers:
            one.acquire(barrier)

    def joined(self, engine: Hashable) -> None:
        for one in self._observers:
            one.joined(engine)

    def fenced(self, fence: str, mask: Mask | None) -> None:
        for one in self._observers:
            one.fenced(fence, mask)
