"""Every kind of error has a program that provokes it."""

from __future__ import annotations

import inspect

import pytest

from simulator import errors
from tests.simulator.error_cases import CASES, Case

ABSTRACT = {"SimulationError", "ProgramError"}


def test_there_is_a_program_for_each_kind_of_error():
    kinds = {
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.SimulationError) and name not in ABSTRACT
    }
    assert {case.kind for case in CASES} == kinds


def test_a_program_that_ends_otherwise_is_no_case_of_a_kind():
    trap = next(case for case in CASES if case.kind == "Trap")
    with pytest.raises(AssertionError):
        Case("OutOfBounds", trap.provoke).message()
    with pytest.raises(AssertionError, match="no Trap"):
        Case("Trap", lambda: None).message()
