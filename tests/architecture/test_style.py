"""Rules of docs/conventions.md that ruff cannot check: sizes, machine paths, import-time reads.

Each check is a function from a text to its complaints. One test runs it over the tracked files,
and one gives it a text that breaks the rule.
"""

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE_LINES = 500
FUNCTION_LINES = 60
DEVICE_FUNCTION_LINES = 250
DEVICE_FOLDERS = ("optimized/sm90/", "optimized/sm100/", "optimized/common/")

# A folder of one person's machine, or the address of one package index.
MACHINE = re.compile(r"(?<![\w.])/(?:home|work|root|tmp|Users|opt)/|\bpypi\.(?=org)")


def long_file(path: str, text: str) -> Iterator[str]:
    length = len(text.splitlines())
    if length > FILE_LINES and path not in excused_files():
        yield f"{path}: {length} lines, the limit is {FILE_LINES}"


def excused_files() -> set[str]:
    """Paths that docs/architecture.md excuses from the file limit, each on a line of its own."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = text.partition("## Files past 500 lines")[2].partition("\n## ")[0]
    return set(re.findall(r"^- `(\S+\.py)`: \w", section, flags=re.MULTILINE))


def long_function(path: str, text: str) -> Iterator[str]:
    limit = DEVICE_FUNCTION_LINES if path.startswith(DEVICE_FOLDERS) else FUNCTION_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > limit:
                yield f"{path}:{node.lineno}: {node.name} has {length} lines, the limit is {limit}"


def environment_read(path: str, text: str) -> Iterator[str]:
    """Complain of ``os.environ`` or ``os.getenv`` in code that runs when the module is imported."""
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        name = getattr(node, "attr", None) or getattr(node, "id", None)
        if name in {"environ", "getenv"}:
            yield f"{path}:{getattr(node, 'lineno', 0)}: reads the environment at import"
        waiting.extend(ast.iter_child_nodes(node))


def machine_word(path: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if match := MACHINE.search(line):
            yield f"{path}:{number}: {match.group()!r} belongs to one machine"


def tracked(suffix: str = "") -> Iterator[tuple[str, str]]:
    """Path and text of every tracked text file that is still there."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for path in filter(None, listing.stdout.split("\0")):
        if path.endswith(suffix) and (ROOT / path).is_file():
            yield path, (ROOT / path).read_text(encoding="utf-8")


CHECKS = [
    (long_file, ".py", "pass\n" * (FILE_LINES + 1)),
    (long_function, ".py", "def f():\n" + "    pass\n" * FUNCTION_LINES),
    (environment_read, ".py", "import os\n\nLIMIT = os.environ.get('LIMIT')\n"),
    (machine_word, "", "the venv is in /" + "home/somebody/venv\n"),
]


@pytest.mark.parametrize(("check", "suffix"), [(check, suffix) for check, suffix, _ in CHECKS])
def test_repository_keeps_the_rule(check: Callable[..., Iterator[str]], suffix: str) -> None:
    complaints = [line for path, text in tracked(suffix) for line in check(path, text)]
    assert complaints == []


@pytest.mark.parametrize(("check", "text"), [(check, text) for check, _, text in CHECKS])
def test_check_notices_a_breach(check: Callable[..., Iterator[str]], text: str) -> None:
    assert len(list(check("planted.py", text))) == 1


def test_environment_may_be_read_when_a_function_is_called() -> None:
    text = "import os\n\ndef limit():\n    return os.environ['LIMIT']\n"
    assert list(environment_read("planted.py", text)) == []
