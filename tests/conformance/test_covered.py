"""What a session says of the PTX that its runs executed: added up, and named where nothing ran."""

import torch

from conformance.adapters.optimized import Optimized
from conformance.covered import Covered
from conformance.judge import Judge
from conformance.kernel import Output
from simulator.launch import Extent, launch_kernel
from tests.conformance import cases
from tests.conformance.fake_kernel import FakeKernel

TEXT = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u32 bound) {
    .reg .b32 %r<4>; .reg .pred %p<2>;
    ld.param.u32 %r1, [bound];
    mov.u32 %r2, %tid.x;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra OTHER;
    .loc 1 12 5
    mov.u32 %r3, 1;
    bra END;
OTHER:
    .loc 1 14 5
    mov.u32 %r3, 2;
END:
    ret;
}
.file 1 "a/folder/kernel.py"
"""


def output(bound: int) -> Output:
    run = launch_kernel(TEXT, Extent(), [bound], coverage=True)
    return Output(torch.zeros(1), torch.zeros(1), (run,))


def test_runs_add_up_and_what_none_reached_is_named_by_its_source() -> None:
    covered, subject = Covered(), cases.subject(FakeKernel())
    covered.add(subject, output(32))
    (first,) = covered.measurements()
    assert (first.topic, first.name) == ("coverage", "k")
    assert (first.detail["blocks"], first.detail["executed"]) == (4, 3)
    (missing,) = first.detail["uncovered"]
    assert missing.startswith("folder/kernel.py:14 (PTX ")
    covered.add(subject, output(0))
    (both,) = covered.measurements()
    assert (both.detail["executed"], both.detail["launches"]) == (4, 2)
    assert both.detail["uncovered"] == []


def test_runs_without_coverage_say_nothing() -> None:
    covered = Covered()
    covered.add(cases.subject(FakeKernel()), Output(torch.zeros(1), torch.zeros(1)))
    assert not list(covered.measurements())


def test_a_judge_asks_the_simulator_for_coverage() -> None:
    covered = Covered()
    subject = cases.subject(Optimized())
    Judge(lambda result: None, covered.add).judge(subject, cases.case(33, dtype="float16"))
    assert {m.name.split("_Config")[0] for m in covered.measurements()} >= {
        "kernel_cutlass_split_kv"
    }
