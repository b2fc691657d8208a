"""Kernels for test_distributed: a right one, and ones that go wrong on a rank."""

from __future__ import annotations

from dataclasses import replace

from conformance.kernel import Output
from reference.inputs import Inputs
from reference.problem import Dcp, Problem
from tests.conformance.fake_kernel import FakeKernel, right


def healthy() -> FakeKernel:
    return FakeKernel()


def ignores_its_rank() -> FakeKernel:
    """Takes its share for the whole context."""

    def compute(problem: Problem, inputs: Inputs) -> Output:
        return right(replace(problem, dcp=Dcp()), replace(inputs, causal_seqs=None))

    return FakeKernel(compute)


def breaks_on_rank_1() -> FakeKernel:
    def compute(problem: Problem, inputs: Inputs) -> Output:
        if problem.dcp.rank == 1:
            raise RuntimeError("no memory left")
        return right(problem, inputs)

    return FakeKernel(compute)
