"""Runs the warps of a cluster, turn by turn, until all have exited or none can go on."""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from simulator.errors import Deadlock, Location, ProtocolError, Trap
from simulator.events import Observer
from simulator.interpreter import Interpreter, Round
from simulator.machine.cluster import Cluster, Dim3, Launch, validate
from simulator.machine.steps import Choice, chooser
from simulator.machine.warp import POLLING_BLOCKS, Warp

_IDLE_ROUNDS = 200
"""Rounds in which no warp advances and nothing completes before it counts as a deadlock.

Two would do for warps that only wait; a warp that polls without waiting needs some turns to show
that it does nothing else.
"""
_LONGEST_SLEEP = 16
"""Rounds after which a warp at a wait is asked again though nothing has happened.

It may only want to know whether the wait is over, and has other work if it is not.
"""

_ROUND_OF_STEPS = 256
"""Steps after which the limit of instructions is looked at, where each step is chosen."""


@dataclass
class Statistics:
    """What a launch did: instructions per warp, failed polls, and counts by event name.

    Where each step was chosen, ``steps`` counts them and ``choices`` lists those with alternatives.
    """

    warp_instructions: int = 0
    polls: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    choices: list[Choice] = field(default_factory=list)


def run_grid(
    launch: Launch,
    interpreter: Interpreter,
    instruction_limit: int,
    observe: Callable[[], Observer] | None = None,
) -> Statistics:
    """Run every cluster of a launch, one after another, but for those that another takes over.

    Raises what the program's errors are; ``Trap`` when ``instruction_limit`` warp-instructions are
    not enough, so that an endless loop ends. ``observe`` makes an observer for each cluster.
    """
    validate(launch)
    rng = random.Random(launch.policy.seed)
    statistics = Statistics()
    cluster = None
    waiting = deque(_clusters(launch))
    while waiting:
        indices = waiting.popleft()
        if cluster is None or observe is not None:
            cluster = Cluster(launch, indices, rng, observe() if observe else None, waiting)
        else:
            cluster.start(indices)
        interpreter.begin(cluster)
        left = instruction_limit - statistics.warp_instructions
        scheduler = _Scheduler(cluster, interpreter, rng, left)
        if launch.policy.is_stepwise:
            scheduler.run_steps(statistics)
        else:
            scheduler.run()
        statistics.warp_instructions += cluster.instructions
        statistics.polls += cluster.polls
        statistics.counts += cluster.counts
    if cluster is not None and cluster.observer is None:
        cluster.dismiss()
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
        self._asleep: dict[Warp, int] = {}
        """Warps that ended their last turn at a wait, with the count of events at that time."""

    def run(self) -> None:
        live, idle = self._cluster.warps, 0
        asynchronous = self._cluster.asynchronous
        for number in itertools.count():
            done = self._round(live, number, idle=idle > 0)
            advanced, before = done.advanced, done.before
            at_once = asynchronous.completed
            asynchronous.step()
            if not advanced and before[1] == asynchronous.completed:
                asynchronous.complete_one()
            if asynchronous.completed > at_once:
                self._cluster.note_event()
            live = [w for w in self._cluster.warps if not w.done]
            changed = advanced or before != (self._cluster.events, asynchronous.completed)
            idle = 0 if changed else idle + 1
            self._refuse_to_hang(live, idle)
            if not live:
                break
        self._check_end()

    def run_steps(self, statistics: Statistics) -> None:
        """Run the cluster as ``run`` does, one chosen step at a time."""
        asynchronous = self._cluster.asynchronous
        choose = chooser(self._policy, self._rng, statistics.steps)
        first, live, idle = choose.step, self._cluster.warps, 0
        while live:
            awake = [w for w in live if self._asleep.get(w) != self._cluster.events]
            enabled = [*awake, *asynchronous.engines]
            if not enabled:
                self._asleep.clear()
                idle += 1
                self._refuse_to_hang(live, idle)
                continue
            agent = choose.choose(enabled)
            if isinstance(agent, Warp):
                moved = self._step(agent)
                live = [w for w in live if not w.done] if agent.done else live
            else:
                asynchronous.complete(agent)
                self._cluster.note_event()
                moved = True
            idle = 0 if moved else idle
            if choose.step % _ROUND_OF_STEPS == 0:
                self._refuse_to_hang(live, idle)
        statistics.steps += choose.step - first
        statistics.choices += choose.choices
        self._check_end()

    def _step(self, warp: Warp) -> bool:
        """One basic block of a warp; whether it did more than poll.

        After a poll that failed the warp sleeps until something happens, as at a wait.
        """
        if self._cluster.observer is not None:
            self._cluster.observer.turn(warp)
        self._interpreter.turn(warp, 1)
        if warp.blocked or warp.polling == POLLING_BLOCKS:
            self._asleep[warp] = self._cluster.events
        return warp.advanced

    def _round(self, live: list[Warp], number: int, *, idle: bool) -> Round:
        """One turn of each warp, or several by native code; the last of these rounds.

        A warp that waits is passed over while nothing has happened, unless the round before was
        ``idle`` or the warp has slept for long.
        """
        budget = self._policy.turn_blocks
        if not self._policy.is_random:
            done = self._interpreter.rounds(live, idle=idle, budget=budget, sleep=_LONGEST_SLEEP)
            if done is not None:
                return done
        before = (self._cluster.events, self._cluster.asynchronous.completed)
        awake, advanced = idle or number % _LONGEST_SLEEP == 0, False
        for warp in self._rng.sample(live, len(live)) if self._policy.is_random else live:
            if not awake and self._asleep.get(warp) == self._cluster.events:
                continue
            blocks = self._rng.randint(1, budget) if self._policy.is_random else budget
            if self._cluster.observer is not None:
                self._cluster.observer.turn(warp)
            self._interpreter.turn(warp, blocks)
            self._asleep[warp] = self._cluster.events if warp.blocked else -1
            advanced = advanced or warp.advanced
        return Round(advanced, before)

    def _refuse_to_hang(self, live: list[Warp], idle: int) -> None:
        """Raise ``Deadlock`` after too many idle rounds, ``Trap`` after too many instructions."""
        where = Location(kernel=self._cluster.launch.program.kernel.name)
        if idle > _IDLE_ROUNDS:
            raise Deadlock(f"no warp can go on\n{self._report(live)}", where)
        if self._cluster.instructions > self._limit:
            raise Trap(
                f"the limit of warp-instructions is spent: an endless loop?\n{self._report(live)}",
                where,
            )

    def _report(self, live: list[Warp]) -> str:
        """Where each warp is and what it waits for."""
        if live:
            self._interpreter.bring_back(live)
        pending = self._cluster.asynchronous.pending
        return "\n".join(
            [f"{pending} asynchronous operations are pending", *map(self._situation, live)]
        )

    def _situation(self, warp: Warp) -> str:
        """Where a warp is, and on a line of its own what it waits for.

        If it is diverged, also which lanes cannot run before these are done.
        """
        active = warp.alive if warp.mask is None else warp.mask
        others = np.flatnonzero(warp.alive & ~active).tolist()
        lanes = tuple(np.flatnonzero(active).tolist()) if others else None
        text = f"  {replace(self._cluster.site(warp, 0), kernel=None, lanes=lanes)}"
        if warp.waiting is None:
            text += "\n    runs on"
        else:
            barrier, what = warp.waiting
            text += f"\n    waits for {what} of {barrier.describe()}"
        if others:
            text += f"\n    {Location(lanes=tuple(others))} can go on only after these"
        return text

    def _check_end(self) -> None:
        """After the last warp: let asynchronous work end, and demand that nothing is owed."""
        while self._cluster.asynchronous.complete_one():
            pass
        if self._cluster.observer is not None:
            self._cluster.observer.ended(self._cluster)
        kernel = self._cluster.launch.program.kernel.name
        for cta in self._cluster.ctas:
            for barrier in cta.mbarriers.values():
                if barrier.tx:
                    raise ProtocolError(
                        f"the kernel ended, but {barrier.describe()}",
                        Location(kernel=kernel, cta=cta.index),
                    )
            cta.tensor_memory.require_empty()
