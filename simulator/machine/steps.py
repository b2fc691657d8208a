"""Who takes the next step, where a policy decides each one: priorities, or a count of delays.

A step is one basic block of a warp or the completion of one piece of asynchronous work. Both ways
have a guarantee, which docs/simulator/schedules.md derives and limits.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Protocol

from simulator.policy import Policy

Choice = tuple[int, int]
"""A step and the number of agents that could take it."""

_LONGEST_RUN = 1024
"""Steps in a row after which an agent must let another one run: it may spin on memory."""


class Chooser(Protocol):
    """Decides who takes each step of a cluster.

    ``step`` is the number of the next one and ``choices`` lists those at which several could go.
    """

    step: int
    choices: list[Choice]

    def choose(self, enabled: Sequence[Hashable]) -> Hashable:
        """One of the agents that can go on; the step is counted."""
        ...


def chooser(policy: Policy, rng: random.Random, first_step: int) -> Chooser:
    """The chooser of a policy for one cluster, whose first step has this number in the launch."""
    if policy.kind == "pct":
        depth, steps = policy.parameters
        return Priorities(rng, depth, steps)
    return Delays(policy.parameters, first_step)


class _Runs:
    """Counts steps in a row, and says when somebody else must have a turn."""

    def __init__(self) -> None:
        self._last: Hashable = None
        self._length = 0

    def is_too_long(self, agent: Hashable) -> bool:
        """Note a step of ``agent``; whether it has had too many in a row."""
        self._length = self._length + 1 if agent == self._last else 1
        self._last = agent
        return self._length > _LONGEST_RUN


class Priorities:
    """Probabilistic concurrency testing: always the agent of highest priority, which may drop.

    Each agent draws a priority above ``depth`` when it first appears. At ``depth - 1`` steps drawn
    from ``steps`` the one that is about to go drops to a priority below all those, each time to
    another one. Source: Burckhardt, Kothari, Musuvathi, Nagarakatte, "A Randomized Scheduler with
    Probabilistic Guarantees of Finding Bugs", ASPLOS 2010.
    """

    def __init__(self, rng: random.Random, depth: int, steps: int) -> None:
        self.step = 0
        self.choices: list[Choice] = []
        self._rng = rng
        self._depth = depth
        self._priorities: dict[Hashable, float] = {}
        self._drops: dict[int, list[int]] = {}
        for priority in range(1, depth):
            self._drops.setdefault(rng.randrange(steps), []).append(priority)
        self._runs = _Runs()
        self._lowest = 0

    def choose(self, enabled: Sequence[Hashable]) -> Hashable:
        """The agent of highest priority, after the drops that are due."""
        for agent in enabled:
            if agent not in self._priorities:
                self._priorities[agent] = self._depth + self._rng.random()
        for priority in self._drops.get(self.step, ()):
            self._priorities[self._highest(enabled)] = priority
        found = self._highest(enabled)
        if self._runs.is_too_long(found):
            self._lowest -= 1
            self._priorities[found] = self._lowest
            found = self._highest(enabled)
        self.step += 1
        return found

    def _highest(self, enabled: Sequence[Hashable]) -> Hashable:
        return max(enabled, key=self._priorities.__getitem__)


class Delays:
    """Round robin without preemption, except that ``delays`` pass an agent over.

    Agents are numbered as they appear. One goes on until it must wait; then the next in number
    that can. At each step in ``delays``, once for each time it is listed, the agent whose turn it
    is loses it to the next one. Source: Emmi, Qadeer, Rakamaric, "Delay-bounded scheduling", POPL
    2011.
    """

    def __init__(self, delays: Sequence[int], first_step: int) -> None:
        self.step = first_step
        self.choices: list[Choice] = []
        self._delays = Counter(delays)
        self._numbers: dict[Hashable, int] = {}
        self._current = 0
        self._runs = _Runs()

    def choose(self, enabled: Sequence[Hashable]) -> Hashable:
        """The agent whose turn it is, after the delays of this step."""
        for agent in enabled:
            self._numbers.setdefault(agent, len(self._numbers))
        count = len(self._numbers)
        order = sorted(enabled, key=lambda agent: (self._numbers[agent] - self._current) % count)
        skipped = min(self._delays[self.step], len(order) - 1)
        if self._runs.is_too_long(order[skipped]):
            skipped = (skipped + 1) % len(order)
        if len(order) > 1:
            self.choices.append((self.step, len(order)))
        self._current = self._numbers[order[skipped]]
        self.step += 1
        return order[skipped]
