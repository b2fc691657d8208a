"""Our oracles refuse every wrong answer and no right one; the table in docs says what they say."""

from pathlib import Path

import pytest

from conformance.tolerance_table import LENGTHS, ORACLES, Verdict, exact_only, ours, row, verdicts
from conformance.wrong_answers import NAMES

DOCUMENT = Path(__file__).parents[2] / "docs" / "tolerance_table.md"
OURS = [oracle for oracle in ORACLES if oracle.judge is ours]


@pytest.mark.parametrize("seq_len", [129, 640])
def test_our_oracles_refuse_every_wrong_answer_and_no_right_one(seq_len):
    """Longer ones take a minute: they stand in the document, which is made the same way."""
    assert len(NAMES) == 14
    for oracle, found in zip(OURS, verdicts(seq_len, OURS), strict=True):
        assert found == Verdict(NAMES, refuses_right=False), oracle


def test_oracle_b_is_needed():
    """Oracle A admits a factor of 1.05 on out in FP8."""
    (alone,) = (o for o in ORACLES if o.judge is exact_only and o.dtype == "float8_e4m3fn")
    (found,) = verdicts(640, [alone])
    assert set(NAMES) - set(found.refused) == {"out times 1.05"}


def test_the_document_says_what_the_oracles_say():
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    for oracle, found in zip(ORACLES, verdicts(LENGTHS[0]), strict=True):
        start = row(oracle, [found]).rsplit("|", 2)[0]
        assert any(line.startswith(start) for line in lines), start
    for oracle in OURS:
        whole = row(oracle, [Verdict(NAMES, refuses_right=False)] * len(LENGTHS))
        assert whole in lines, whole
