"""Relations about the host, watched accesses and overlap: right kernels pass, each fault fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from conformance.kernel import Compiled, Limits, Output, Plan, RunOptions
from reference.inputs import Inputs
from reference.problem import Problem
from simulator.checks import CHECKS
from simulator.errors import OutOfBounds
from tests.conformance.fake_kernel import ALGORITHM, right
from tests.conformance.test_relations import OF_HOSTS, PROBLEM, Exact, verdict

WAITS = """.visible .entry split(
griddepcontrol.wait;
ld.global.b32 %r1, [%rd1];
griddepcontrol.launch_dependents;
.visible .entry combine(
griddepcontrol.wait;
@%p1 ld.global.b32 %r1, [%rd1];"""
SPLIT_BYTES = 16


@dataclass(frozen=True)
class Hosted(Exact):
    """A kernel with a wrapper, whose plan gives each request as many splits as SMs are its own."""

    contradictions: tuple[str, ...] = ("this", "that")
    accepts: tuple[str, ...] = ()
    wrong_program: bool = False
    made: Callable[[Output], Output] = lambda output: output
    text: str = WAITS
    bytes_needed: Callable[[int], int] = lambda count: count * SPLIT_BYTES
    splits: Callable[[Problem, int], int] = lambda p, sms: max(1, sms // max(1, p.batch_size))

    def compile(self, problem: Problem, arch: str) -> Compiled:
        return Compiled(self.text, b"", "")

    def plan(self, problem: Problem, num_sms: int) -> Plan:
        splits = min(self.splits(problem, num_sms), -(-problem.planning_max_seq_len // 128))
        return Plan(splits, 0 if splits == 1 else self.bytes_needed(splits * problem.batch_size))

    def run_contradictory(
        self, problem: Problem, inputs: Inputs, options: RunOptions, contradiction: str
    ) -> Output:
        if contradiction not in self.accepts:
            raise ValueError("no")
        if self.wrong_program:
            raise OutOfBounds("write past the workspace")
        return right(problem, inputs)

    def run_without_buffers(self, problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        return self.made(right(problem, inputs))


RIGHT = Hosted(algorithm=replace(ALGORITHM, split_rule="normalised"))


def launching(ctas: int) -> Callable[[Problem, Inputs, RunOptions], Output]:
    launch = SimpleNamespace(name="split", grid=(ctas, 1, 1))

    def answer(problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        return replace(right(problem, inputs), launches=(launch,))

    return answer


def watched_and_wrong(problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
    if set(CHECKS) <= set(options.checks):
        raise OutOfBounds("two accesses without order")
    return right(problem, inputs)


FAULTS = {
    "outputs_may_be_left_to_the_kernel": [
        replace(RIGHT, made=lambda output: Output(output.out * 2, output.lse)),
        replace(RIGHT, made=lambda output: Output(output.out, output.lse.half())),
    ],
    "contradictions_are_refused": [
        replace(RIGHT, accepts=("that",)),
        replace(RIGHT, accepts=("this",), wrong_program=True),
    ],
    "an_empty_batch_is_empty": [replace(RIGHT, answer=launching(1))],
    "the_plan_fits": [
        replace(RIGHT, bytes_needed=lambda count: count * SPLIT_BYTES % 2**20),
        replace(RIGHT, splits=lambda p, sms: 2 if p.batch_size > 1 else 4),
        replace(RIGHT, answer=launching(149)),
    ],
    "every_access_is_ordered": [replace(RIGHT, answer=watched_and_wrong)],
    "what_may_overlap_waits_first": [
        replace(RIGHT, text=WAITS.replace("combine(\ngriddepcontrol.wait;", "combine(")),
        replace(RIGHT, text=WAITS.replace("griddepcontrol.wait;\nld", "ld")),
        replace(RIGHT, text=WAITS.replace("griddepcontrol.wait;\n@%p1", "@%p1") + "\n"
                "griddepcontrol.wait;"),
    ],
}  # fmt: skip
TWO_TILES = replace(PROBLEM, seq_lens=(200, 33), is_var_seq=True)


@pytest.mark.parametrize("name", OF_HOSTS)
def test_a_right_kernel_has_the_relation(name):
    result = verdict(RIGHT, name)
    assert result.verdict == "passed", result.reason


@pytest.mark.parametrize(
    ("name", "kernel"), [(name, kernel) for name, kernels in FAULTS.items() for kernel in kernels]
)
def test_its_fault_breaks_the_relation(name, kernel):
    result = verdict(kernel, name, TWO_TILES)
    assert result.verdict == "failed", result.reason
    assert result.reason


def test_splits_without_a_tile_are_seen_in_fp8():
    class Empty(Hosted):
        def plan(self, problem: Problem, num_sms: int) -> Plan:
            return Plan(num_sms // max(1, problem.batch_size) // 37 * 4, 0)

    problem = replace(TWO_TILES, dtype="float8_e4m3fn")
    result = verdict(Empty(algorithm=RIGHT.algorithm), "the_plan_fits", problem)
    assert result.reason == "8 splits of 1 tiles for 2 tiles"


@pytest.mark.parametrize(
    "name", ["outputs_may_be_left_to_the_kernel", "contradictions_are_refused"]
)
def test_a_kernel_without_a_wrapper_is_not_asked(name):
    assert verdict(Exact(), name).verdict == "skipped"


def test_a_kernel_that_wants_its_inputs_ready_may_read_them_early():
    early = FAULTS["what_may_overlap_waits_first"][0]
    modest = replace(early, limits=Limits(inputs_ready=True))
    assert verdict(modest, "what_may_overlap_waits_first").verdict == "skipped"


def test_a_kernel_that_does_not_claim_order_is_not_watched():
    modest = replace(FAULTS["every_access_is_ordered"][0], limits=Limits(orders_accesses=False))
    assert verdict(modest, "every_access_is_ordered").verdict == "skipped"


def test_every_relation_of_hosts_has_a_fault():
    assert set(FAULTS) == set(OF_HOSTS)
