"""Each error that the simulator makes stands on docs/simulator/errors.md with its message.

An error is found where its class is called; what its message says is compared with the page, the
parts that are filled in being free, and what a caller has put before it. A new one needs a program
in ``tests/simulator/error_cases.py``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.simulator import error_cases

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/simulator/errors.md"
KINDS = {
    "Trap", "OutOfBounds", "Uninitialised", "Deadlock", "ProtocolError", "Unsupported", "HostError",
}  # fmt: skip


def errors_of(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, kind and message, as a pattern, of each error that a module makes."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            name = node.func.id
            if name in KINDS:
                yield node.lineno, name, pattern(node.args[0])
            elif name == "_refuse" and len(node.args) == 2:  # of the parser
                yield node.lineno, "Unsupported", pattern(node.args[1])


def pattern(node: ast.expr) -> str:
    """A regular expression for a message."""
    match node:
        case ast.Constant(value=value):
            return re.escape(str(value))
        case ast.JoinedStr(values=values):
            return "".join(map(pattern, values))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return pattern(left) + pattern(right)
    return ".+"


def messages(page: str) -> dict[str, list[str]]:
    """The messages of the page by kind, without the lines that say where."""
    found: dict[str, list[str]] = {}
    for section in page.split("\n## ")[1:]:
        kind = section.partition("\n")[0]
        blocks = re.findall(r"```\n(.*?)\n```", section, re.DOTALL)
        found[kind] = [block.partition("\n  at ")[0] for block in blocks]
    return found


def missing(text: str, page: str) -> list[str]:
    """The errors of a module that the page does not have."""
    shown = messages(page)
    return [
        f"line {line}: {kind} {wanted}"
        for line, kind, wanted in errors_of(text)
        if not any(
            re.fullmatch("(.*: )?" + wanted, message, re.DOTALL) for message in shown.get(kind, ())
        )
    ]


def test_the_page_has_what_the_programs_say():
    assert PAGE.read_text(encoding="utf-8") == error_cases.page(), (
        "write it again: python -m tests.simulator.error_cases > docs/simulator/errors.md"
    )


def test_the_page_has_a_message_of_each_error():
    page = PAGE.read_text(encoding="utf-8")
    wanting = {
        str(path.relative_to(ROOT)): lines
        for path in sorted((ROOT / "simulator").rglob("*.py"))
        if (lines := missing(path.read_text(encoding="utf-8"), page))
    }
    assert not wanting, "add programs to tests/simulator/error_cases.py"


def test_an_error_without_a_message_is_found():
    page = "# E\n\n## Trap\n\nWords.\n\n```\n3 lanes are\ntoo many\n  at kernel k\n```\n"
    shown = 'raise Trap(f"{n} lanes are\\n" + what(n))'
    assert missing(shown, page) == []
    assert missing(shown.replace("Trap", "Deadlock"), page)
    assert missing(shown.replace("lanes", "warps"), page)
    assert missing('_refuse(token.line, f"operand {token!r}")', page)
