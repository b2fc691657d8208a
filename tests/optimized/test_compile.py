"""Compilations: kept on disk under all that decides them, found again without the compiler."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from optimized import api, cache
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
import sys
from optimized.compile import compiled
from optimized.plan import Specialisation
compiled(Specialisation("float8_e4m3fn", 64, 64))
print("cutlass" in sys.modules)
"""


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_first_compilation_of_a_process_may_be_for_any_target(tmp_path: Path) -> None:
    # Not sm_100a: that is the compiler's default, and others took another path through it.
    assert int(run(COLD, str(tmp_path))) > 100_000


def test_a_second_process_finds_a_compilation_without_the_compiler() -> None:
    compiling.compiled(KEY)
    assert run(WARM).strip() == "False"


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


def test_a_gpu_launch_happens_on_the_device_of_the_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on the current one, and compiled for what that device is."""
    events: list[object] = []

    @contextmanager
    def current(device: torch.device) -> Iterator[None]:
        events.append(("enter", device))
        yield
        events.append(("leave", device))

    def function(key: Specialisation, arch: str) -> Callable[..., None]:
        return lambda *arguments: events.append((key, arch, arguments))

    monkeypatch.setattr(torch.cuda, "device", current)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, device.index))
    monkeypatch.setattr(compiling, "_function", function)
    device = torch.device("cuda", 3)
    compiling.CudaDevice(device).launch(KEY, [1, 2])
    assert events == [("enter", device), (KEY, "sm_103a", (1, 2)), ("leave", device)]


def test_a_query_chooses_its_own_device() -> None:
    class Query:
        device = torch.device("cuda", 3)

    assert api._device_of(Query()) == compiling.CudaDevice(Query.device)
    assert api._device_of(torch.empty(1)) == compiling.SimulatedDevice()
