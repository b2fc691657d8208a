"""Guards around a buffer: untouched by writes inside it, and seen when written beyond it."""

import pytest
import torch

from conformance.canaries import GUARD_BYTES, Canaries, buffer
from conformance.kernel import POISON_BYTE, Output
from conformance.properties import Observation, nothing_beside_is_written
from reference.inputs import make_inputs
from reference.problem import Recipe
from tests.conformance import cases
from tests.conformance.fake_kernel import ALGORITHM


def test_writes_inside_leave_the_guards():
    canaries = Canaries(torch.device("cpu"))
    out = canaries.empty("out", (3, 5), torch.bfloat16, poison=True)
    assert (out.view(torch.uint8) == POISON_BYTE).all()
    out.fill_(1.5)
    assert canaries.written() == ()


@pytest.mark.parametrize(
    ("offset", "count", "told"),
    [
        (30, 2, "2 bytes after lse, the nearest 1 bytes away"),
        (35, 1, "1 bytes after lse, the nearest 6 bytes away"),
        (-4, 4, "4 bytes before lse, the nearest 1 bytes away"),
        (-GUARD_BYTES, 1, f"1 bytes before lse, the nearest {GUARD_BYTES} bytes away"),
    ],
)
def test_a_write_beyond_is_told(offset, count, told):
    canaries = Canaries(torch.device("cpu"))
    canaries.empty("out", (4,), torch.float32, poison=False)
    lse = canaries.empty("lse", (3, 5), torch.bfloat16, poison=False)
    whole = lse.view(torch.uint8).flatten()
    beyond = torch.as_strided(whole, (count,), (1,), whole.storage_offset() + offset)
    beyond.fill_(7)
    assert canaries.written() == (told,)
    problem = cases.problem(3)
    inputs = make_inputs(problem, Recipe(), 0)
    output = Output(lse, lse, strayed=canaries.written())
    run = Observation(problem, ALGORITHM, inputs, inputs, output, num_splits=1)
    assert nothing_beside_is_written(run).reason == told


def test_on_the_cpu_a_buffer_is_exact():
    plain = buffer("out", (3, 5), torch.bfloat16, True)
    assert plain.untyped_storage().nbytes() == 30
    assert buffer("out", (2,), torch.int8, False).tolist() == [0, 0]
