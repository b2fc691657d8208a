"""The observers that a choice of checks makes for each cluster."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final

from simulator.events import Observer
from simulator.sanitizer.finding import Check, Findings
from simulator.sanitizer.global_race import GlobalRaceCheck
from simulator.sanitizer.grid_order import GridOrderCheck
from simulator.sanitizer.mbarrier import MbarrierCheck
from simulator.sanitizer.named_barrier import NamedBarrierCheck
from simulator.sanitizer.proxy import ProxyCheck
from simulator.sanitizer.publication import PublicationCheck
from simulator.sanitizer.race import RaceCheck
from simulator.sanitizer.registers import RegisterCheck
from simulator.sanitizer.tensor_memory import TensorMemoryCheck
from simulator.sanitizer.tensor_order import TensorOrderCheck

if TYPE_CHECKING:
    from simulator.checks import Checks
    from simulator.errors import Location

_CHECKS: Final[dict[str, type[Check]]] = {
    "races": RaceCheck,
    "global_races": GlobalRaceCheck,
    "proxy": ProxyCheck,
    "mbarriers": MbarrierCheck,
    "publication": PublicationCheck,
    "named_barriers": NamedBarrierCheck,
    "registers": RegisterCheck,
    "tensor_memory": TensorMemoryCheck,
    "tensor_order": TensorOrderCheck,
    "grid_order": GridOrderCheck,
}


def observer(checks: Checks, findings: Findings) -> Observer:
    """What watches one cluster for all of the checks that are chosen."""
    return together([_CHECKS[name](findings) for name in checks.watching])


def together(observers: Sequence[Observer]) -> Observer:
    """One observer that tells each of ``observers`` everything, in order."""
    return observers[0] if len(observers) == 1 else _Several(observers)


class _Several(Observer):
    """Tells several observers of everything that they override."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers
        for name, event in vars(Observer).items():
            if not name.startswith("_") and name not in vars(_Several):
                told = [one for one in observers if getattr(type(one), name) is not event]
                setattr(self, name, _all_of([getattr(one, name) for one in told]))

    def issue(self, engine: Hashable) -> object:
        return [one.issue(engine) for one in self._observers]

    def begin(self, engine: Hashable, token: Any, location: Location) -> None:
        for one, own in zip(self._observers, token, strict=True):
            one.begin(engine, own, location)


def _all_of(told: list[Callable[..., None]]) -> Callable[..., None]:
    """One function that calls all."""
    if len(told) == 1:
        return told[0]

    def tell(*event: Any) -> None:
        for one in told:
            one(*event)

    return tell
