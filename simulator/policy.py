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
    "pct": "one step at a time by whoever has the highest priority, warp or asynchronous engine; "
    "priorities, and the steps at which one drops, are drawn. pct:DEPTH:STEPS, else pct:3:4096",
    "delay": "each warp or engine runs until it must wait, the next in order then; "
    "delay:STEP:STEP... passes one over at each of these steps",
}
"""The policies by name, each with one line that says what it does. docs/simulator/schedules.md."""

PCT_DEPTH: Final = 3
PCT_STEPS: Final = 4096


@dataclass(frozen=True)
class Policy:
    """A schedule: one of ``POLICIES`` and the seed of its random choices.

    ``name`` holds the parameters that ``pct`` and ``delay`` take, after colons. Raises
    ``ValueError`` for an unknown name and for parameters that are not numbers in their limits.
    """

    name: str = "fair"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in POLICIES:
            raise ValueError(f"policy {self.name!r} is not one of {', '.join(POLICIES)}")
        words = self.name.split(":")[1:]
        most = {"pct": 2, "delay": len(words)}.get(self.kind, 0)
        least = 0 if self.kind == "delay" else 1
        if len(words) > most or not all(w.isdecimal() and int(w) >= least for w in words):
            raise ValueError(
                f"policy {self.name!r}: at most {most} numbers from {least} follow {self.kind!r}"
            )

    @property
    def kind(self) -> str:
        """The name without parameters."""
        return self.name.partition(":")[0]

    @property
    def parameters(self) -> tuple[int, ...]:
        """The numbers in the name; of ``pct`` always two, depth and steps."""
        given = tuple(int(word) for word in self.name.split(":")[1:])
        return (*given, *(PCT_DEPTH, PCT_STEPS)[len(given) :]) if self.kind == "pct" else given

    @property
    def turn_blocks(self) -> int:
        """Basic blocks that a warp runs in one turn; of ``random``, the most."""
        return {"quantum_1": 1, "run_to_block": 1024, "random": 8}.get(self.kind, 4)

    @property
    def is_random(self) -> bool:
        """Whether the order and length of turns are drawn."""
        return self.kind == "random"

    @property
    def is_stepwise(self) -> bool:
        """Whether each step is chosen among all that could be next (`machine.steps`)."""
        return self.kind in ("pct", "delay")

    @property
    def completion(self) -> str:
        """When asynchronous work completes: ``eager``, ``late``, ``random`` or ``chosen``."""
        if self.is_stepwise:
            return "chosen"
        return {"late": "late", "random": "random"}.get(self.kind, "eager")


FAIR: Final = Policy()
"""The policy of a launch that names none."""
