"""registers: the rules of setmaxnreg, by which warpgroups pass registers to each other.

All warps of a warpgroup change to the same number, in step; ``inc`` never lowers the number and
``dec`` never raises it; and what all warps have in the end must fit into the CTA's pool, or an
``inc`` waits for good. Source: PTX ISA 9.7.19.5 setmaxnreg.

The pool is what the CTA was launched with: threads times ``.maxnreg`` or, with ``.minnctapersm``,
the largest number with which so many CTAs fit. Without either it is the register file, and the
number at the start is not known. Range and multiple of 8 are always checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from simulator.machine.warp import LANES, Warp
from simulator.sanitizer.finding import Access, Findings
from simulator.sanitizer.witness import Witness

if TYPE_CHECKING:
    from simulator.machine.cluster import Cluster, Cta

WARPS: Final = 4
"""Warps of a warpgroup; the first one's rank is a multiple."""
FILE: Final = 65536
"""Registers of an SM (CUDA C++ Programming Guide, "Technical Specifications")."""
_MOST, _UNIT = 255, 8


@dataclass(frozen=True)
class _Change:
    way: str
    count: int
    access: Access


class RegisterCheck(Witness):
    """Watches the warpgroups of one cluster."""

    name = "registers"

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._changes: dict[Warp, list[_Change]] = {}

    def resized(self, way: str, count: int) -> None:
        """A warp changes its number of registers."""
        warp, here = self.warp, self.access(f"setmaxnreg.{way}")
        changes = self._changes.setdefault(warp, [])
        held = changes[-1].count if changes else launched_with(warp.cta)
        if held is not None and (count < held if way == "inc" else count > held):
            verb = "raises" if way == "dec" else "lowers"
            self.note(f"setmaxnreg.{way} {verb} the {held} registers of a thread to {count}", here)
        for other in _group(warp):
            if len(self._changes.get(other, ())) < len(changes):
                self.note(_AHEAD, here, changes[-1].access)
                break
        changes.append(_Change(way, count, here))

    def ended(self, cluster: Cluster) -> None:
        """Compare the warps of each warpgroup, and add up what each CTA has."""
        for warp, changes in list(self._changes.items()):
            for other in _group(warp):
                self._compare(changes, self._changes.get(other, []))
        for cta in cluster.ctas:
            self._add_up(cta)

    def _compare(self, changes: list[_Change], others: list[_Change]) -> None:
        for index, change in enumerate(changes):
            if index >= len(others):
                self.note(_ALONE, change.access)
                return
            other = others[index]
            if (change.way, change.count) != (other.way, other.count):
                sentence = (
                    f"warps of one warpgroup change their registers apart: one by "
                    f"setmaxnreg.{change.way} {change.count}, one by setmaxnreg.{other.way} "
                    f"{other.count}"
                )
                if (change.way, change.count) < (other.way, other.count):
                    self.note(sentence, change.access, other.access)
                return

    def _add_up(self, cta: Cta) -> None:
        first = launched_with(cta)
        pool = FILE if first is None else first * LANES * len(cta.warps)
        changed = [self._changes[warp][-1] for warp in cta.warps if warp in self._changes]
        others = (len(cta.warps) - len(changed)) * (first or 0)
        total = LANES * (sum(change.count for change in changed) + others)
        if total > pool:
            raised = [change for change in changed if change.way == "inc"] or changed
            self.note(
                f"the warps of a CTA ask for {total} registers and it has {pool}: one of them "
                f"waits for good",
                raised[-1].access,
            )


def launched_with(cta: Cta) -> int | None:
    """The registers of each thread at the start; None if the program's directives leave it open."""
    directives = cta.program.kernel.directives
    if "maxnreg" in directives:
        return directives["maxnreg"][0]
    if "minnctapersm" not in directives:
        return None
    threads = LANES * len(cta.warps) * directives["minnctapersm"][0]
    return min(FILE // threads, _MOST) // _UNIT * _UNIT


def _group(warp: Warp) -> list[Warp]:
    """The other warps of the warpgroup that the CTA has."""
    first = warp.rank - warp.rank % WARPS
    return [one for one in warp.cta.warps[first : first + WARPS] if one is not warp]


_ALONE = "not all warps of a warpgroup execute this setmaxnreg"
_AHEAD = (
    "a warp changes its registers again before another of its warpgroup has made the change before"
)
