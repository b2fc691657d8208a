"""Work in processes of its own, forked from this one: what is loaded here is loaded there.

A mutant may hang, exhaust memory or crash its process; all of it is no more than its own end.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")

LOOK_SECONDS = 1.0  # between looks at processes that may have taken too long


def in_processes(
    jobs: Iterable[Job], work: Callable[[Job], Result], *, workers: int, seconds: float
) -> Iterator[tuple[Job, Result | None]]:
    """Yield each job with its result, in the order in which they end.

    The result is None where a process ended without one or was stopped after ``seconds``.
    """
    context = multiprocessing.get_context("fork")
    waiting = deque(jobs)
    running: dict[Connection, tuple[Job, BaseProcess, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.popleft()
                here, there = context.Pipe(duplex=False)
                process: BaseProcess = context.Process(
                    target=_send, args=(there, work, job), daemon=True
                )
                process.start()
                there.close()
                running[here] = job, process, time.monotonic() + seconds
            for end in _ended(running):
                job, process, _ = running.pop(end)
                result: Result | None = _received(end)
                process.kill()
                process.join()
                yield job, result
    finally:
        for _, process, _ in running.values():
            process.kill()


def _send(to: Connection, work: Callable[[Job], Result], job: Job) -> None:
    to.send(work(job))


def _ended(running: dict[Connection, tuple[Job, BaseProcess, float]]) -> list[Connection]:
    """The ends of processes that have sent something, have ended, or have taken too long."""
    ready = wait(list(running), LOOK_SECONDS)
    late = [end for end, (_, _, limit) in running.items() if time.monotonic() > limit]
    return [end for end in running if end in ready or end in late]


def _received(end: Connection) -> Any:
    """What a process has sent, None if nothing."""
    try:
        return end.recv() if end.poll() else None
    except (EOFError, OSError):
        return None
    finally:
        end.close()
