"""The page about the catalogue says what the records say, and which mutants they lack."""

from __future__ import annotations

from mutation.catalogue_table import page
from mutation.source import catalogue
from reports.records import Measurement, RecordWriter

NAMES = list(catalogue())[:3]


def records(folder, *found: tuple[str, list[str], int]):
    with RecordWriter("mutation", folder, device="cpu") as writer:
        for name, by, cases in found:
            status = "killed" if by else "survived"
            detail = {"status": status, "by": by, "cases": cases, "reason": ""}
            writer.measure(Measurement("optimized", "mutant", name, float(bool(by)), "", detail))
        return writer.path


def test_the_page_counts_kills_and_names_survivors_and_what_is_missing(tmp_path):
    one, two, three = NAMES
    early = records(tmp_path / "a", (one, [], 300), ("no-longer-there", ["x"], 1))
    late = records(tmp_path / "b", (one, ["completes"], 4), (two, ["p", "q"], 2), (three, [], 374))
    text = page([early, late])
    assert f"{len(catalogue())} mutants, 3 judged, 2 killed." in text
    assert "median 3, most 4" in text
    assert f"Survived: `{three}`." in text
    assert "| completes | 1 | 1 |" in text
    assert "| p | 1 | 0 |" in text
    says, faults = catalogue()[two].says, ", ".join(catalogue()[two].faults)
    assert f"| {two} | {faults} | {says} | p, q | 2 |" in text
    missing = next(line for line in text.split("\n") if "Not judged" in line)
    assert missing.count("`") == 2 * (len(catalogue()) - 3)
    assert "no-longer-there" not in text
