"""The command line: what can be asked, and its help."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from conformance.replay import CASES_FOLDER
from fuzz.draw import PROFILES, WHOLE_RANGE
from fuzz.worker import Limits

CORPUS = "results/fuzz-corpus"


def parsed(arguments: Sequence[str] | None, description: str) -> argparse.Namespace:
    """The options of one command."""
    parser = argparse.ArgumentParser(
        prog="python -m fuzz",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, words: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=words, description=words)

    run = command("run", "Search for cases that a kernel fails: problem, recipe, schedule.")
    _search(run)
    _problems(run)
    run.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="spread the search over a Ray cluster; 'local' starts one here (extra: cluster)",
    )
    diff = command("diff", "Run the same cases on two versions of a kernel and compare them.")
    _search(diff)
    _problems(diff)
    diff.add_argument(
        "--baseline",
        required=True,
        metavar="REV|PATH",
        help="a git revision, a folder that holds optimized/, or another kernel",
    )
    diff.add_argument(
        "--bitwise", action="store_true", help="any bit that differs is a finding, not only values"
    )
    schedule = command("schedule", "Run one problem under adversarial schedules.")
    _search(schedule)
    schedule.add_argument(
        "--case",
        help="the problem: a case as JSON, a file of one, or the id of a recorded one; "
        "default: 600 keys in two splits",
    )
    schedule.add_argument(
        "--checks",
        default="bounds,initialisation,deadlock",
        help="what the simulator watches; default %(default)s",
    )
    replay = command("replay", "Run cases of the corpus again.")
    _chosen(replay, "all minimal cases")
    minimize = command("minimize", "Make cases of the corpus smaller, one step at a time.")
    _chosen(minimize, "all that are not minimal")
    minimize.add_argument("--shrink-seconds", type=float, default=600.0, help="for each case")
    export = command("export", "Write a pytest file for each minimal case into a folder.")
    _chosen(export, "all minimal cases")
    export.add_argument(
        "--cases-folder", default=str(CASES_FOLDER), help="where to; default %(default)s"
    )
    return parser.parse_args(arguments)


def _search(parser: argparse.ArgumentParser) -> None:
    """What every campaign can be told."""
    _kernel(parser, "optimized")
    parser.add_argument("--minutes", type=float, help="end after so long; default: never")
    parser.add_argument("--cases", type=int, help="end after so many cases; default: never")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="searches side by side; default: cores"
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn; default 0")
    parser.add_argument("--stop-at-first", action="store_true", help="end with the first finding")
    parser.add_argument(
        "--shrink-seconds", type=float, default=120.0, help="for each minimal case; default 120"
    )
    parser.add_argument("--results", default="results", help="folder for records; default results")
    parser.add_argument("--resume", metavar="FOLDER", help="records of a campaign to go on with")


def _problems(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        default=WHOLE_RANGE,
        help="which problems are drawn: the shapes of a profile of the suite, or, with "
        f"{WHOLE_RANGE}, whatever the contract allows; default {WHOLE_RANGE}",
    )
    parser.add_argument(
        "--shapes",
        type=int,
        metavar="N",
        help=f"of {WHOLE_RANGE}, only N pairs of dtype and page size, chosen by --seed, so that "
        "little is compiled; default: all",
    )


def _chosen(parser: argparse.ArgumentParser, default: str) -> None:
    """What concerns cases of the corpus."""
    parser.add_argument(
        "ids", nargs="*", metavar="ID", help=f"case or fault, may be shortened; default: {default}"
    )
    _kernel(parser, None)


def _kernel(parser: argparse.ArgumentParser, default: str | None) -> None:
    """What decides where cases run."""
    usual = default or "the one that failed"
    parser.add_argument("--kernel", default=default, help=f"kernel under test; default {usual}")
    parser.add_argument("--engine", default="auto", help="auto, simulator or cuda; default auto")
    parser.add_argument("--corpus", default=CORPUS, help="folder of faults; default %(default)s")
    limits = Limits()
    parser.add_argument(
        "--case-seconds",
        type=int,
        default=limits.seconds,
        help="processor time of one case, after which it hangs; default %(default)s",
    )
    parser.add_argument(
        "--memory-gib",
        type=float,
        default=limits.memory_gib,
        help="memory that one case may add to its worker; default %(default)s",
    )
