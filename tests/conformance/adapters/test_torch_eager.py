"""Plain PyTorch as a kernel: every property and relation of a case that has everything in it."""

from dataclasses import replace

import pytest

from conformance.adapters.torch_eager import MOST_SCORES, TorchEager
from conformance.judge import Judge, Subject
from conformance.kernel import RunOptions, UsageError, choose_engine
from conformance.relations import GPU_RELATIONS, JUDGED
from conformance.strategies import Choice
from reference.inputs import make_inputs
from reference.problem import Dcp, Dims, Mask, Problem, Recipe

WHOLE = Problem(Dims(6, 3), "bfloat16", 16, (140, 0, 33), 0.1, -0.5, Mask(True, 60), lse_base="e")
SHARE = replace(WHOLE, seq_lens=(70, 0, 17), dcp=Dcp(2, 1, 4, (140, 0, 33)), mask=Mask(True))


@pytest.mark.parametrize("problem", [WHOLE, SHARE, replace(WHOLE, dtype="float16")])
@pytest.mark.parametrize("name", JUDGED)
def test_it_is_right(name, problem):
    kernel = TorchEager()
    subject = Subject("torch-eager", kernel, choose_engine(kernel, "auto", None))
    case = subject.case(name, (problem, Recipe(poison=True), Choice(seed=3, num_sms=148)))
    result = Judge(lambda _: None).judge(subject, case)
    assert result.verdict in ("passed", "skipped"), result.reason
    if name in GPU_RELATIONS:
        assert result.verdict == "skipped"


def test_what_it_does_not_take_is_said():
    kernel, inputs = TorchEager(), make_inputs(WHOLE, Recipe(), 0)
    many = replace(WHOLE, max_seq_len=MOST_SCORES)
    assert kernel.supports(many).reason.startswith(
        f"scores of the call must be at most {MOST_SCORES}"
    )
    fp8 = replace(WHOLE, dtype="float8_e4m3fn")
    assert (
        kernel.supports(fp8).reason == "dtype must be one of bfloat16, float16, got float8_e4m3fn"
    )
    with pytest.raises(UsageError, match="calls are prepared on a GPU only"):
        kernel.prepared(WHOLE, inputs, RunOptions())
    with pytest.raises(UsageError, match="nothing is compiled"):
        kernel.compile(WHOLE, "sm_100a")
