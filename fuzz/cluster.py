"""The same campaign on Ray: searches run as actors on any machine, and all is kept on this one.

Each actor searches by itself and streams its answers, so that losing one loses the case it was at;
another takes its place. The buffers that any of them keeps go to all with their next task. Every
machine needs this repository at the same path and an environment with the extra ``cluster``.
"""

from __future__ import annotations

import importlib
import os
from argparse import Namespace
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import torch
from hypothesis.database import InMemoryExampleDatabase

from conformance.kernel import UsageError
from fuzz.campaign import Campaign
from fuzz.jobs import Answer
from fuzz.search import SEEDS_KEY, Search
from fuzz.worker import ROOT

TURNS = 100  # of a search in one task; then it hears what others keep

Buffers = list[tuple[bytes, bytes]]  # with their database keys


class Actor:
    """One search on some machine of the cluster, with a worker of its own."""

    def __init__(self, options: Namespace) -> None:
        from fuzz.commands import hunt_of

        torch.set_num_threads(1)
        self._hunt = hunt_of(options)
        self._executor = self._hunt.executor()
        self._features: set[str] = set()

    def process(self) -> int:
        """The id of the process that this actor is."""
        return os.getpid()

    def search(self, seed: str, known: Buffers) -> Iterator[tuple[list[Answer], Buffers]]:
        """Yield, turn by turn, the answers and the buffers that were kept."""
        answers: list[Answer] = []

        def take(answer: Answer) -> bool:
            answers.append(answer)
            new = answer.features - self._features
            self._features |= new
            return bool(new)

        kept = _Kept(known)
        search = Search(self._hunt.strategy, self._executor, take, seed=seed, database=kept)
        for _ in islice(search.turns(), TURNS):
            yield list(answers), kept.taken()
            answers.clear()


class _Kept(InMemoryExampleDatabase):
    """A database that hands over what was saved since it was last asked."""

    def __init__(self, known: Buffers) -> None:
        super().__init__()
        self._new: Buffers = []
        for key, value in known:
            super().save(key, value)

    def save(self, key: bytes, value: bytes) -> None:
        """Keep a buffer."""
        super().save(key, value)
        self._new.append((key, value))

    def taken(self) -> Buffers:
        """What is new."""
        new, self._new = self._new, []
        return new


class Cluster:
    """A connection to the Ray cluster at ``address``; 'local' starts one on this machine."""

    def __init__(self, address: str, workers: int, options: Namespace) -> None:
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise UsageError("--ray: needs the extra: pip install mla-testbed[cluster]") from error
        self._options = options
        self._ray.init(
            address=None if address == "local" else address,
            num_cpus=workers if address == "local" else None,
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
        )

    def search(self, campaign: Campaign, number: int) -> None:
        """Have an actor search until the campaign is over; a lost one is replaced."""
        actor = self._actor(campaign, number)
        for task in count():
            seed = f"{campaign.seed} {number} {campaign.growth.cases} {task}"
            known = [(SEEDS_KEY, buffer) for buffer in campaign.database.fetch(SEEDS_KEY)]
            turns = actor.search.options(num_returns="streaming")
            try:
                for turn in turns.remote(seed, known):
                    answers, kept = self._ray.get(turn)
                    for key, buffer in kept:
                        campaign.database.save(key, buffer)
                    for answer in answers:
                        campaign.take(answer)
                    campaign.shrink_found()
            except self._ray.exceptions.RayActorError:
                campaign.tell(f"search {number} is lost: another takes its place")
                actor = self._actor(campaign, number)

    def _actor(self, campaign: Campaign, number: int) -> Any:
        """A new actor, which ends with the campaign."""
        actor = self._ray.remote(Actor).options(num_cpus=1).remote(self._options)
        campaign.tell(f"search {number} is process {self._ray.get(actor.process.remote())}")
        return actor

    def close(self) -> None:
        """Leave the cluster; actors of this campaign end with it."""
        self._ray.shutdown()
