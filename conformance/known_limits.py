"""The named known limits of a kernel: failures that are expected, as data with their reasons.

``expectations/<kernel>.toml`` holds one ``[[limit]]`` each:

    id = "empty-request-one-split"
    reason = "a request without keys leaves its output unwritten"
    properties = ["every_element_written", "matches_float64"]
    when = { empty_requests = { min = 1 }, num_splits = 1 }
    example = '{"kernel": ..., ...}'

``error_class`` is added where the run must end with an error, and says which: no other is excused.
``when`` says which runs the limit explains: every fact it names must hold. A condition is a value,
a list of allowed values, or a table with ``min``, ``max`` or both; `facts` lists the facts.
``example`` is a case, the JSON that failures print, which shows the limit: each run of the suite
runs it, and it must fail. A limit is strict unless ``strict = false``: any other run that must fail
by it, and passes, is a failure too, so that a limit that was cured does not stay on the list.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from conformance.kernel import UsageError
from conformance.relations import JUDGED
from reference.masks import position, visible_keys
from reference.problem import Problem, Recipe
from reports.records import Case, CaseResult

FOLDER = Path(__file__).parent / "expectations"
TILE_KEYS = 128
OPTIONAL = ("strict", "error_class")
KINDS = MappingProxyType(
    {
        "id": str,
        "reason": str,
        "properties": list,
        "when": dict,
        "example": str,
        "strict": bool,
        "error_class": str,
    }
)

Facts = Mapping[str, int | float | bool | str]


@dataclass(frozen=True)
class KnownLimit:
    """One limit: ``reason`` in words, and ``properties`` that fail where ``when`` holds."""

    id: str
    reason: str
    properties: tuple[str, ...]
    when: Mapping[str, Any]  # fact -> value, list of values, or {"min": ..., "max": ...}
    example: Case
    strict: bool = True
    error_class: str | None = None

    def concerns(self, property_name: str, run: Facts) -> bool:
        """Return whether ``property_name`` must fail for a run with these facts."""
        return property_name in self.properties and all(
            _holds(condition, run[name]) for name, condition in self.when.items()
        )

    def explains(self, result: CaseResult) -> bool:
        """Return whether a bad result is this limit: an error by its class, else any failure."""
        if self.error_class is not None or result.verdict == "error":
            return result.error_class == self.error_class
        return result.verdict == "failed"


def facts(case: Case, num_splits: int) -> Facts:
    """Return what a limit's ``when`` can ask of a run that asked for ``num_splits`` splits.

    The fields of problem and recipe, and ``policy``, stand under their own names. Beside them:

    * ``batch_size``, ``shortest`` and ``longest`` request in keys, ``rows`` of one request;
    * ``num_splits``, and ``busy_splits``: those that can get a 128-key tile of the longest request;
    * ``empty_requests``, requests with no key, and ``masked_rows``, query tokens with no visible
      key in requests that have keys;
    * ``partial_pages`` and ``partial_tiles``, requests whose last page or tile is not full;
    * ``keys_past_context``, keys in the cache at positions past the end of their context.
    """
    problem = Problem.from_json(case.problem)
    lengths, dims = problem.seq_lens, problem.dims
    planned_tiles = -(-problem.planning_max_seq_len // TILE_KEYS)
    return {
        **dict(_scalars(case.problem)),
        **dict(_scalars(case.recipe)),
        "policy": case.policy,
        "batch_size": problem.batch_size,
        "shortest": min(lengths, default=0),
        "longest": max(lengths, default=0),
        "rows": dims.num_heads * dims.seq_len_q,
        "num_splits": num_splits,
        "busy_splits": min(num_splits, planned_tiles),
        "empty_requests": lengths.count(0),
        "masked_rows": _masked_rows(problem),
        "partial_pages": sum(length % problem.page_size != 0 for length in lengths),
        "partial_tiles": sum(length % TILE_KEYS != 0 for length in lengths),
        "keys_past_context": sum(
            position(problem.dcp, key) >= problem.context_len(request)
            for request, length in enumerate(lengths)
            for key in range(length)
        ),
    }


def _masked_rows(problem: Problem) -> int:
    return sum(
        int((~visible_keys(problem, request).any(dim=1)).sum())
        for request, length in enumerate(problem.seq_lens)
        if length > 0
    )


def load_limits(kernel: str, folder: Path = FOLDER) -> tuple[KnownLimit, ...]:
    """Return the known limits of ``kernel``; none where it has no file.

    Raises UsageError that names file, limit and key for a file that does not say what it must.
    """
    path = folder / f"{kernel}.toml"
    if not path.is_file():
        return ()
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))["limit"]
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise UsageError(f"{path}: not a file of [[limit]] tables: {error}") from error
    limits = []
    for number, entry in enumerate(entries, start=1):
        try:
            limits.append(_limit(kernel, entry))
        except ValueError as error:
            raise UsageError(f"{path}: limit {number}: {error}") from error
    return tuple(limits)


def expected(result: CaseResult, limits: Iterable[KnownLimit], run: Facts) -> CaseResult:
    """Return ``result``, of a run with these facts, as the known limits see it.

    A failure that a limit explains is an expected one. A pass where a strict limit says failure is
    an unexpected one. Everything else stays as it is.
    """
    concerned = [limit for limit in limits if limit.concerns(result.case.property, run)]
    for limit in concerned:
        if result.is_bad and limit.explains(result):
            reason = f"known limit {limit.id}: {limit.reason}"
            return replace(result, verdict="expected_failure", reason=reason)
        if result.verdict == "passed" and limit.strict:
            reason = f"known limit {limit.id} says that this fails: {limit.reason}"
            return replace(result, verdict="unexpected_pass", reason=reason)
    return result


def _scalars(tree: Mapping[str, Any]) -> Iterator[tuple[str, int | float | bool | str]]:
    """Yield the leaves of nested objects that a condition can compare: no lists, no null."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _scalars(value)
        elif isinstance(value, str | int | float):
            yield name, value


def _holds(condition: Any, value: float | str) -> bool:
    if isinstance(condition, dict):
        low, high = condition.get("min", value), condition.get("max", value)
        return bool(low <= value <= high)
    return value in condition if isinstance(condition, list) else bool(value == condition)


def _limit(kernel: str, entry: Mapping[str, Any]) -> KnownLimit:
    """Return the limit in one TOML table; ValueError that names the key that is wrong."""
    for key, value in entry.items():
        if key not in KINDS:
            raise ValueError(f"{key}: unknown key, known are {', '.join(KINDS)}")
        if not isinstance(value, KINDS[key]):
            raise ValueError(f"{key}: {value!r} is not of type {KINDS[key].__name__}")
    for key in KINDS:
        if key not in entry and key not in OPTIONAL:
            raise ValueError(f"{key}: missing key")
    for name in entry["properties"]:
        if name not in JUDGED:
            raise ValueError(f"properties: {name!r} is none of {', '.join(JUDGED)}")
    example = Case.from_json(json.loads(entry["example"]))
    if example.kernel != kernel:
        raise ValueError(f"example: its kernel is {example.kernel!r}, this file's is {kernel!r}")
    _check_conditions(entry["when"], example)
    return KnownLimit(**{**entry, "properties": tuple(entry["properties"]), "example": example})


def _check_conditions(when: Mapping[str, Any], example: Case) -> None:
    """Refuse a fact that does not exist and a table that is no range."""
    Recipe.from_json(example.recipe)
    known = facts(example, num_splits=1)
    for name, condition in when.items():
        if name not in known:
            raise ValueError(f"when: {name!r} is no fact, known are {', '.join(known)}")
        if isinstance(condition, dict) and not condition.keys() <= {"min", "max"}:
            raise ValueError(f"when: {name}: {condition!r} has keys other than min and max")
