"""Sign-off reports from records: ``python -m reports --help``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from reports import html, markdown
from reports.diff import diff
from reports.evidence import Evidence, gather, record_files
from reports.policy import PolicyError, judge, read_policy
from reports.records import RecordError, scan
from reports.summary import SUMMARY_VERSION, Summary, summarise

POLICY = Path(__file__).parents[1] / "signoff.toml"
NOT_SIGNED_OFF, MISUSE = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 where all is well, 1 where not signed off, 2 for wrong use."""
    given = _parser().parse_args(arguments)
    try:
        code: int = given.command(given)
    except (RecordError, PolicyError, OSError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return MISUSE
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reports",
        description="Turn the records of conformance, fuzzing, mutation, benchmarks and "
        "compilation into a verdict and its evidence.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    signoff = commands.add_parser(
        "signoff",
        help="judge a kernel's records by a policy; write signoff.html, .md and .json",
        description="Judge what the records say of a kernel by a policy of signoff.toml. Writes "
        "signoff.html, signoff.md and signoff.json; exits with 0 if signed off, 1 if not.",
    )
    signoff.add_argument("--kernel", required=True, help="as the records name it")
    signoff.add_argument(
        "--records",
        type=Path,
        nargs="+",
        default=[Path("results")],
        metavar="PATH",
        help="records files, or folders that are searched for them; default: results",
    )
    signoff.add_argument(
        "--baseline", type=Path, nargs="+", metavar="PATH", help="records to compare speeds with"
    )
    signoff.add_argument("--policy", default="full", help="a table of the file; default: full")
    signoff.add_argument(
        "--policy-file", type=Path, default=POLICY, metavar="FILE", help="default: signoff.toml"
    )
    signoff.add_argument(
        "--to", type=Path, default=Path("results/signoff"), metavar="FOLDER", help="%(default)s"
    )
    signoff.set_defaults(command=_signoff)
    difference = commands.add_parser("diff", help="what changed between two signoff.json files")
    difference.add_argument("before", type=Path)
    difference.add_argument("after", type=Path)
    difference.set_defaults(command=_diff)
    validate = commands.add_parser("validate", help="read records files and say what is in them")
    validate.add_argument("records", type=Path, nargs="+", help="files or folders")
    validate.set_defaults(command=_validate)
    return parser


def _signoff(given: argparse.Namespace) -> int:
    limits = read_policy(given.policy_file, given.policy)
    now = datetime.now(UTC)
    evidence = gather(given.kernel, record_files(given.records), now)
    baseline = None
    if given.baseline:
        baseline = gather(given.kernel, record_files(given.baseline), now)
    verdict = judge(given.policy, limits, evidence, baseline)
    summary = summarise(evidence, verdict, now, baseline)
    given.to.mkdir(parents=True, exist_ok=True)
    texts = {
        "signoff.json": json.dumps(summary, indent=1) + "\n",
        "signoff.md": markdown.render(summary),
        "signoff.html": html.render(summary, _drawings(evidence)),
    }
    for name, text in texts.items():
        (given.to / name).write_text(text, encoding="utf-8")
    for finding in verdict.findings:
        if not finding.ok:
            value = "no evidence" if finding.value is None else finding.value
            sys.stdout.write(f"not met: {finding.rule} is {value}, must be {finding.limit}\n")
    sys.stdout.write(f"{given.kernel}: {verdict.text} by policy {given.policy}: {given.to}\n")
    return 0 if verdict.signed_off else NOT_SIGNED_OFF


def _drawings(evidence: Evidence) -> dict[str, str]:
    """Return the drawings that lie beside the records, by the name of their measurement."""
    found = {}
    for name, measurement in evidence.of("timeline").items():
        file = str(measurement.detail.get("file", ""))
        for source in evidence.sources:
            path = Path(source.path).parent / file
            if file and Path(file).name == file and path.is_file():
                found[name] = path.read_text(encoding="utf-8")
    return found


def _diff(given: argparse.Namespace) -> int:
    before, after = _summary(given.before), _summary(given.after)
    sys.stdout.write(diff(before, after))
    return 0


def _summary(path: Path) -> Summary:
    summary: Summary = json.loads(path.read_text(encoding="utf-8"))
    version = summary.get("summary_version") if isinstance(summary, dict) else None
    if version != SUMMARY_VERSION:
        raise ValueError(f"{path}: summary_version {version!r} must be {SUMMARY_VERSION}")
    return summary


def _validate(given: argparse.Namespace) -> int:
    for path in record_files(given.records):
        lines = [type(line).__name__ for line in scan(path)]
        counts = ", ".join(f"{lines.count(name)} {name}" for name in dict.fromkeys(lines))
        sys.stdout.write(f"{path}: {counts}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
