"""publication: an mbarrier used by someone to whom its initialisation is not visible.

An object that one warp makes can be used by others only if something orders the two: a barrier of
the CTA, or for other CTAs of the cluster their barrier. ``barrier.cluster.arrive.relaxed`` orders
nothing by itself: it carries what ``fence.mbarrier_init`` (for the objects of the thread that
executes it) or ``fence.acq_rel`` stands before. And a bulk copy signals the object through the
async proxy, for which ``fence.mbarrier_init`` or ``fence.proxy.async`` must stand on the way.
Sources: PTX ISA, 9.7.13.3 membar, fence; 9.7.13.4 barrier.cluster; CUDA C++ Programming Guide,
"Asynchronous Data Copies using the Tensor Memory Accelerator" (the fence after initialisation).

What is known is kept by warps: lanes are not told apart. A flag in memory orders nothing here.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from simulator.machine.warp import Mask
from simulator.sanitizer.finding import Access, Findings
from simulator.sanitizer.witness import Witness

_ASYNC_PROXY: Final = ("bulk load", "launch control")
"""How the names of those engines begin that signal through the async proxy."""
_PROXY_FENCES: Final = {
    f"fence.proxy.async{space}" for space in ("", ".shared::cta", ".shared::cluster")
}
_RELEASING: Final = ("fence.acq_rel.", "fence.sc.", "fence.release.", "membar.")


@dataclass(frozen=True)
class _Known:
    """Sets of objects, a bit each: whose making is known, and what a fence has done for them.

    ``ordered`` are those that a relaxed arrival carries as well, ``proxied`` those that the async
    proxy sees.
    """

    made: int = 0
    ordered: int = 0
    proxied: int = 0

    def __or__(self, other: _Known) -> _Known:
        return _Known(
            self.made | other.made, self.ordered | other.ordered, self.proxied | other.proxied
        )

    @property
    def relaxed(self) -> _Known:
        """What an arrival without release semantics carries."""
        return _Known(self.made & self.ordered, self.ordered, self.proxied & self.ordered)


_NOTHING: Final = _Known()


class PublicationCheck(Witness):
    """Watches the mbarrier objects of one cluster."""

    name = "publication"

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._bits: dict[int, int] = {}
        self._makers: list[Access] = []
        self._own: dict[Hashable, int] = {}
        self._known: dict[Hashable, _Known] = {}
        self._pending: dict[int, _Known] = {}
        self._open: dict[int, _Known] = {}
        self._kept: dict[int, object] = {}  # so that the identity of a barrier stays its own

    # 1. What is known

    def initialised(self, barrier: object, offset: int) -> None:
        """The acting warp knows the object."""
        bit = 1 << len(self._makers)
        self._makers.append(self.access("initialisation"))
        self._bits[id(barrier)] = bit
        self._kept[id(barrier)] = barrier
        self._own[self.warp] = self._own.get(self.warp, 0) | bit
        self._learn(_Known(made=bit))

    def fenced(self, fence: str, mask: Mask | None) -> None:
        """A fence widens what the warp's arrivals carry and what the async proxy sees."""
        known = self._known.get(self.warp, _NOTHING)
        if fence.startswith("fence.mbarrier_init"):
            own = self._own.get(self.warp, 0)
            self._learn(_Known(ordered=own, proxied=own))
        elif fence in _PROXY_FENCES:
            self._learn(_Known(proxied=known.made))
        elif fence.startswith(_RELEASING):
            self._learn(_Known(ordered=known.made))

    def issue(self, engine: Hashable) -> _Known:
        """The work knows what its issuer knows."""
        return self._known.get(self.warp, _NOTHING)

    def release(self, barrier: object) -> None:
        """The phase will carry what the actor knows."""
        known = self._actor()
        if self.work is None and ".relaxed" in self.mnemonic():
            known = known.relaxed
        self._kept[id(barrier)] = barrier
        self._pending[id(barrier)] = self._pending.get(id(barrier), _NOTHING) | known

    def opened(self, barrier: object) -> None:
        """What the phase carries can be learnt."""
        carried = self._pending.pop(id(barrier), _NOTHING)
        self._open[id(barrier)] = self._open.get(id(barrier), _NOTHING) | carried

    def acquire(self, barrier: object) -> None:
        """The warp learns what the barrier's phases have carried."""
        self._learn(self._open.get(id(barrier), _NOTHING))

    def _learn(self, more: _Known) -> None:
        self._known[self.warp] = self._known.get(self.warp, _NOTHING) | more

    def _actor(self) -> _Known:
        if self.work is not None:
            known: _Known = self.work[1]
            return known
        return self._known.get(self.warp, _NOTHING)

    # 2. What is used

    def signalled(self, barrier: object, step: str) -> None:
        """A use by whoever acts."""
        self._use(barrier, "arrival" if step == "arrive" else f"{step} of bytes")

    def asked(self, barrier: object, parity: int, over: bool) -> None:
        """A use by the acting warp."""
        self._use(barrier, "wait")

    def _use(self, barrier: object, what: str) -> None:
        bit, known = self._bits.get(id(barrier), 0), self._actor()
        if known.made & bit != bit:
            self.note(_UNKNOWN, self.access(what), self._makers[bit.bit_length() - 1])
        elif (
            self.work is not None
            and self.work[0].startswith(_ASYNC_PROXY)
            and known.proxied & bit != bit
        ):
            self.note(_UNFENCED, self.access(what), self._makers[bit.bit_length() - 1])


_UNKNOWN = "nothing makes the initialisation of an mbarrier visible to this use of it"
_UNFENCED = (
    "a copy of the async proxy signals an mbarrier that was initialised with neither "
    "fence.mbarrier_init nor fence.proxy.async between them"
)
