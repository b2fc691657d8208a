"""What only a GPU can show: plain PyTorch has it, and a fault of each kind breaks it.

Skipped without a CUDA device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from conformance.adapters.torch_eager import TorchEager, _Call
from conformance.judge import Judge, Subject
from conformance.kernel import EngineChoice, RunOptions, device_arch
from conformance.relations import GPU_RELATIONS
from conformance.strategies import Choice
from reference.inputs import Inputs
from reference.problem import Dims, Mask, Problem, Recipe
from reports.records import CaseResult

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

PROBLEM = Problem(Dims(16, 2), "bfloat16", 16, (300, 150), 192**-0.5, mask=Mask(True))


@dataclass(frozen=True, eq=False)
class Spoilt(_Call):
    """A call that goes wrong in the way called ``fault``; ``done`` has what it keeps."""

    fault: str = ""
    done: list[object] | None = None

    def launch(self) -> None:
        assert self.done is not None
        if self.fault == "keeps_lengths":
            # The lengths of the first launch, for ever: as read on the host and put into a grid.
            lengths = self.done[0] if self.done else self.inputs.seq_lens.clone()
            self.done[:] = [lengths]
            kept = replace(self.inputs, seq_lens=lengths)
            _Call(self.problem, kept, self.out, self.lse, None).launch()
        elif self.fault == "default_stream":
            with torch.cuda.stream(torch.cuda.default_stream()):
                super().launch()
        else:
            super().launch()
        if self.fault == "now_and_then":
            self.done.append(None)
            if len(self.done) % 100 == 0:
                self.out[0, 0, 0, 0] += 1.0
        if self.fault == "strays":
            whole = self.lse.view(torch.uint8).flatten()
            end = whole.storage_offset() + self.lse.nbytes
            torch.as_strided(whole, (4,), (1,), end).fill_(7)


class Faulty(TorchEager):
    """Plain PyTorch whose calls have a fault."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def _call(self, problem: Problem, inputs: Inputs, options: RunOptions) -> Spoilt:
        call = super()._call(problem, inputs, options)
        return Spoilt(**vars(call), fault=self.fault, done=[])


def judged(kernel: TorchEager, name: str) -> CaseResult:
    engine = EngineChoice("cuda", device_arch() or "", "for the test")
    subject = Subject(kernel.name, kernel, engine)
    case = subject.case(name, (PROBLEM, Recipe(poison=False), Choice(seed=3, num_sms=148)))
    return Judge(lambda _: None).judge(subject, case)


@pytest.mark.parametrize("name", [*GPU_RELATIONS, "nothing_beside_is_written", "matches_float64"])
def test_plain_pytorch_has_it(name):
    result = judged(TorchEager(), name)
    assert result.verdict == "passed", result.reason


@pytest.mark.parametrize(
    ("fault", "name", "reason"),
    [
        ("keeps_lengths", "a_graph_replays_with_other_lengths", "where the first call gave"),
        ("default_stream", "any_stream_will_do", "where the first call gave"),
        ("now_and_then", "two_hundred_repetitions_are_equal", "where the first call gave"),
        ("strays", "nothing_beside_is_written", "4 bytes after lse, the nearest 1 bytes away"),
    ],
)
def test_a_fault_breaks_it(fault, name, reason):
    result = judged(Faulty(fault), name)
    assert result.verdict == "failed"
    assert reason in (result.reason or "")
