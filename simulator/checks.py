"""Which checks a simulation makes beside computing the result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

CHECKS: Final = {
    "bounds": "every access lies in an allocation, and bulk copies start inside strict tensors",
    "initialisation": "nothing unwritten is read from shared memory, TMEM or output buffers",
    "races": "accesses to shared memory and TMEM are ordered (interpreted; several times slower)",
    "deadlock": "a launch that can make no progress is stopped and its warps are listed",
}
"""The checks by name. ``bounds`` and ``deadlock`` cost nothing and are always on."""


@dataclass(frozen=True)
class Checks:
    """The switchable checks of a simulation."""

    initialisation: bool = True
    races: bool = False

    @classmethod
    def of(cls, names: Iterable[str]) -> Checks:
        """The checks with these names; ``ValueError`` for an unknown one."""
        chosen = set(names)
        if chosen - CHECKS.keys():
            raise ValueError(f"checks {sorted(chosen - CHECKS.keys())} are not in {sorted(CHECKS)}")
        return cls(initialisation="initialisation" in chosen, races="races" in chosen)


USUAL: Final = Checks()
"""The checks of a launch that names none."""
