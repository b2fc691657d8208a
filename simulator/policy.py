"""Which of the many legal interleavings a simulation takes: a policy and a seed.

A failure replays from the problem, the policy's name and its seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

POLICIES: Final = {
    "fair": "every warp runs four basic blocks a turn; asynchronous work completes at once",
    "run_to_block": "each warp runs until it must wait, or for 1024 blocks; asynchronous work "
    "completes at once",
    "quantum_1": "every warp runs one basic block a turn; asynchronous work completes at once",
    "late": "as fair, but asynchronous work completes only when no warp can run without it",
    "random": "turn order, turn length and completion of asynchronous work are drawn from the seed",
}
"""The policies by name, each with one line that says what it does."""


@dataclass(frozen=True)
class Policy:
    """A schedule: one of ``POLICIES`` and the seed of its random choices.

    Raises ``ValueError`` for an unknown name.
    """

    name: str = "fair"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.name not in POLICIES:
            raise ValueError(f"policy {self.name!r} is not one of {', '.join(POLICIES)}")

    @property
    def turn_blocks(self) -> int:
        """Basic blocks that a warp runs in one turn; of ``random``, the most."""
        return {"quantum_1": 1, "run_to_block": 1024, "random": 8}.get(self.name, 4)

    @property
    def is_random(self) -> bool:
        """Whether the order and length of turns are drawn."""
        return self.name == "random"

    @property
    def completion(self) -> str:
        """When asynchronous work completes: ``eager``, ``late`` or ``random``."""
        return {"late": "late", "random": "random"}.get(self.name, "eager")


FAIR: Final = Policy()
"""The policy of a launch that names none."""
