"""How much a session of the suite does, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Profile:
    """How much is searched: random problems, seconds for each minimal case, and the default seed.

    ``conformance.strategies`` gives each profile its covering array.
    """

    name: str
    random_problems: int
    shrink_seconds: float
    seed: int


PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        "smoke": Profile("smoke", random_problems=4, shrink_seconds=30.0, seed=1),
        "default": Profile("default", random_problems=16, shrink_seconds=120.0, seed=2),
        "matrix": Profile("matrix", random_problems=0, shrink_seconds=0.0, seed=4),
        "peers": Profile("peers", random_problems=0, shrink_seconds=0.0, seed=5),
        "alarms": Profile("alarms", random_problems=0, shrink_seconds=0.0, seed=6),
        "deep": Profile("deep", random_problems=500, shrink_seconds=600.0, seed=3),
    }
)
