"""Which instructions tell an observer something: where one watches, these are left to Python.

Everything else of a watched cluster runs in native code. So an observer is told by the table's own
functions, of the same events in the same order as by the interpreter, whatever it overrides.
"""

from __future__ import annotations

from simulator.isa.table import Entry, Kind

_SILENT = (
    "ld.param", "shfl.", "vote.", "elect.", "match.", "redux.", "activemask.", "prefetch",
    "nanosleep.",
)  # fmt: skip
"""How mnemonics begin that have an effect, or need a converged warp, and tell nothing."""


def tells(entry: Entry) -> bool:
    """Whether an instruction may tell an observer something."""
    return entry.kind is not Kind.PURE and not entry.mnemonic.startswith(_SILENT)
