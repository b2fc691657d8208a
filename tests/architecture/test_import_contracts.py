"""The static contracts of pyproject.toml hold, and each one notices an import that breaks it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("reference", "optimized", "simulator", "conformance", "fuzz", "reports", "mutation")

# contract, module to plant, its text
BREACHES = [
    ("leaves", "reports/records.py", "import numpy"),
    ("leaves", "reference/problem.py", "from reference import masks"),
    ("reference", "reference/planted.py", "import simulator"),
    ("optimized", "optimized/planted.py", "from reference import masks"),
    ("optimized", "optimized/planted.py", "import simulator.launch"),
    ("device-code", "optimized/sm100/planted.py", "import torch"),
    ("device-code", "optimized/sm100/planted.py", "import optimized.sm90"),
    ("device-code", "optimized/sm90/planted.py", "import optimized.api"),
    ("simulator", "simulator/planted.py", "def late():\n    import torch"),
    ("conformance", "conformance/planted.py", "import optimized.sm100"),
    ("conformance", "conformance/planted.py", "import simulator.machine"),
    ("fuzz", "fuzz/planted.py", "import simulator.launch"),
    ("fuzz", "fuzz/planted.py", "from reference import masks"),
    ("conformance", "conformance/planted.py", "import mutation.ptx"),
    ("mutation", "mutation/planted.py", "import optimized.api"),
    ("mutation", "mutation/planted.py", "import simulator.launch"),
    ("reports", "reports/planted.py", "import conformance"),
]
# What a breach imports must exist: static analysis does not see a module that is not there.
STAND_INS = (
    "optimized/api.py",
    "optimized/sm90/__init__.py",
    "optimized/sm100/__init__.py",
    "simulator/launch.py",
)


def lint_imports(folder: Path, contract: str) -> subprocess.CompletedProcess[str]:
    command = "from importlinter.cli import lint_imports_command as main; main()"
    options = ["--no-logo", "--no-cache", "--contract", contract]
    return subprocess.run(
        [sys.executable, "-c", command, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The packages' sources in a folder of their own, with stand-ins for what is not written."""
    for package in PACKAGES:
        only_python = shutil.ignore_patterns("__pycache__", "*.json", "*.toml")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=only_python)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in STAND_INS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize("contract", sorted({breach[0] for breach in BREACHES}))
def test_contract_is_kept(copy: Path, contract: str) -> None:
    result = lint_imports(copy, contract)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(("contract", "module", "text"), BREACHES)
def test_contract_notices_a_breach(copy: Path, contract: str, module: str, text: str) -> None:
    path = copy / module
    path.parent.mkdir(exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
    result = lint_imports(copy, contract)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "BROKEN" in result.stdout
    assert module.removesuffix(".py").replace("/", ".") in result.stdout
