"""How fast the simulator is, against what it is meant to reach: figures printed and recorded.

    python -m benchmarks.speed                      # warp-instructions a second, checks, cold start
    python -m benchmarks.speed --growth docs/simulator/growth.svg   # time and memory over K and B

All seconds are CPU seconds of this process (``time.process_time``), of the quickest of several
calls after one that warms up. *Engines* is the time inside the functions of MMA and TMA, which are
wrapped for it; *rest* is all other time in ``run_grid``. The wrapping, 2 to 3 us for each MMA and
copy, lies in the rest, so that the rates are lower bounds. Nothing here ran on a Blackwell GPU, and
nothing is gated.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

import simulator.launch
from conformance.kernel import Kernel, RunOptions, load_kernel
from reference.inputs import Inputs, make_inputs
from reference.problem import Dims, Problem, Recipe
from reports.plots import STYLE
from reports.records import Measurement, RecordWriter
from simulator.checks import Checks
from simulator.codegen.accumulate import engines
from simulator.codegen.image import forms
from simulator.codegen.library import Library
from simulator.codegen.native_state import NativeCluster
from simulator.machine.asynchronous import Asynchronous

KERNELS = {
    "tokenspeed-mla-2.0.4-fp8": "float8_e4m3fn",
    "tokenspeed-mla-2.0.4-bf16": "bfloat16",
    "optimized": "float8_e4m3fn",
}
CALLS = 5
KEYS = (1024, 2048, 4096, 8192, 16384)
BATCHES = (1, 2, 4, 8, 16)
BATCH_KEYS = 1024
_ENGINES = {"mma_f16": 6, "mma_f8f6f4": 6, "tma_load": 6}


@dataclass(frozen=True)
class Call:
    """A decode call of one kernel: 128 heads, one query token, pages of 64."""

    kernel: str
    dtype: str
    seq_lens: tuple[int, ...]
    splits: int

    def problem(self) -> Problem:
        """The problem, scaled as DeepSeek's heads are."""
        return Problem(Dims(128, 1), self.dtype, 64, self.seq_lens, softmax_scale=192**-0.5)


@dataclass
class Clock:
    """CPU seconds in functions that were wrapped, by name."""

    seconds: dict[str, float]

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, whose seconds are added up under ``name``."""

        def wrapped(*arguments: Any, **named: Any) -> Any:
            begun = time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                spent = time.process_time() - begun
                self.seconds[name] = self.seconds.get(name, 0.0) + spent

        return wrapped


@contextlib.contextmanager
def grid_timed(clock: Clock) -> Iterator[None]:
    """Times ``run_grid``: everything between the launches and their results."""
    true = simulator.launch.run_grid
    simulator.launch.run_grid = clock.timed("grid", true)
    try:
        yield
    finally:
        simulator.launch.run_grid = true


@contextlib.contextmanager
def engines_timed(clock: Clock) -> Iterator[None]:
    """Times the functions of MMA and TMA, by calling them through Python."""
    true = NativeCluster._bind_tensor_core
    kept: list[Any] = []

    def bind(native: NativeCluster, cluster: Any) -> None:
        true(native, cluster)
        for name, words in _ENGINES.items():
            kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, *[ctypes.c_int64] * words)
            wrapped = kind(clock.timed("engines", kind(getattr(native.state, name))))
            kept.append(wrapped)
            setattr(native.state, name, ctypes.cast(wrapped, ctypes.c_void_p).value)

    NativeCluster._bind_tensor_core = bind  # type: ignore[method-assign]
    try:
        yield
    finally:
        NativeCluster._bind_tensor_core = true  # type: ignore[method-assign]


@contextlib.contextmanager
def work_timed(clock: Clock) -> Iterator[None]:
    """Times asynchronous work that Python does: MMAs, copies and arrivals of a watched cluster."""
    true = Asynchronous._run
    Asynchronous._run = clock.timed("engines", true)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Asynchronous._run = true  # type: ignore[method-assign]


@contextlib.contextmanager
def all_checked() -> Iterator[None]:
    """Launches make every check, and go on whatever is found."""
    true = simulator.launch.launch
    every = Checks.of("all", on_finding="collect")
    simulator.launch.launch = lambda *given, **named: true(*given, **{**named, "checks": every})
    try:
        yield
    finally:
        simulator.launch.launch = true


Within = Callable[[Clock], contextlib.AbstractContextManager[None]]


def fastest(call: Callable[[], Any], within: Sequence[Within]) -> dict[str, float]:
    """The seconds of the quickest of ``CALLS`` calls, whole and by the names that are timed."""
    found = []
    for _ in range(CALLS):
        clock = Clock({})
        with contextlib.ExitStack() as stack:
            for timed in within:
                stack.enter_context(timed(clock))
            clock.timed("call", call)()
        found.append(clock.seconds)
    return min(found, key=lambda seconds: seconds["call"])


def rates(call: Call) -> dict[str, float]:
    """Seconds of a call, of its parts, and millions of warp-instructions a second over the rest."""
    kernel, problem, inputs = _ready(call)
    options = RunOptions(num_splits=call.splits)

    def run() -> Any:
        return kernel.run(problem, inputs, options)

    count = sum(launch.warp_instructions for launch in run().launches)
    whole = fastest(run, ())["call"]
    found = fastest(run, (grid_timed, engines_timed))
    rest = found["grid"] - found["engines"]
    return {"call": whole, "grid": found["grid"], "engines": found["engines"], "rest": rest,
            "warp_instructions": count, "M/s": count / rest / 1e6}  # fmt: skip


def checked_rate(call: Call) -> dict[str, float]:
    """Millions of warp-instructions a second with every check; findings are collected.

    *Engines* are here what completes asynchronously, with what the checks do about it.
    """
    kernel, problem, inputs = _ready(call)
    options = RunOptions(num_splits=call.splits)

    def run() -> Any:
        return kernel.run(problem, inputs, options)

    with all_checked():
        count = sum(launch.warp_instructions for launch in run().launches)
        found = fastest(run, (grid_timed, work_timed))
    grid, rest = found["grid"], found["grid"] - found["engines"]
    return {"grid": grid, "engines": found["engines"], "rest": rest, "warp_instructions": count,
            "M/s": count / grid / 1e6, "M/s of rest": count / rest / 1e6}  # fmt: skip


def cold_start(call: Call) -> dict[str, float]:
    """Seconds from PTX to native code with nothing in the cache, both kernels of a call."""
    compiled = load_kernel(call.kernel).compile(call.problem(), "sm_100a")
    with tempfile.TemporaryDirectory() as folder:
        begun = time.process_time()
        program = simulator.launch.load(compiled.ptx, compiled.host_object, compiled.entry)
        read = time.process_time() - begun
        library = Library(Path(folder))
        for interpreter in program.kernels.values():
            library.functions(forms(interpreter.program))
        engines(library)
        return {"read": read, "total": time.process_time() - begun}


def growth(batches: Sequence[tuple[int, ...]]) -> list[tuple[int, float, float]]:
    """Keys in all, seconds of a call, and MiB that the process held at most, for each batch."""
    points = []
    for seq_lens in batches:
        call = Call("optimized", "float8_e4m3fn", seq_lens, 1)
        kernel, problem, inputs = _ready(call)
        options = RunOptions(num_splits=1)
        kernel.run(problem, inputs, options)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak from here on
        run = functools.partial(kernel.run, problem, inputs, options)
        points.append((sum(seq_lens), fastest(run, ())["call"], _peak_mib()))
    return points


def draw(series: dict[str, list[tuple[int, float, float]]], path: Path) -> None:
    """Write the plot: seconds and MiB over the keys of a call."""
    with matplotlib.rc_context({**STYLE, "text.color": "black"}):
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        for axes, column, label in zip(
            figure.subplots(1, 2), (1, 2), ("CPU seconds of a call", "peak MiB of the process"),
            strict=True,
        ):  # fmt: skip
            for name, points in series.items():
                axes.plot([p[0] for p in points], [p[column] for p in points], "o-", label=name)
            axes.set_xlabel("keys of all requests")
            axes.set_ylabel(label)
            axes.set_ylim(0)
            axes.legend(frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _peak_mib() -> float:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


def _ready(call: Call) -> tuple[Kernel, Problem, Inputs]:
    problem = call.problem()
    return load_kernel(call.kernel), problem, make_inputs(problem, Recipe(), 0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and record under ``results/``."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--growth", type=Path, metavar="SVG", help="draw time and memory instead")
    parser.add_argument("--results", default="results", help="where the records go")
    chosen = parser.parse_args(arguments)
    with RecordWriter("bench", chosen.results, device="simulator on the CPU") as records:

        def note(kernel: str, name: str, found: dict[str, float], value: str, unit: str) -> None:
            records.measure(Measurement(kernel, "benchmark", name, found[value], unit, dict(found)))
            shown = ", ".join(f"{key} {number:.4g}" for key, number in found.items())
            sys.stdout.write(f"{kernel}, {name}: {shown}\n")
            sys.stdout.flush()

        if chosen.growth:
            series = {
                "one request": growth([(keys,) for keys in KEYS]),
                f"requests of {BATCH_KEYS}": growth([(BATCH_KEYS,) * b for b in BATCHES]),
            }
            for name, points in series.items():
                for keys, seconds, mib in points:
                    found = {"keys": keys, "seconds": seconds, "peak_mib": mib}
                    note("optimized", f"growth, {name}, {keys}", found, "seconds", "s")
            draw(series, chosen.growth)
            return
        for kernel, dtype in KERNELS.items():
            for keys, splits in ((4096, 4), (16384, 1)):
                call = Call(kernel, dtype, (keys,), splits)
                note(kernel, f"K {keys}, splits {splits}", rates(call), "M/s", "M/s")
            checked = checked_rate(Call(kernel, dtype, (256, 200), 2))
            note(kernel, "all checks", checked, "M/s", "M/s")
            note(kernel, "cold start", cold_start(Call(kernel, dtype, (256,), 2)), "total", "s")


if __name__ == "__main__":
    main()
