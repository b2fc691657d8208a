"""The cases of a sample, and when a machine says that a survivor is no other kernel."""

from __future__ import annotations

import shutil

import pytest

from conformance.kernel import Compiled
from mutation.machine_code import machine_code, same_machine_code
from mutation.operators import mutants
from mutation.sample import MOST_KEYS, Compilation, covering_first, users
from reference.problem import Dims, Problem
from tests.conformance.fake_kernel import FakeKernel

PTXAS = shutil.which("ptxas")
TEXT = """\
.version 8.8
.target sm_100a
.address_size 64
.visible .entry kernel(.param .u64 out)
{
.reg .b64 %rd<2>;
.reg .b32 %r<4>;
ld.param.b64 %rd1, [out];
mov.b32 %r1, 5;
add.s32 %r2, %r1, 7;
add.s32 %r3, %r1, 9;
st.global.b32 [%rd1], %r2;
ret;
}
"""


class Keyed(FakeKernel):
    """One compilation for each number of heads."""

    def specialisation_key(self, problem: Problem) -> int:
        return problem.dims.num_heads


def test_most_lines_come_first_then_what_is_cheap():
    lines = [frozenset({1}), frozenset({1, 2, 3}), frozenset({1, 2}), frozenset({4})]
    assert covering_first(lines, [1, 9, 2, 5]) == [1, 3, 0, 2]


def test_users_share_the_compilation_and_have_keys():
    wanted = Problem(Dims(128, 1), "float8_e4m3fn", 64, (300,), 0.1)
    found = list(users(Keyed(), wanted, "default"))
    assert found
    for problem, _, choice in found:
        assert problem.dims.num_heads == 128
        assert 0 < max(problem.seq_lens) <= MOST_KEYS
        assert choice.policy == "fair"


def test_a_line_that_nothing_executes_is_no_other_kernel():
    compilation = Compilation(Compiled(TEXT, b"", ""), (), executed=frozenset({10}))
    by_line = {mutant.line: mutant for mutant in mutants(TEXT)}
    unreached = compilation.equivalence(by_line[11], frozenset({10}), "sm_100a", "")
    assert unreached == "never executed by the profiles default, matrix and deep"
    assert compilation.equivalence(by_line[10], frozenset({10}), "sm_100a", "") == ""
    assert compilation.equivalence(by_line[11], frozenset({11}), "sm_100a", "") == ""


@pytest.mark.skipif(PTXAS is None, reason="ptxas is not on PATH")
def test_a_change_that_nobody_reads_gives_the_same_machine_code():
    unread, read = TEXT.replace("%r1, 9", "%r1, 10"), TEXT.replace("%r1, 7", "%r1, 8")
    assert same_machine_code(TEXT, unread, "sm_100a", PTXAS)
    assert not same_machine_code(TEXT, read, "sm_100a", PTXAS)
    assert machine_code(TEXT.replace("add.s32", "add.s33"), "sm_100a", PTXAS) is None
