"""Run a saved call of a compiled kernel and look into it: ``python -m simulator --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from simulator.commands import covering, debugging, profiles, running, tracing
from simulator.commands.options import MISUSE

COMMANDS = (running, profiles, covering, tracing, debugging)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is its own, 2 for wrong use."""
    given = _parser().parse_args(arguments)
    try:
        code: int = given.command(given)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return MISUSE
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulator",
        description="Run a compiled CuTe DSL kernel for Blackwell (sm_100a) on the CPU, and look "
        "into it. A call is saved with simulator.launch.launch(..., save_to=FOLDER), or given as "
        "path/file.py:function. docs/simulator/using.md shows each command at work.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
