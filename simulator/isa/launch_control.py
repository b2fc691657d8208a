"""clusterlaunchcontrol: a running cluster takes over the work of one that has not begun.

What a response holds is left open by PTX: here the first CTA's index in three words, then 1 for
success. A request succeeds as long as a cluster of the grid has not begun, and they are taken in
order. Source: PTX ISA 9.7.13.17 clusterlaunchcontrol.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from simulator.errors import Trap
from simulator.isa.table import Kind, instruction
from simulator.machine.memory_map import OFFSET_MASK, RANK_SHIFT
from simulator.machine.warp import Mask, Warp

Array = Any
_RESPONSE_BYTES = 16
_request = functools.partial(
    instruction, section="9.7.13.17.1 clusterlaunchcontrol.try_cancel", kind=Kind.EFFECT
)
_query = functools.partial(instruction, section="9.7.13.17.2 clusterlaunchcontrol.query_cancel")
_TRY = "clusterlaunchcontrol.try_cancel.async<s>.mbarrier::complete_tx::bytes"
_SPACES = ("", ".shared::cta")


@_request(f"{_TRY}.b128", "[b32] [b32]", s=_SPACES)
def try_cancel(warp: Warp, mask: Mask | None, target: Array, barrier: Array) -> None:
    """Ask for a cluster that has not begun; the response arrives as an asynchronous write."""
    _submit(warp, mask, target, barrier, [warp.cta.rank])


@_request(f"{_TRY}.multicast::cluster::all.b128", "[b32] [b32]", s=_SPACES)
def try_cancel_multicast(warp: Warp, mask: Mask | None, target: Array, barrier: Array) -> None:
    """As ``try_cancel``; the response goes to the same offset in every CTA of the cluster."""
    _submit(warp, mask, target, barrier, list(range(len(warp.cta.cluster.ctas))))


def _submit(warp: Warp, mask: Mask | None, target: Array, barrier: Array, ranks: list[int]) -> None:
    cluster = warp.cta.cluster
    for lane in warp.lanes(mask).tolist():
        addresses = int(target[lane]), int(barrier[lane])
        for address in addresses:
            if address >> RANK_SHIFT != warp.cta.rank:
                name = cluster.shared_name(address)
                raise Trap(f"clusterlaunchcontrol.try_cancel of CTA rank {warp.cta.rank}: {name}")
        place, signalled = (address & OFFSET_MASK for address in addresses)

        def respond(place: int = place, signalled: int = signalled) -> None:
            words = np.zeros((4, 1), np.uint32)
            if cluster.waiting:
                words[:3, 0] = cluster.waiting.popleft()[0]
                words[3] = 1
            for rank in ranks:
                cluster.ctas[rank].shared.store(np.array([place]), 4, words)
                cluster.mbarrier(rank << RANK_SHIFT | signalled).complete_tx(_RESPONSE_BYTES)

        engine = f"launch control of CTA rank {warp.cta.rank}"
        cluster.asynchronous.submit(engine, respond, cluster.site(warp))


def _words(response: Array) -> Array:
    """Four words a lane."""
    return response.view(np.uint32).reshape(32, 4)


@_query("clusterlaunchcontrol.query_cancel.is_canceled.pred.b128", "pred = b128")
def is_canceled(response: Array) -> Array:
    """Whether the request succeeded."""
    return _words(response)[:, 3] != 0


@_query("clusterlaunchcontrol.query_cancel.get_first_ctaid::<d>.b32.b128", "b32 = b128",
        d=("x", "y", "z"))  # fmt: skip
def first_ctaid(response: Array, *, d: str) -> Array:
    """One coordinate of the first CTA of the cluster that was taken over; 0 if there is none."""
    return _words(response)[:, "xyz".index(d)].copy()


@_query("clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128", "(b32*4) = b128")
def first_ctaid_vector(response: Array) -> Array:
    """All coordinates of that CTA, and a number that means nothing."""
    return _words(response).T.copy()
