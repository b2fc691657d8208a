"""Turns failing cases into regression tests in fuzz/cases/, which run with all other tests."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import replace
from pathlib import Path

from conformance.judge import Judge
from conformance.session import make_subject
from fuzz.corpus import Entry
from fuzz.jobs import SAME_AS_BASELINE, Bench
from reports.records import Case, CaseResult

TEMPLATE = '''"""{title}

{found}
"""

from pathlib import Path

from fuzz.export import regression


def test_{name}() -> None:
    result = regression(Path(__file__).with_name("{case_id}.json"))
    assert not result.is_bad, result.reason
'''


def export(entry: Entry, folder: Path, kernel: str) -> Path:
    """Write the case, for ``kernel``, and a pytest file that runs it; the path of the latter.

    Both may be written again. A difference of two versions becomes the case on one of them.
    """
    case = replace(entry.case, kernel=kernel)
    if case.property == SAME_AS_BASELINE:
        case = replace(case, property="matches_float64")
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(case.to_json(), indent=1, sort_keys=True)
    (folder / f"{case.id}.json").write_text(text + "\n", encoding="ascii")
    name = re.sub(r"\W+", "_", f"{entry.case.property}_{case.id}")
    path = folder / f"test_{name}.py"
    reason = " ".join((entry.result.reason or "").split()).replace('"""', "'''")
    found = textwrap.fill(
        f"A fuzzing campaign found this on {entry.case.kernel}: {reason[:300]}", width=98
    )
    # A name or a reason may hold backslashes, which are none of Python's business here.
    path.write_text(
        TEMPLATE.format(
            title=f"{str(entry.signature)[:90]}.",
            found=found.replace("\\", "/"),
            name=name,
            case_id=case.id,
        ),
        encoding="utf-8",
    )
    return path


def regression(path: Path) -> CaseResult:
    """The result of the case in a file, on the kernel and engine that it names."""
    case = Case.from_json(json.loads(path.read_text(encoding="utf-8")))
    if case.property.startswith("same_"):
        return Bench(case.kernel, case.engine).do(case).result
    return Judge(lambda _: None).judge(make_subject(case.kernel, case.engine), case)
