"""Run a small kernel under every schedule that differs from one fixed one in few places.

    def once(policy):
        out = np.zeros(32, np.uint32)
        run = launch_kernel(text, extent, [Tensor.of(out, "out")], policy=policy)
        assert (out == expected).all()
        return run

    found = explore(once, delays=2)
    assert found.is_complete and not found.failures

What is covered, and what is not: docs/simulator/schedules.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from simulator.errors import ProgramError
from simulator.machine.steps import Choice
from simulator.policy import Policy

MOST_SCHEDULES = 100_000


class Chosen(Protocol):
    """What a launch returns: at which steps of it there was a choice."""

    @property
    def choices(self) -> Sequence[Choice]:
        """The steps that several agents could take, each with their number."""


@dataclass(frozen=True)
class Failure:
    """One schedule under which the kernel is wrong; ``policy`` replays it."""

    policy: Policy
    error: Exception


@dataclass(frozen=True)
class Exploration:
    """What came of it: how many schedules ran, those that failed, and whether all have run.

    With ``is_complete`` and no failure, no schedule within the bound fails.
    """

    schedules: int
    failures: tuple[Failure, ...]
    is_complete: bool


def explore(
    run: Callable[[Policy], Chosen],
    *,
    delays: int,
    most_schedules: int = MOST_SCHEDULES,
    stop_at_first: bool = False,
) -> Exploration:
    """Run a kernel under every schedule with at most ``delays`` delays, fewest delays first.

    ``run`` launches it on fresh data under the policy that it is given and returns what the launch
    returned. It fails by a ``ProgramError``, or by ``AssertionError`` for an output that is wrong;
    no more delays are then added to that schedule. The exploration is cut short, and not complete,
    after ``most_schedules``, or at the first failure if ``stop_at_first``. A delay is that of
    `machine.steps.Delays`. Raises ``ValueError`` for a negative bound.
    """
    if delays < 0 or most_schedules < 1:
        raise ValueError(
            f"delays {delays}, most_schedules {most_schedules}: at least 0 and at least 1"
        )
    failures: list[Failure] = []
    waiting: list[tuple[int, ...]] = [()]
    for done, given in enumerate(waiting):
        if done == most_schedules or (failures and stop_at_first):
            return Exploration(done, tuple(failures), is_complete=False)
        policy = Policy(":".join(["delay", *map(str, given)]))
        try:
            choices = run(policy).choices
        except (ProgramError, AssertionError) as error:
            failures.append(Failure(policy, error))
            continue
        if len(given) < delays:
            waiting += [(*given, step) for step in _further(given, choices)]
    return Exploration(len(waiting), tuple(failures), is_complete=True)


def _further(given: tuple[int, ...], choices: Sequence[Choice]) -> Iterator[int]:
    """Steps of a run at which one more delay gives a schedule that is not reached otherwise.

    They do not come before the last delay there is; at one step there are fewer delays than agents.
    """
    for step, agents in choices:
        if not given or step > given[-1] or (step == given[-1] and given.count(step) < agents - 1):
            yield step
