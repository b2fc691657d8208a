"""tensor_memory: who allocates and frees TMEM, and in which order.

Rules of the PTX ISA, 9.7.16.7.1 tcgen05.alloc, dealloc and relinquish_alloc_permit: all tcgen05
instructions of a kernel name the same ``.cta_group``; one warp of the CTA allocates and frees; none
of its threads has exited; the number of columns does not grow from one allocation to the next; with
``.cta_group::2`` a warp of each CTA of the pair takes part.

How many columns there may be, freeing what was not allocated, allocating after the permit was
relinquished, access outside an allocation, and columns that are never freed are always errors.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from simulator.errors import Location
from simulator.machine.warp import Warp
from simulator.ptx.nodes import Instruction
from simulator.sanitizer.finding import Access, Findings
from simulator.sanitizer.witness import Witness

if TYPE_CHECKING:
    from simulator.machine.cluster import Cluster

_GROUP: Final = re.compile(r"\.cta_group::(\d)")


class TensorMemoryCheck(Witness):
    """Watches the allocations of one cluster."""

    name = "tensor_memory"

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._allocators: dict[tuple[int, int], tuple[Warp, Access]] = {}
        self._columns: dict[int, tuple[int, Access]] = {}
        self._steps: dict[int, list[tuple[str, int, Access]]] = {}

    def allocated(self, memory: object, column: int, columns: int) -> None:
        """A warp allocates."""
        here = self._step("allocation", columns)
        before = self._columns.get(id(memory))
        if before is not None and before[0] < columns:
            self.note(
                f"{columns} columns are allocated after {before[0]}: their number must not grow",
                here,
                before[1],
            )
        self._columns[id(memory)] = (columns, here)
        self._allocators[id(memory), column] = (self.warp, here)

    def deallocated(self, memory: object, column: int, columns: int) -> None:
        """A warp frees."""
        here = self._step("deallocation", columns)
        warp, before = self._allocators.pop((id(memory), column))
        if warp is not self.warp:
            self.note(_OTHER, here, before)

    def _step(self, what: str, columns: int) -> Access:
        """Note an allocation or deallocation and what is wrong with it by itself."""
        here, group = self.access(what), _GROUP.search(self.mnemonic())
        if not self.warp.alive.all():
            self.note(_EXITED, here)
        if group is not None and group[1] == "2":
            steps = self._steps.setdefault(self.warp.cta.rank, [])
            steps.append((what, columns, here))
        return here

    def ended(self, cluster: Cluster) -> None:
        """Compare the CTAs of each pair, and the groups that the instructions name."""
        self._name_one_group(cluster)
        for rank in range(0, len(cluster.ctas), 2):
            steps, others = self._steps.get(rank, []), self._steps.get(rank + 1, [])
            for index in range(max(len(steps), len(others))):
                pair = [side[index] for side in (steps, others) if index < len(side)]
                if len(pair) < 2 or pair[0][:2] != pair[1][:2]:
                    self.note(_APART, pair[0][2], pair[1][2] if len(pair) == 2 else None)
                    break

    def _name_one_group(self, cluster: Cluster) -> None:
        kernel = cluster.launch.program.kernel
        first: dict[str, Access] = {}
        for node in kernel.body:
            if isinstance(node, Instruction) and node.mnemonic.startswith("tcgen05."):
                group = _GROUP.search(node.mnemonic)
                if group and group[1] not in first:
                    place = Location(kernel.name, node.line, node.text(), node.source)
                    first[group[1]] = Access("the program", "instruction", place)
        if len(first) == 2:
            self.note(_GROUPS, first["2"], first["1"])


_OTHER = "TMEM is freed by another warp than the one that allocated it"
_EXITED = "a warp of which threads have exited allocates or frees TMEM"
_APART = "tcgen05.alloc or dealloc with .cta_group::2 that only one CTA of the pair executes"
_GROUPS = "the tcgen05 instructions of a kernel name different CTA groups"
