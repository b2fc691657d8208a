"""The text at the end of a session."""

import json
from dataclasses import replace

from conformance.summary import OTHERS, REASON_LINES, failure_text, summary, table
from reports.records import Case, CaseResult
from tests.conformance import cases

SMALL = CaseResult(cases.case(1), "failed", ratio=3.0, reason="out is wrong")
LARGE = CaseResult(cases.case(40, 5), "failed", ratio=float("inf"), reason="lse is NaN")
KNOWN = CaseResult(cases.case(2), "expected_failure", ratio=1e6)
PASSED = CaseResult(cases.case(6), "passed", ratio=0.123456)
SKIPPED = CaseResult(cases.case(7), "skipped")


def test_the_table_has_a_line_for_each_property() -> None:
    other = replace(PASSED, case=cases.case(6, property_name="inputs_unchanged"), ratio=None)
    text = table([PASSED, KNOWN, SKIPPED, other]).splitlines()
    assert text[0].split("  ")[0] == "kernel"
    assert " ".join(text[1].split()) == (
        "fake simulator matches_float64 2 0.123 1 passed, 1 expected failure, 1 skipped"
    )
    assert " ".join(text[2].split()) == "fake simulator inputs_unchanged 1 - 1 passed"
    assert len(text) == 3


def test_kernels_and_engines_have_lines_of_their_own() -> None:
    on_gpu = replace(PASSED, case=replace(PASSED.case, engine="cuda"))
    other = replace(PASSED, case=replace(PASSED.case, kernel="other"))
    assert len(table([PASSED, on_gpu, other, PASSED]).splitlines()) == 4


def test_the_smallest_failure_is_printed_with_its_case_and_command() -> None:
    lines = failure_text([LARGE, SMALL]).splitlines()
    assert lines[0] == "FAILED fake (simulator) matches_float64, smallest of 2 cases:"
    assert lines[1] == "  out is wrong"
    label, _, text = lines[2].partition("case:")
    assert not label.strip()
    assert Case.from_json(json.loads(text)) == SMALL.case
    command = f"nox -s conformance -- --kernel fake --replay {SMALL.case.id}"
    assert lines[3] == f"  replay: {command}"
    assert lines[4] == f"  others: {LARGE.case.id}"


def test_a_kernel_with_a_space_in_its_path_is_quoted() -> None:
    result = replace(SMALL, case=replace(SMALL.case, kernel="my kernels/a.py:make"))
    assert "--kernel 'my kernels/a.py:make' --replay" in failure_text([result])


def test_long_reasons_and_many_failures_are_cut() -> None:
    long = replace(SMALL, reason="\n".join(f"warp {n} waits" for n in range(100)))
    others = [replace(LARGE, case=cases.case(40, seed=seed)) for seed in range(OTHERS + 5)]
    text = failure_text([long, *others])
    assert f"warp {REASON_LINES - 1} waits" in text
    assert f"warp {REASON_LINES} waits" not in text
    assert f"... and {100 - REASON_LINES} lines in the record" in text
    assert text.endswith(" and 5 in the records")


def test_the_ending_counts_problems_and_verdicts() -> None:
    again = replace(PASSED, case=replace(PASSED.case, seed=9))
    ending = summary([PASSED, again, KNOWN]).splitlines()[-1]
    assert ending == "2 distinct problems, 2 passed, 1 expected failure"
    stopped = summary([PASSED], interrupted=True).splitlines()[-1]
    assert stopped == "interrupted, what ran so far: 1 distinct problems, 1 passed"


def test_what_failed_comes_first() -> None:
    assert summary([PASSED, SMALL]).startswith("FAILED fake")
    assert summary([PASSED]).startswith("kernel")
