"""The comparison of instructions with oracles must see every kind of wrong result."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from simulator.isa import integer
from simulator.isa.table import TABLE
from tests.simulator.isa.instructions import Family, compare

ADD = TABLE["add.s32"][0]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (lambda a, b: np.where(a == -1, a, a + b), "not"),
        (lambda a, b: (a + b).astype(np.int64), "came as int64"),
        (lambda a, b: (a + b).view(np.uint32), "came as uint32"),
        (lambda a, b: (a + b)[:16], "shape"),
        (lambda a, b: np.repeat(a + b, 2)[::2], "c_contiguous"),
    ],
    ids=["value", "width", "sign", "size", "layout"],
)
def test_a_wrong_result_is_seen(wrong, complaint):
    compare(ADD, lambda a, b: a + b, rounds=4)
    with pytest.raises(AssertionError, match=complaint):
        compare(dataclasses.replace(ADD, function=wrong), lambda a, b: a + b, rounds=4)


def test_writing_into_an_operand_is_seen():
    def careless(a, b):
        a += b
        return a

    with pytest.raises(ValueError, match="read-only"):
        compare(dataclasses.replace(ADD, function=careless), lambda a, b: a + b, rounds=1)


def test_an_entry_without_an_oracle_is_seen():
    with pytest.raises(AssertionError, match="has no oracle"):
        Family(integer).check("add.<t>")
