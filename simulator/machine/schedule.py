"""Runs the warps of a cluster, turn by turn, until all have exited or none can go on."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from simulator.errors import Deadlock, Location, ProtocolError, Trap
from simulator.interpreter import Interpreter
from simulator.machine.cluster import Cluster, Dim3, Launch, validate
from simulator.machine.warp import Warp

_IDLE_ROUNDS = 200
"""Rounds in which no warp advances and nothing completes before it counts as a deadlock.

Two would do for warps that only wait; a warp that polls without waiting needs a few turns to get
around its loop and show whether it does anything else.
"""


@dataclass
class Statistics:
    """What a launch did: instructions per warp, failed polls, and counts by event name."""

    warp_instructions: int = 0
    polls: int = 0
    counts: Counter[str] = field(default_factory=Counter)


def run_grid(launch: Launch, interpreter: Interpreter, instruction_limit: int) -> Statistics:
    """Run every cluster of a launch, one after another.

    Raises what the program's errors are; ``Trap`` when ``instruction_limit`` warp-instructions are
    not enough, so that an endless loop ends.
    """
    validate(launch)
    rng = random.Random(launch.policy.seed)
    statistics = Statistics()
    for indices in _clusters(launch):
        cluster = Cluster(launch, indices, rng)
        _Scheduler(cluster, interpreter, rng, instruction_limit - statistics.warp_instructions).run()
        statistics.warp_instructions += sum(w.instructions for w in cluster.warps)
        statistics.polls += sum(w.polls for w in cluster.warps)
        statistics.counts += cluster.counts
    return statistics


def _clusters(launch: Launch) -> Iterator[list[Dim3]]:
    """The CTA indices of each cluster, x fastest, in rank order."""
    steps = [range(0, g, c) for g, c in zip(launch.grid, launch.cluster, strict=True)]
    for z, y, x in itertools.product(steps[2], steps[1], steps[0]):
        yield [
            (x + i, y + j, z + k)
            for k, j, i in itertools.product(*(range(launch.cluster[a]) for a in (2, 1, 0)))
        ]


class _Scheduler:
    def __init__(
        self, cluster: Cluster, interpreter: Interpreter, rng: random.Random, instruction_limit: int
    ) -> None:
        self._cluster = cluster
        self._interpreter = interpreter
        self._policy = cluster.launch.policy
        self._rng = rng
        self._limit = instruction_limit

    def run(self) -> None:
        live, idle = self._cluster.warps, 0
        while live:
            before = (self._cluster.events, self._cluster.asynchronous.completed)
            advanced = self._round(live, idle > 0)
            self._cluster.asynchronous.step()
            if not advanced and before[1] == self._cluster.asynchronous.completed:
                self._cluster.asynchronous.complete_one()
            live = [w for w in live if not w.done]
            if advanced or before != (self._cluster.events, self._cluster.asynchronous.completed):
                idle = 0
            else:
                idle += 1
                if idle > _IDLE_ROUNDS:
                    raise Deadlock(self._report(live), Location(kernel=self._kernel))
            if sum(w.instructions for w in live) > self._limit:
                raise Trap("the limit of warp-instructions is spent: an endless loop?\n"
                           + self._report(live), Location(kernel=self._kernel))  # fmt: skip
        self._check_end()

    def _round(self, live: list[Warp], awake: bool) -> bool:
        """One turn of each warp; whether any did more than poll.

        A warp that waits is passed over while nothing has happened, unless ``awake``.
        """
        advanced = False
        order = self._rng.sample(live, len(live)) if self._policy.is_random else live
        for warp in order:
            if not awake and warp.asleep_since == self._cluster.events:
                continue
            budget = self._policy.turn_blocks
            self._interpreter.turn(warp, self._rng.randint(1, budget) if self._policy.is_random else budget)
            warp.asleep_since = self._cluster.events if warp.waiting and not warp.advanced else -1
            advanced = advanced or warp.advanced
        return advanced

    @property
    def _kernel(self) -> str:
        return self._cluster.launch.program.kernel.name

    def _report(self, live: list[Warp]) -> str:
        """What each warp waits for, and where."""
        lines = [f"no warp can go on; {self._cluster.asynchronous.pending} asynchronous operations are pending"]
        blocks = self._cluster.launch.program.blocks
        for warp in live:
            block = blocks[warp.block] if warp.block < len(blocks) else None
            where = Location(ptx_line=block.line if block else None, cta=warp.cta.index, warp=warp.rank)
            if warp.waiting is not None:
                barrier, how = warp.waiting
                lines.append(f"  {where} waits for {how} of {barrier.describe()}")
            else:
                lines.append(f"  {where} runs without end")
        return "\n".join(lines)

    def _check_end(self) -> None:
        """After the last warp: let asynchronous work end, and demand that nothing is owed."""
        while self._cluster.asynchronous.complete_one():
            pass
        for cta in self._cluster.ctas:
            for barrier in cta.mbarriers.values():
                if barrier.tx:
                    raise ProtocolError(f"the kernel ended, but {barrier.describe()}",
                                        Location(kernel=self._kernel, cta=cta.index))  # fmt: skip
            cta.tensor_memory.require_empty()
