"""A kernel in memory: the reference, rounded to the output's formats, with faults to switch on.

It proves the suite both ways. The healthy one must pass, and each fault must fail and name the
property that it breaks. ``--kernel tests/conformance/fake_kernel.py:healthy`` names a factory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from conformance.kernel import (
    Algorithm,
    Compiled,
    Limits,
    Output,
    Plan,
    RunOptions,
    Support,
    poisoned,
)
from reference.decode import decode
from reference.inputs import Inputs
from reference.problem import Problem
from simulator.errors import Location, OutOfBounds

ALGORITHM = Algorithm(
    p_scale=1.0,
    rescale_threshold=0.0,
    tile_n=128,
    lse_base=2,
    split_rule="one",
    casts_p=False,
)
LIMITS = Limits()
Fault = Callable[[Problem, Inputs], Output]


def right(problem: Problem, inputs: Inputs) -> Output:
    """The exact result, each element rounded once."""
    exact = decode(problem, inputs)
    return Output(exact.out.to(getattr(torch, problem.output_dtype)), exact.lse.float())


@dataclass(frozen=True)
class FakeKernel:
    """Runs ``compute`` in place of a program; ``arches`` are those of a real kernel."""

    compute: Fault = right
    name: str = "fake"
    arches: tuple[str, ...] = ("sm_100a",)
    algorithm: Algorithm = ALGORITHM
    limits: Limits = LIMITS
    dtypes: tuple[str, ...] = ("float8_e4m3fn",)
    most_keys: int = 2**20

    def supports(self, problem: Problem) -> Support:
        longest = max(problem.seq_lens, default=0)
        if problem.dtype not in self.dtypes:
            known = ", ".join(self.dtypes)
            return Support(False, f"dtype must be one of {known}, got {problem.dtype}")
        if longest > self.most_keys:
            return Support(False, f"seq_lens must be at most {self.most_keys}, got {longest}")
        return Support(True)

    def plan(self, problem: Problem, num_sms: int) -> Plan:
        return Plan(num_splits=1, workspace_bytes=0)

    def specialisation_key(self, problem: Problem) -> tuple[int, int]:
        return problem.dims.num_heads, problem.page_size

    def compile(self, problem: Problem, arch: str) -> Compiled:
        return Compiled(ptx="", host_object=b"", entry="")

    def run(self, problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        return self.compute(problem, inputs)


def healthy() -> FakeKernel:
    return FakeKernel()


def zero_output() -> FakeKernel:
    def compute(problem: Problem, inputs: Inputs) -> Output:
        output = right(problem, inputs)
        return replace(output, out=torch.zeros_like(output.out))

    return FakeKernel(compute)


def key_fewer() -> FakeKernel:
    """The last key of every request is never read."""

    def compute(problem: Problem, inputs: Inputs) -> Output:
        return right(_longer(problem, -1), inputs)

    return FakeKernel(compute)


def key_more() -> FakeKernel:
    """The key after the last one is taken in, as by ``<=`` in place of ``<`` in the tail mask."""

    def compute(problem: Problem, inputs: Inputs) -> Output:
        slots = inputs.block_tables.shape[1] * problem.page_size
        return right(_longer(problem, 1 if max(problem.seq_lens) < slots else 0), inputs)

    return FakeKernel(compute)


def natural_lse() -> FakeKernel:
    """LSE in base e where base 2 was asked for."""

    def compute(problem: Problem, inputs: Inputs) -> Output:
        output = right(problem, inputs)
        return replace(output, lse=output.lse * math.log(2))

    return FakeKernel(compute)


def output_off() -> FakeKernel:
    """A factor on out that FP8's own rounding of P hides from the exact oracle."""

    def compute(problem: Problem, inputs: Inputs) -> Output:
        exact = decode(problem, inputs)
        out = (1.02 * exact.out).to(getattr(torch, problem.output_dtype))
        return Output(out, exact.lse.float())

    return FakeKernel(compute)


def unwritten_head() -> FakeKernel:
    """The last head of the last token is forgotten."""

    def compute(problem: Problem, inputs: Inputs) -> Output:
        output = right(problem, inputs)
        poisoned(output.out[-1, -1, -1])
        return output

    return FakeKernel(compute)


def modified_input() -> FakeKernel:
    def compute(problem: Problem, inputs: Inputs) -> Output:
        output = right(problem, inputs)
        inputs.seq_lens[0] -= 1
        return output

    return FakeKernel(compute)


def raises() -> FakeKernel:
    def compute(problem: Problem, inputs: Inputs) -> Output:
        raise OutOfBounds("read of 16 bytes past kv_cache", Location(kernel="fake", ptx_line=17))

    return FakeKernel(compute)


def interrupted() -> FakeKernel:
    """Somebody presses Ctrl-C during the third run."""
    runs = itertools.count(1)

    def compute(problem: Problem, inputs: Inputs) -> Output:
        if next(runs) == 3:
            raise KeyboardInterrupt
        return right(problem, inputs)

    return FakeKernel(compute)


def takes_nothing() -> FakeKernel:
    return FakeKernel(dtypes=("float16",))


def not_a_kernel() -> object:
    return object()


def _longer(problem: Problem, keys: int) -> Problem:
    """The problem whose requests have ``keys`` more keys that every token may see."""
    lengths = tuple(max(0, length + keys) for length in problem.seq_lens)
    return replace(problem, seq_lens=lengths, max_seq_len=None)
