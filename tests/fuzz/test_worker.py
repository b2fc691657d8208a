"""What a kernel does to its process costs one case, is a finding, and says which."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.session import make_subject
from conformance.strategies import Choice
from fuzz.worker import Limits, Worker
from reference.problem import Dims, Problem, Recipe
from reports.records import Case
from tests.fuzz.kernels import CRASHES, HOARDS, IS_KILLED, LEAVES, NAME, SPINS

KERNEL = NAME.format("ends")


def case(heads: int = 1) -> Case:
    problem = Problem(Dims(heads, 1), "bfloat16", 16, (5,), 192**-0.5)
    subject = make_subject(KERNEL, "simulator")
    return subject.case("completes", (problem, Recipe(), Choice(0, 148)))


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worker") / "once"


@pytest.fixture(scope="module")
def worker(once: Path) -> Iterator[Worker]:
    """One worker for all tests: that it survives each is what they show."""
    os.environ["KILLED_ONCE"] = str(once)
    started = Worker(KERNEL, "simulator", Limits(seconds=1, memory_gib=4))
    yield started
    started.close()


@pytest.mark.parametrize(
    ("heads", "error", "reason"),
    [
        (CRASHES, "Crash", "Crash: the worker killed by SIGSEGV"),
        (LEAVES, "Crash", "Crash: the worker exited with code 7"),
        (SPINS, "Hang", "Hang: the worker used more than 1 s of processor time"),
        (HOARDS, "RuntimeError", "can't allocate memory"),
    ],
)
def test_a_kernel_that_ends_its_process_is_a_finding_and_costs_one_case(
    worker: Worker, heads: int, error: str, reason: str
) -> None:
    assert worker.run(case()).result.verdict == "passed"
    ended = worker.run(case(heads)).result
    assert ended.is_bad
    assert ended.error_class == error
    assert reason in (ended.reason or "")
    assert worker.run(case()).result.verdict == "passed"


def test_a_worker_that_somebody_kills_says_nothing_of_the_case(worker: Worker, once: Path) -> None:
    assert worker.run(case(IS_KILLED)).result.verdict == "passed"
    assert once.exists()


def test_a_worker_goes_on_when_its_processes_are_killed_between_cases(worker: Worker) -> None:
    before = worker.run(case()).result
    os.kill(worker.pid, signal.SIGKILL)
    assert replace(worker.run(case()).result, seconds=0.0) == replace(before, seconds=0.0)
    os.kill(worker.host_pid, signal.SIGKILL)
    os.kill(worker.pid, signal.SIGKILL)
    assert worker.run(case()).result.verdict == "passed"


def test_a_worker_that_is_closed_leaves_no_process(worker: Worker) -> None:
    worker.run(case())
    pids = [worker.pid, worker.host_pid]
    worker.close()
    deadline = time.monotonic() + 30
    while any(map(runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(runs, pids))


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie, which only its parent can put away."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
