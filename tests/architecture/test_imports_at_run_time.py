"""What importing a module really loads, seen in ``sys.modules`` of a fresh interpreter.

The static contracts cannot see an import made by name, nor tell a function's import from a
module's; and the two leaves may import the standard library alone, which no list of forbidden
names can say.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEAVES = ("reference.problem", "reports.records")
PACKAGES = ("reference", "optimized", "simulator", "conformance", "fuzz", "reports")

REPORT = """
import importlib, json, sys
before = set(sys.modules)
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def loaded_by(*modules: str, root: Path = ROOT) -> set[str]:
    """Top-level names, and our own full names, that importing ``modules`` adds, with no GPU."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", REPORT, *modules],
        cwd=root,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    loaded = set(json.loads(result.stdout.splitlines()[-1]))
    return {name if name.split(".")[0] in PACKAGES else name.split(".")[0] for name in loaded}


def foreign(leaf: str, root: Path = ROOT) -> set[str]:
    """What a leaf loads besides the standard library, itself and its own package."""
    return loaded_by(leaf, root=root) - sys.stdlib_module_names - {leaf, leaf.split(".")[0]}


def modules_of(package: str) -> list[str]:
    """All modules of a package but test modules, which only pytest may import."""
    files = (path.relative_to(ROOT) for path in (ROOT / package).rglob("*.py"))
    modules = (".".join(path.with_suffix("").parts) for path in files if "suite" not in path.parts)
    return sorted(name.removesuffix(".__init__") for name in modules)


@pytest.mark.parametrize("leaf", LEAVES)
def test_leaf_loads_the_standard_library_alone(leaf: str) -> None:
    assert foreign(leaf) == set()


def test_foreign_notices_a_re_export_in_the_package(tmp_path: Path) -> None:
    package = tmp_path / "reports"
    package.mkdir()
    (package / "records.py").touch()
    (package / "__init__.py").write_text("import numpy\n", encoding="utf-8")
    assert "numpy" in foreign("reports.records", root=tmp_path)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_imports_without_a_gpu(package: str) -> None:
    assert package in loaded_by(*modules_of(package))


def test_simulator_never_loads_torch_cutlass_or_the_oracle() -> None:
    banned = {"torch", "cutlass", "tvm_ffi", "reference", "optimized", "conformance"}
    assert loaded_by(*modules_of("simulator")) & banned == set()


def test_host_code_of_optimized_loads_neither_cutlass_nor_the_simulator() -> None:
    device = ("optimized.sm", "optimized.common")
    host = [name for name in modules_of("optimized") if not name.startswith(device)]
    assert loaded_by(*host) & {"cutlass", "simulator"} == set()
