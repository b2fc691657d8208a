"""A finding becomes a pytest file that fails as long as the kernel does."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.replay import find_case
from conformance.session import make_subject
from conformance.strategies import Choice
from fuzz.corpus import Entry
from fuzz.export import export, regression
from fuzz.jobs import Bench
from fuzz.worker import ROOT
from reference.problem import Dims, Problem, Recipe
from tests.fuzz.kernels import NAME

PROBLEM = Problem(Dims(3, 1), "bfloat16", 16, (17, 2), 192**-0.5)


@pytest.fixture
def entry() -> Entry:
    name = NAME.format("wrong_if_large")
    case = make_subject(name, "simulator").case("completes", (PROBLEM, Recipe(), Choice(0, 148)))
    return Entry(Bench(name, "simulator").do(case).result, True, {})


def test_the_file_fails_on_the_faulty_kernel_and_passes_on_a_right_one(
    entry: Entry, tmp_path: Path
) -> None:
    faulty = export(entry, tmp_path, NAME.format("wrong_if_large"))
    right = export(entry, tmp_path, NAME.format("right_everywhere"))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir", str(ROOT), "-c",
         str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", str(faulty), str(right)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "1 failed, 1 passed" in ran.stdout, ran.stdout
    assert f"FAILED {faulty.name}" in ran.stdout.replace(f"{tmp_path}/", "") or (
        faulty.name in ran.stdout
    )


def test_the_suite_replays_an_exported_case_by_its_id(entry: Entry, tmp_path: Path) -> None:
    export(entry, tmp_path / "cases", NAME.format("right_everywhere"))
    (path,) = (tmp_path / "cases").glob("*.json")
    found = find_case(path.stem, tmp_path / "results", tmp_path / "cases")
    assert found == replace(entry.case, kernel=NAME.format("right_everywhere"))
    assert regression(path).verdict == "passed"


def test_a_reason_with_quotes_and_backslashes_stays_text(entry: Entry, tmp_path: Path) -> None:
    odd = replace(entry, result=replace(entry.result, reason='a """ and a \\x and {braces}'))
    path = export(odd, tmp_path, NAME.format("right_everywhere"))
    compile(path.read_text(encoding="utf-8"), str(path), "exec")
