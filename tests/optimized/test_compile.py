"""Compilations: kept on disk under all that decides them, found again without the compiler."""

import subprocess
import sys
from pathlib import Path

import pytest

from optimized import cache
from optimized import compile as compiling
from optimized.plan import Specialisation

ROOT = Path(__file__).parents[2]
KEY = Specialisation("float8_e4m3fn", 64, 64)
COLD = """
import pathlib, sys, optimized.compile as compiling
from optimized.plan import Specialisation
compiling.CACHE = pathlib.Path(sys.argv[1])
print(len(compiling.compiled(Specialisation("float8_e4m3fn", 64, 64), "sm_103a").host_object))
"""
WARM = """
import time
import torch
from optimized.compile import compiled
from optimized.plan import Specialisation
import sys
start = time.perf_counter()
compiled(Specialisation("float8_e4m3fn", 64, 64))
print(time.perf_counter() - start, "cutlass" in sys.modules)
"""


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_first_compilation_of_a_process_may_be_for_any_target(tmp_path: Path) -> None:
    # Not sm_100a: that is the compiler's default, and others took another path through it.
    assert int(run(COLD, str(tmp_path))) > 100_000


def test_a_second_process_finds_a_compilation_without_the_compiler() -> None:
    compiling.compiled(KEY)
    seconds, imported = run(WARM).split()
    assert imported == "False"
    assert float(seconds) < 1.0


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The keys under which compilations are looked for; nothing is compiled."""
    asked: list[dict[str, str]] = []

    def fetch(root: Path, key: dict[str, str], make: object) -> cache.Compiled:
        asked.append(key)
        return cache.Compiled("", b"", "")

    monkeypatch.setattr(compiling, "fetch", fetch)
    return asked


def look(key: Specialisation = KEY, arch: str = "sm_100a") -> None:
    compiling.compiled.__wrapped__(key, arch)


def test_whatever_decides_a_compilation_is_part_of_its_key(
    keys: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    look()
    look()
    assert keys[0] == keys[1]
    look(Specialisation("float16", 128, 64))
    look(Specialisation("float8_e4m3fn", 128, 64))
    look(Specialisation("float8_e4m3fn", 64, 32))
    look(arch="sm_103a")
    monkeypatch.setattr(compiling.metadata, "version", lambda name: "0.0.0")
    look()
    monkeypatch.undo()
    assert len({str(sorted(key.items())) for key in keys}) == 6


@pytest.mark.parametrize("name", ["plan.py", "compile.py", "common/ptx.py", "sm100/kernel.py"])
def test_a_changed_source_is_compiled_anew(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = compiling._sources()
    for pattern in compiling._SOURCES:
        for path in sorted((ROOT / "optimized").glob(pattern)):
            copy = tmp_path / path.relative_to(ROOT / "optimized")
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(compiling, "_ROOT", tmp_path)
    assert compiling._sources() == before
    with (tmp_path / name).open("a") as file:
        file.write("\n")
    assert compiling._sources() != before
