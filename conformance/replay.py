"""Finds a case to run again, by its id, in a file, or as JSON, and says what is wrong with it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from conformance.judge import run_options
from conformance.kernel import UsageError
from conformance.relations import JUDGED
from reference.problem import Problem, Recipe
from reference.values import VALUES
from reports.records import RECORDS_FILE, Case, RecordError, read_records

CASES_FOLDER = Path("fuzz/cases")


def find_case(text: str, results: Path, cases: Path = CASES_FOLDER) -> Case:
    """Return the case that ``text`` means: JSON, a file of it, or the id of a recorded case.

    A JSON object is a case, or a line of a records file, whose case counts. An id is searched in
    the records under ``results``, the newest first, then in the files of ``cases``. Raises
    UsageError where nothing is found, and for a malformed case, naming key, value and limit.
    """
    path = Path(text)
    if text.lstrip().startswith("{"):
        case = _parsed("the JSON given", text)
    elif re.fullmatch("[0-9a-f]{16}", text):
        case = _with_id(text, results, cases)
    elif path.is_file():
        case = _parsed(text, path.read_text(encoding="utf-8"))
    else:
        raise UsageError(
            f"--replay: {text!r} is no file, no JSON object and no case id (16 hex digits)"
        )
    _check(text, case)
    return case


def _with_id(case_id: str, results: Path, cases: Path) -> Case:
    searched = 0
    for case in _recorded(results, cases):
        searched += 1
        if case.id == case_id:
            return case
    raise UsageError(
        f"--replay: no case {case_id} among the {searched} under {results}/ and {cases}/"
    )


def _recorded(results: Path, cases: Path) -> Iterator[Case]:
    """Yield the recorded cases; a file that holds something else is not the one looked for."""
    for path in sorted(results.glob(f"*/{RECORDS_FILE}"), reverse=True):
        try:
            yield from (result.case for result in read_records(path).results)
        except RecordError:
            continue
    for path in sorted(cases.glob("*.json")):
        try:
            yield _parsed(str(path), path.read_text(encoding="utf-8"))
        except UsageError:
            continue


def _parsed(where: str, text: str) -> Case:
    """Return the case in a JSON text."""
    try:
        values = json.loads(text)
        if isinstance(values, dict) and values.get("kind") == "result":
            values = values.get("case")
        return Case.from_json(values)
    except ValueError as error:
        raise UsageError(f"--replay: {where}: {error}") from error


def _check(text: str, case: Case) -> None:
    """Refuse a case whose values cannot be run, before anything is compiled."""
    where = f"--replay: {text if len(text) <= 60 else 'the JSON given'}"
    if case.property not in JUDGED:
        known = ", ".join(JUDGED)
        raise UsageError(f"{where}: property: {case.property!r} is none of {known}")
    try:
        Problem.from_json(case.problem)
        recipe = Recipe.from_json(case.recipe)
        if recipe.values not in VALUES:
            raise ValueError(
                f"recipe: values must be one of {tuple(VALUES)}, got {recipe.values!r}"
            )
        run_options(case)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error
