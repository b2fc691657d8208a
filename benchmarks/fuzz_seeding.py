"""How fast the fuzzer finds faults: mutants of the catalogue, each to a fresh campaign.

    python benchmarks/fuzz_seeding.py --mutants 40 --write docs/fuzz_seeding.md

The sample takes every so-manieth mutant of the catalogue. A campaign ends with its first finding,
shrunk, or after five minutes. What is done is kept in --results and not done again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mutation.source import SourceMutant, catalogue
from reports.records import read_records

ROOT = Path(__file__).parents[1]
COLUMNS = ("mutant", "what is wrong", "found after", "cases", "found by", "smallest case")


def sample(wanted: int) -> list[SourceMutant]:
    """So many mutants, spread evenly over the catalogue."""
    known = list(catalogue().values())
    return [known[number * len(known) // wanted] for number in range(min(wanted, len(known)))]


def searched(mutant: SourceMutant, options: argparse.Namespace) -> dict[str, Any]:
    """What a fresh campaign on one mutant gives; from disk where it ran before."""
    folder = Path(options.results) / mutant.id
    told = folder / "told.json"
    if not told.exists():
        subprocess.run(
            [sys.executable, "-m", "fuzz", "run", "--kernel", f"mutant:{mutant.id}",
             "--shapes", str(options.shapes), "--seed", str(options.seed),
             "--minutes", str(options.minutes),
             "--workers", str(options.workers), "--stop-at-first",
             "--shrink-seconds", str(options.shrink_seconds),
             "--corpus", str(folder / "corpus"), "--results", str(folder)],
            cwd=ROOT, check=False,
        )  # fmt: skip
        told.write_text(json.dumps(_told(folder)), encoding="utf-8")
    found: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
    return found


def _told(folder: Path) -> dict[str, Any]:
    """The campaign's figures, and its smallest case."""
    (path,) = folder.glob("*/records.jsonl")
    records = read_records(path)
    detail = records.measurements[-1].detail
    entries = [json.loads(p.read_text()) for p in folder.glob("corpus/faults/*/*.json")]
    entries.sort(key=lambda entry: not entry["is_minimal"])
    first = entries[0] if entries else {"signature": "", "is_minimal": False, "result": None}
    return {
        "seconds": detail["first_finding_seconds"],
        "cases": next(
            (number for number, r in enumerate(records.results, start=1) if r.is_bad),
            len(records.results),
        ),
        "signature": first["signature"],
        "is_minimal": first["is_minimal"],
        "case": first["result"] and first["result"]["case"],
    }


def table(found: Sequence[tuple[SourceMutant, dict[str, Any]]]) -> Iterator[str]:
    """The lines of a Markdown table, the slowest finding last."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    for mutant, told in sorted(found, key=lambda pair: pair[1]["seconds"] or float("inf")):
        seconds = "not found" if told["seconds"] is None else f"{told['seconds']:.0f} s"
        words = (
            f"`{mutant.id}`", mutant.says, seconds, str(told["cases"]), told["signature"],
            _size(told),
        )  # fmt: skip
        yield f"| {' | '.join(words)} |"


def _size(told: dict[str, Any]) -> str:
    """The smallest case in words."""
    if told["case"] is None:
        return ""
    problem = told["case"]["problem"]
    dims, dtype = problem["dims"], problem["dtype"].partition("_")[0]
    rest = "" if told["is_minimal"] else " (not minimal in the time given)"
    return (
        f"{dtype}, {dims['num_heads']} x {dims['seq_len_q']} rows, pages of "
        f"{problem['page_size']}, keys {problem['seq_lens']}{rest}"
    )


def main() -> int:
    """Search each mutant of the sample; 0 if all were found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=40)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shrink-seconds", type=float, default=120.0)
    parser.add_argument("--shapes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", default="results/fuzz-seeding")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    found = [(mutant, searched(mutant, options)) for mutant in sample(options.mutants)]
    lines = list(table(found))
    sys.stdout.write("\n".join(lines) + "\n")
    if options.write:
        options.write.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(any(told["seconds"] is None for _, told in found))


if __name__ == "__main__":
    sys.exit(main())
