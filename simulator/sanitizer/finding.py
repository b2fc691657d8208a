"""What the checks that watch an execution find, each fault of the program once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from simulator.errors import CheckFailed, DataRace, Location
from simulator.events import Observer


@dataclass(frozen=True)
class Access:
    """One side of a finding: who, how, and where in the program."""

    agent: str
    what: str
    location: Location

    @property
    def writes(self) -> bool:
        """Whether the access writes."""
        return self.what.startswith("write")

    def __str__(self) -> str:
        return f"{self.what} by {self.agent} ({self.location})"


@dataclass(frozen=True)
class Finding:
    """A fault of the program, by the check of this name.

    ``sentence`` says what is wrong. ``later`` is the access that showed it in this run, ``earlier``
    the one that it conflicts with, None if one access alone is at fault. ``times`` counts how often
    the same lines of the program did it, whichever warps ran them.
    """

    check: str
    sentence: str
    later: Access
    earlier: Access | None = None
    times: int = 1

    def __str__(self) -> str:
        lines = [f"{self.check}: {self.sentence}", f"  {self.later}"]
        if self.earlier is not None:
            lines.append(f"  after {self.earlier}")
        if self.times > 1:
            lines.append(f"  {self.times} times in all")
        return "\n".join(lines)


_Shared = TypeVar("_Shared")


@dataclass
class Findings:
    """Where the checks of a launch put what they find; ``raises`` stops at the first."""

    raises: bool = False
    _found: dict[Hashable, Finding] = field(default_factory=dict)
    _shared: dict[type, object] = field(default_factory=dict)

    def note(self, key: Hashable, make: Callable[[], Finding]) -> None:
        """Count a finding, which ``make`` describes when its ``key`` is new."""
        if key in self._found:
            self._found[key] = replace(self._found[key], times=self._found[key].times + 1)
            return
        self._found[key] = make()
        if self.raises:
            raise failure(self.all)

    def of_launch(self, kind: type[_Shared]) -> _Shared:
        """The one object of this type that the checks of all clusters of the launch share."""
        made = self._shared.setdefault(kind, kind())
        assert isinstance(made, kind)
        return made

    @property
    def all(self) -> tuple[Finding, ...]:
        """What has been found, in the order in which it first showed."""
        return tuple(self._found.values())


def failure(findings: tuple[Finding, ...]) -> CheckFailed:
    """The error that findings make: ``DataRace`` if all are races."""
    kind = DataRace if all(f.check in ("races", "global_races") for f in findings) else CheckFailed
    return kind(findings)


class Check(Observer):
    """An observer of one cluster that puts what it finds into ``findings``."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
