"""Kernels that end their process, or are wrong beyond some size; as ``--kernel`` takes them.

Each is right where it is not wrong, so that what is found is what was planted.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import torch

from conformance.kernel import Output, Plan, RunOptions
from reference.inputs import Inputs
from reference.problem import Problem
from simulator.errors import Location, OutOfBounds
from tests.conformance.fake_kernel import FakeKernel, right

NAME = "tests/fuzz/kernels.py:{}"


class Any16Bit(FakeKernel):
    """Takes every dtype; plans two splits for more than one tile on many SMs."""

    def __init__(self, compute=right) -> None:
        super().__init__(compute, dtypes=("float16", "bfloat16", "float8_e4m3fn"))

    def plan(self, problem: Problem, num_sms: int) -> Plan:
        splits = 1 + min(num_sms // 8, max(problem.seq_lens, default=0) // 129)
        return Plan(splits, 0 if splits == 1 else 1024)


def right_everywhere() -> FakeKernel:
    return Any16Bit()


def is_large(problem: Problem) -> bool:
    """At least two requests, three heads and, in some request, more than a page of 16 keys."""
    long = max(problem.seq_lens, default=0) > 16
    return problem.batch_size >= 2 and problem.dims.num_heads >= 3 and long


def wrong_if_large() -> FakeKernel:
    def compute(problem: Problem, inputs: Inputs) -> Output:
        output = right(problem, inputs)
        return replace(output, lse=output.lse + 1.0) if is_large(problem) else output

    return Any16Bit(compute)


def two_faults() -> FakeKernel:
    """Wrong with many heads, and an access out of bounds with several tokens."""

    def compute(problem: Problem, inputs: Inputs) -> Output:
        if problem.dims.seq_len_q > 2:
            raise OutOfBounds("read of 16 bytes past kv_cache", Location(kernel="f", ptx_line=17))
        output = right(problem, inputs)
        return replace(output, lse=output.lse + 1.0) if problem.dims.num_heads > 30 else output

    return Any16Bit(compute)


CRASHES, LEAVES, SPINS, HOARDS, IS_KILLED = 3, 4, 5, 6, 7
"""Numbers of heads with which `ends` does not return."""


class Ends(Any16Bit):
    """Right with one head; with others the process does not survive the call."""

    def run(self, problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        match problem.dims.num_heads:
            case 3:
                os.kill(os.getpid(), signal.SIGSEGV)
            case 4:
                os._exit(7)
            case 5:
                while True:
                    pass
            case 6:
                torch.zeros(2**40, dtype=torch.int8)
            case 7:
                # As somebody else would, and only once: a file remembers that.
                once = Path(os.environ["KILLED_ONCE"])
                if not once.exists():
                    once.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
        return super().run(problem, inputs, options)


def ends() -> FakeKernel:
    return Ends()


def slow() -> FakeKernel:
    def compute(problem: Problem, inputs: Inputs) -> Output:
        time.sleep(0.05)
        return right(problem, inputs)

    return Any16Bit(compute)


class Schedules(Any16Bit):
    """Wrong under some schedules alone: where the seed's last bits say so, or with a late step."""

    def run(self, problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        output = right(problem, inputs)
        unlucky = options.policy == "random" and options.policy_seed % 4 == 3
        return replace(output, lse=output.lse + 1.0) if unlucky else output


def unlucky() -> FakeKernel:
    return Schedules()


class Other(Any16Bit):
    """One bit of the LSE is another, well within the bounds."""

    def run(self, problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        output = right(problem, inputs)
        if output.lse.numel():
            output.lse.view(-1).view(torch.uint8)[0] ^= 1
        return output


def other_bits() -> FakeKernel:
    return Other()
