"""A worker: a process of its own in which cases run, so that what a kernel does costs one case.

The process that `Worker` starts loads the kernel and waits. For each *life* it forks a child, which
answers case after case until it dies: a crash, a hang and memory that runs out end the child alone,
and the next life begins in milliseconds. A case may use so many seconds of processor time, and the
kernel ends the child that uses more, whatever it is doing.

    python -m fuzz.worker FD KERNEL ENGINE
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from conformance.properties import COMPLETES
from fuzz.jobs import Answer, Bench
from reports.records import Case, CaseResult

ROOT = Path(__file__).parents[1]
COMPILE_SECONDS = 600
WALL_FACTOR = 10  # seconds on the clock for each second of processor time, on a busy machine
ENDED = {
    signal.SIGPROF: ("Hang", "used more than {limit} s of processor time"),
    signal.SIGALRM: ("Hang", "did not end within {wall} s"),
}
_STATUS = struct.Struct("i")


class WorkerError(RuntimeError):
    """A worker that cannot be started, or that its own process does not outlive."""


@dataclass(frozen=True)
class Limits:
    """What one case may use: seconds of processor time, and GiB beyond what the worker holds."""

    seconds: int = 60
    memory_gib: float = 8.0


class Worker:
    """A worker for one kernel. ``folder`` is searched for packages before this repository is."""

    def __init__(
        self, kernel: str, engine: str, limits: Limits = Limits(), folder: Path | None = None
    ) -> None:
        self._asked = (kernel, engine, folder)
        self._limits = limits
        self._life: Connection | None = None
        self.pid = 0
        """The process of the present life, 0 between two."""
        self._start()

    @property
    def host_pid(self) -> int:
        """The process that forks the lives."""
        return self._process.pid

    def run(self, case: Case, *rest: Any) -> Answer:
        """How ``case`` ends. A worker that it kills is a result: an error class in words.

        A life that somebody kills says nothing of the case, so SIGKILL counts if it comes twice.
        """
        answer = self._outlived(case, rest)
        if isinstance(answer, int) and answer == signal.SIGKILL:
            answer = self._outlived(case, rest)
        return self._died(case, answer) if isinstance(answer, int) else answer

    def close(self) -> None:
        """End the worker, with the case that it is at."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._end_life()
        self._control.close()
        self._process.kill()
        self._process.wait()

    def _start(self) -> None:
        """Start the process that forks the lives."""
        kernel, engine, folder = self._asked
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        paths = [str(folder)] if folder else []
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, str(ROOT)])}
        command = [sys.executable, "-P", "-m", "fuzz.worker", str(theirs.fileno()), kernel, engine]
        with theirs:
            self._process = subprocess.Popen(
                command,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Ctrl-C is for the campaign, which then ends its workers.
                start_new_session=True,
            )

    def _outlived(self, case: Case, rest: tuple[Any, ...]) -> Answer | int:
        """As `_attempt`, with another process where somebody has ended this one."""
        try:
            return self._attempt(case, rest)
        except WorkerError:
            self.close()
            self._start()
            return self._attempt(case, rest)

    def _attempt(self, case: Case, rest: tuple[Any, ...]) -> Answer | int:
        """The answer, or the signal or negative exit code that ended the life."""
        life = self._life or self._begin()
        try:
            _send(life, (case, rest, self._limits))
            answer: Answer = _receive(life)
        except (EOFError, OSError):
            self._end_life()
            return self._status()
        return answer

    def _begin(self) -> Connection:
        """A new life."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
            except OSError as error:
                raise WorkerError(f"the worker of process {self.host_pid} has ended") from error
        self._life = Connection(ours.detach())
        try:
            self.pid = _receive(self._life)
        except (EOFError, OSError) as error:
            raise WorkerError(f"the worker of process {self.host_pid} has ended") from error
        return self._life

    def _end_life(self) -> None:
        if self._life is not None:
            self._life.close()
        self._life, self.pid = None, 0

    def _status(self) -> int:
        """What ended the last life, as its host tells."""
        told = self._control.recv(_STATUS.size)
        if len(told) < _STATUS.size:
            raise WorkerError(f"the worker of process {self.host_pid} has ended")
        return int(_STATUS.unpack(told)[0])

    def _died(self, case: Case, status: int) -> Answer:
        """The result of a case that ended its worker."""
        limit = self._limits.seconds
        if status <= 0:
            name, reason = "Crash", f"exited with code {-status}"
        else:
            name, reason = ENDED.get(
                signal.Signals(status), ("Crash", f"killed by {signal.Signals(status).name}")
            )
        words = reason.format(limit=limit, wall=limit * WALL_FACTOR)
        done = replace(case, property=COMPLETES) if case.property != COMPLETES else case
        named = case if case.property.startswith("same_") else done
        return Answer(
            CaseResult(named, "failed", error_class=name, reason=f"{name}: the worker {words}")
        )


def main(arguments: list[str]) -> int:
    """Load the kernel and fork lives until whoever started this process has gone."""
    descriptor, kernel, engine = arguments
    torch.set_num_threads(1)
    control = socket.socket(fileno=int(descriptor))
    bench = Bench(kernel, engine)
    while True:
        _, handles, _, _ = socket.recv_fds(control, 1, 1)
        if not handles:
            return 0
        child = os.fork()
        if child == 0:
            try:
                control.close()
                _live(Connection(handles[0]), bench)
            finally:
                os._exit(0)
        os.close(handles[0])
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        try:
            control.send(_STATUS.pack(-code))
        except OSError:
            return 0


def _live(life: Connection, bench: Bench) -> None:
    """Answer cases until the other side has gone."""
    _send(life, os.getpid())
    limited = False
    while True:
        try:
            case, rest, limits = _receive(life)
        except (EOFError, OSError):
            return
        if not limited:
            _limit_memory(limits.memory_gib)
            limited = True
        _send(life, _answer(bench, case, rest, limits))


def _answer(bench: Bench, case: Case, rest: tuple[Any, ...], limits: Limits) -> Answer:
    """How a case ends that does not end this process."""
    _timed(COMPILE_SECONDS)
    # What cannot be compiled cannot be run either, and the run says why.
    with suppress(Exception):
        bench.compile(case)
    _timed(limits.seconds)
    try:
        return bench.do(case, rest)
    except Exception as error:  # a wrong kernel may raise anything, a wrong plan too
        reason = f"{type(error).__name__}: {error}"
        return Answer(CaseResult(case, "error", error_class=type(error).__name__, reason=reason))
    finally:
        _timed(0)


def _send(life: Connection, value: Any) -> None:
    """Send a value whole; `Connection.send` would share tensors by way of a third process."""
    life.send_bytes(pickle.dumps(value))


def _receive(life: Connection) -> Any:
    return pickle.loads(life.recv_bytes())


def _timed(seconds: int) -> None:
    """Have the operating system end this process after so many seconds; 0 never."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * WALL_FACTOR)


def _limit_memory(gib: float) -> None:
    """Refuse this process more address space than it has now and so much."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + int(gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
