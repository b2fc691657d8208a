"""``debug``: stop at lines of the PTX or the source, and print what the machine holds there."""

from __future__ import annotations

import argparse
import cmd
import sys
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from simulator.breakpoints import SHARED_TYPES, Break, Stop, debugged
from simulator.commands.options import CALL_HELP, DONE, add_schedule, exit_code, session
from simulator.errors import SimulationError
from simulator.machine.tensor_memory import COLUMNS, LANES

MOST_SHOWN: Final = 4096  # elements of an array that are printed without an ellipsis


class Quit(BaseException):
    """The user has seen enough. No ``Exception``: the machine must not take it for its own."""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "debug",
        help="stop at a PTX or source line; print registers, TMEM and shared memory as arrays",
        description="Execute a call by the interpreter and stop before instructions of given "
        "lines. With --command the commands run at each stop and nothing is asked; without, a "
        "prompt takes them. Commands: " + "; ".join(_Console.USAGE.values()) + ".",
    )
    parser.add_argument("call", metavar="CALL", help=CALL_HELP)
    parser.add_argument(
        "--break",
        dest="breaks",
        action="append",
        required=True,
        metavar="WHERE",
        help="ptx:LINE or FILE:LINE, FILE being the end of the source's path; may be given again",
    )
    parser.add_argument(
        "--command",
        dest="script",
        action="append",
        metavar="TEXT",
        help="what to do at a stop; may be given again",
    )
    parser.add_argument(
        "--stops", type=int, default=1, metavar="N", help="with --command, so often; default: 1"
    )
    parser.add_argument("--warp", type=int, metavar="W", help="stop this warp of a CTA alone")
    parser.add_argument("--cta", metavar="X,Y,Z", help="stop in this CTA alone")
    add_schedule(parser)
    parser.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    """Execute the command; the exit code."""
    breaks = tuple(map(Break.parse, given.breaks))
    if given.stops < 1:
        raise ValueError(f"--stops: {given.stops} is below 1")
    asked = session(given)
    console = _Console(given.script, given.stops, given.warp, _cta(given.cta))
    program = debugged(asked.program(), breaks, console.stop)
    try:
        asked.launch(program, executor="interpreter")
    except Quit:
        return DONE
    except SimulationError as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
        return exit_code(error)
    sys.stdout.write(f"the call has ended; {console.stops} stops\n")
    return DONE


def _cta(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    words = text.split(",")
    if len(words) != 3 or not all(word.isdecimal() for word in words):
        raise ValueError(f"--cta: {text!r} is not X,Y,Z")
    return tuple(map(int, words))


class _Console(cmd.Cmd):
    """What is done at stops: a script, or a prompt."""

    prompt = "(simulator) "
    USAGE: Final = {
        "where": "where: the warp and its instruction",
        "operands": "operands: the registers that the instruction names",
        "print": "print REGISTER [TYPE]: a register's 32 lanes",
        "tmem": "tmem LANES COLUMNS: part of the CTA's TMEM as float32, say tmem 0:32 0:8; nan is "
        "what nothing wrote",
        "shared": f"shared OFFSET TYPE SHAPE: dynamic shared memory, say shared 1024 f16 8x64; "
        f"types {', '.join(SHARED_TYPES)}",
        "continue": "continue: to the next stop",
        "quit": "quit: end here",
    }

    def __init__(
        self,
        script: Sequence[str] | None,
        most: int,
        warp: int | None,
        cta: tuple[int, ...] | None,
    ) -> None:
        super().__init__()
        self.stops = 0
        self._script = script
        self._most = most
        self._warp = warp
        self._cta = cta
        self._at: Stop | None = None

    def stop(self, at: Stop) -> None:
        """A warp is at a break."""
        if self._warp not in (None, at.warp.rank) or self._cta not in (None, at.warp.cta.index):
            return
        if self._script is not None and self.stops >= self._most:
            return
        self.stops += 1
        self._at = at
        self.onecmd("where")
        if self._script is None:
            self.cmdloop()
            return
        for line in self._script:
            self.stdout.write(f"{self.prompt}{line}\n")
            self.onecmd(line)

    def onecmd(self, line: str) -> bool:
        """Run one command; what is wrong with it is said, and the session goes on."""
        try:
            return super().onecmd(line)
        except ValueError as error:
            self.stdout.write(f"error: {error}\n")
            return False

    def do_where(self, _text: str) -> None:
        """Print the warp and its instruction."""
        self._show(self._at)

    def do_operands(self, _text: str) -> None:
        """Print the registers that the instruction names."""
        assert self._at is not None
        for name, value in self._at.operands().items():
            self.stdout.write(f"{name} = {_array(value)}\n")

    def do_print(self, text: str) -> None:
        """Print a register's 32 lanes."""
        words = self._words("print", text, (1, 2))
        assert self._at is not None
        self._show(_array(self._at.register(*words)))

    def do_tmem(self, text: str) -> None:
        """Print part of the CTA's TMEM."""
        lanes, columns = self._words("tmem", text, (2,))
        assert self._at is not None
        part = self._at.tensor_memory(
            _range("LANES", lanes, LANES), _range("COLUMNS", columns, COLUMNS)
        )
        self._show(_array(part))

    def do_shared(self, text: str) -> None:
        """Print dynamic shared memory of the CTA."""
        offset, kind, shape = self._words("shared", text, (3,))
        sizes = shape.split("x")
        if not offset.isdecimal() or not all(s.isdecimal() and int(s) for s in sizes):
            raise ValueError(self.USAGE["shared"])
        assert self._at is not None
        self._show(_array(self._at.shared(int(offset), kind, tuple(map(int, sizes)))))

    def do_continue(self, _text: str) -> bool:
        """Go on to the next stop."""
        return True

    def do_quit(self, _text: str) -> bool:
        """End the session."""
        raise Quit

    do_EOF = do_quit

    def do_help(self, _text: str) -> None:
        """List the commands."""
        self._show("\n".join(self.USAGE.values()))

    def emptyline(self) -> bool:
        """Nothing: an empty line does not repeat the last command."""
        return False

    def default(self, line: str) -> None:
        """Say which commands there are."""
        raise ValueError(f"{line.split()[0]!r} is none of {', '.join(self.USAGE)}")

    def _words(self, name: str, text: str, counts: tuple[int, ...]) -> list[str]:
        words = text.split()
        if len(words) not in counts:
            raise ValueError(self.USAGE[name])
        return words

    def _show(self, what: object) -> None:
        self.stdout.write(f"{what}\n")


def _range(name: str, text: str, most: int) -> slice:
    """The slice that ``A:B`` means."""
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last) <= most):
        raise ValueError(f"{name}: {text!r} is not A:B with A below B and B at most {most}")
    return slice(int(first), int(last))


def _array(value: Any) -> str:
    return np.array2string(value, threshold=MOST_SHOWN, max_line_width=100)
