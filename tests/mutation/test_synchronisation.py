"""A survivor is redundant only if the cases could show that it is not."""

from __future__ import annotations

import pytest

from mutation.ptx import Mutant, mutants
from mutation.synchronisation import cases, problems, redundant
from mutation.trial import ALL_CHECKS, Verdict
from tests.conformance.fake_kernel import FakeKernel

ALIKE = Verdict("", 5, is_alike=True)


def removed(statement: str) -> Mutant:
    return next(m for m in mutants(statement) if m.id.endswith("remove"))


@pytest.mark.parametrize(
    "statement", ["bar.sync 0;", "fence.proxy.async.shared::cta;", "griddepcontrol.wait;"]
)
def test_a_survivor_that_is_alike_is_redundant(statement):
    assert "in all 5 recorded schedules" in redundant(removed(statement), ALIKE)
    assert redundant(removed(statement), Verdict("", 5)) == ""


def test_no_check_sees_what_a_fence_of_memory_orders():
    assert redundant(removed("fence.acq_rel.gpu;"), ALIKE) == ""


def test_what_ptx_defines_to_be_harmless_needs_no_case():
    reason = redundant(removed("griddepcontrol.launch_dependents;"), Verdict("", 5))
    assert reason.startswith("PTX ISA")


def test_every_case_is_watched_and_about_a_problem():
    asked = problems(FakeKernel(), "float8_e4m3fn", 2, 1)
    assert {case.problem for case in cases()} == set(range(len(asked)))
    assert {case.checks for case in cases()} == {ALL_CHECKS}
    assert len({case.policy for case in cases()}) >= 4
