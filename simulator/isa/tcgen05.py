"""The fifth-generation tensor core. Source: PTX ISA 9.7.16, TensorCore 5th Generation Family."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from simulator.errors import Trap, Unsupported
from simulator.isa.table import BLOCKED, Kind, instruction
from simulator.machine import mma, tensor_core
from simulator.machine.cluster import Cta
from simulator.machine.memory_map import OFFSET_MASK, RANK_SHIFT
from simulator.machine.tensor_core import InstructionDescriptor, SharedDescriptor
from simulator.machine.warp import Mask, Warp, uniform

Array = Any
_GROUPS = ("1", "2")
_POWERS = ("1", "2", "4", "8", "16", "32", "64", "128")
_SPACES = (".shared::cta", "")
_LOW_HALF, _SIXTEEN = np.uint32(0xFFFF), np.uint32(16)


def engine(cta: Cta) -> str:
    """The tensor core that a CTA's MMAs and commits go to, in order."""
    return f"tensor core of CTA rank {cta.rank}"


# 1. Allocation

_allocation = functools.partial(
    instruction, g=_GROUPS, section="9.7.16.7.1 tcgen05.alloc", converged=True
)


@_allocation(
    "tcgen05.alloc.cta_group::<g>.sync.aligned<s>.b32", "[b32] u32", s=_SPACES, kind=Kind.WAIT
)
def alloc(warp: Warp, mask: Mask | None, target: Array, columns: Array) -> Any:
    """Allocate TMEM columns, waiting until there are enough, and store their address."""
    address = warp.cta.tensor_memory.allocate(int(columns[0]))
    if address is None:
        warp.block_on(warp.cta.tensor_memory, f"{int(columns[0])} free columns")
        return BLOCKED
    warp.go_on()
    warp.cta.shared.store(target[:1] & OFFSET_MASK, 4, np.array([[address]], np.uint32))
    return None


@_allocation("tcgen05.dealloc.cta_group::<g>.sync.aligned.b32", "u32 u32", kind=Kind.EFFECT)
def dealloc(warp: Warp, mask: Mask | None, address: Array, columns: Array) -> None:
    """Free TMEM columns."""
    warp.cta.tensor_memory.deallocate(int(address[0]), int(columns[0]))
    warp.cta.cluster.note_event()


@_allocation("tcgen05.relinquish_alloc_permit.cta_group::<g>.sync.aligned", kind=Kind.EFFECT)
def relinquish(warp: Warp, mask: Mask | None) -> None:
    """Promise that the CTA allocates no more."""
    warp.cta.tensor_memory.relinquish()


# 2. Registers to and from TMEM


def _address(address: Array) -> int:
    if not uniform(address):
        raise Trap("tcgen05.ld/st with an address that differs between lanes")
    return int(address[0])


_transfer = functools.partial(
    instruction,
    section="9.7.16.8.1 tcgen05.ld, 9.7.16.8.2 tcgen05.st",
    kind=Kind.EFFECT,
    converged=True,
)


def _declare_transfers(shape: str, count: int, registers: int) -> None:
    vector, form = f"(b32*{registers})", f"sync.aligned.{shape}.x{count}.b32"

    @_transfer(f"tcgen05.ld.{form}", f"{vector} = [b32]")
    def load(warp: Warp, mask: Mask | None, address: Array) -> Array:
        """Registers of the warp from its quarter of the TMEM lanes."""
        words = warp.cta.tensor_memory.load(shape, count, _address(address), warp=warp.rank)
        return words[0] if registers == 1 else words

    @_transfer(f"tcgen05.st.{form}", f"[b32] {vector}")
    def store(warp: Warp, mask: Mask | None, address: Array, values: tuple[Array, ...]) -> None:
        """Registers of the warp into its quarter of the TMEM lanes."""
        memory = warp.cta.tensor_memory
        memory.store(shape, count, _address(address), np.stack(values), warp=warp.rank)


def _declare_packed_transfers(count: int) -> None:
    """Registers that hold the low halves of two columns each."""
    vector = f"(b32*{count})"

    @_transfer(f"tcgen05.ld.sync.aligned.32x32b.x{count}.pack::16b.b32", f"{vector} = [b32]")
    def load(warp: Warp, mask: Mask | None, address: Array) -> Array:
        """The low halves of pairs of columns, the first of each pair in the low half."""
        memory = warp.cta.tensor_memory
        words = memory.load("32x32b", 2 * count, _address(address), warp=warp.rank)
        packed = (words[0::2] & _LOW_HALF) | words[1::2] << _SIXTEEN
        return packed[0] if count == 1 else packed

    @_transfer(f"tcgen05.st.sync.aligned.32x32b.x{count}.unpack::16b.b32", f"[b32] {vector}")
    def store(warp: Warp, mask: Mask | None, address: Array, values: tuple[Array, ...]) -> None:
        """Halves into columns of their own."""
        packed = np.stack(values)
        words = np.stack([packed & _LOW_HALF, packed >> _SIXTEEN], axis=1).reshape(2 * count, -1)
        memory = warp.cta.tensor_memory
        memory.store("32x32b", 2 * count, _address(address), words, warp=warp.rank)


for _power in range(7):
    _declare_packed_transfers(1 << _power)

for _shape, _per_repeat in (("32x32b", 1), ("16x64b", 1), ("16x128b", 2), ("16x256b", 4)):
    for _power in range(8):
        if _per_repeat << _power <= 128:
            _declare_transfers(_shape, 1 << _power, _per_repeat << _power)


@instruction(
    "tcgen05.wait::<w>.sync.aligned",
    w=("ld", "st"),
    section="9.7.16.8.5 tcgen05.wait",
    kind=Kind.EFFECT,
    converged=True,
)
def wait(warp: Warp, mask: Mask | None, *, w: str) -> None:
    """Wait for the warp's tcgen05.ld or .st: they complete at once here."""
    if warp.cta.cluster.observer is not None:
        warp.cta.cluster.observer.joined(f"tcgen05.{w}", None, False)


@instruction(
    "tcgen05.fence::<w>_thread_sync",
    w=("before", "after"),
    section="9.7.16.11 tcgen05.fence",
    kind=Kind.EFFECT,
)
def fence(warp: Warp, mask: Mask | None, *, w: str) -> None:
    """Orders tcgen05 operations against the other threads': they are in order here."""
    if warp.cta.cluster.observer is not None:
        warp.cta.cluster.observer.fenced(f"tcgen05.fence::{w}_thread_sync", mask)


# 3. MMA and commit


def pair(warp: Warp, group: int) -> list[Cta]:
    """The CTAs that an instruction of a CTA group concerns; Trap unless the even one issues it."""
    cta = warp.cta
    if group == 2 and cta.rank % 2:
        raise Trap(f"cta_group::2 issued by CTA rank {cta.rank}, which is odd")
    ctas = cta.cluster.ctas[cta.rank : cta.rank + group]
    if len(ctas) < group:
        raise Trap(f"cta_group::2 by CTA rank {cta.rank}, the last of its cluster")
    return ctas


def _mma(
    warp: Warp,
    mask: Mask | None,
    operands: tuple[Array, Array, Array, Array, Array],
    kind: tensor_core.Kind,
    *,
    group: int,
    weight_stationary: bool = False,
    a_in_tmem: bool = False,
) -> None:
    """Issue one MMA for each active lane. With cta_group::2 the even CTA issues for the pair."""
    cluster, ctas = warp.cta.cluster, pair(warp, group)
    for lane in warp.lanes(mask):
        d, a, b, idesc, enabled = (o[lane] for o in operands)
        operation = mma.Mma(
            group,
            weight_stationary,
            InstructionDescriptor.decode(int(idesc), kind),
            int(a) if a_in_tmem else SharedDescriptor.decode(int(a)),
            SharedDescriptor.decode(int(b)),
            int(d),
            bool(enabled),
        )

        def multiply(operation: mma.Mma = operation) -> None:
            memories = [mma.Cta(c.shared, c.tensor_memory) for c in ctas]
            mma.mma(operation, memories, cluster.launch.accumulate)

        shape = operation.instruction
        depth = tensor_core.K_BYTES * 8 // shape.a.storage_bits
        issue(warp, kind, 2 * shape.m * shape.n * depth, multiply)


def issue(warp: Warp, kind: str, flop: int, multiply: Callable[[], None]) -> None:
    """Count an MMA of so many operations, and give it to the tensor core."""
    cluster = warp.cta.cluster
    cluster.counts["mma"] += 1
    cluster.counts["mma_flop"] += flop
    if cluster.observer is not None:
        cluster.observer.multiplies(kind, flop)
    cluster.asynchronous.submit(engine(warp.cta), multiply, cluster.site(warp))


_USES = ("discard", "lastuse", "fill", "use")
COLLECTOR_A = ("", *(f".collector::a::{use}" for use in _USES))
_COLLECTOR_B = ("", *(f".collector::b{n}::{use}" for n in range(4) for use in _USES))
_multiplication = functools.partial(
    instruction, section="9.7.16.10.9 tcgen05.mma", kind=Kind.EFFECT
)


def _declare_mma(kind: tensor_core.Kind, group: int, lane_words: int, *, a_in_tmem: bool) -> None:
    """D = A B (+ D), B in shared memory and A there or in TMEM; collectors are hints on reuse."""

    def multiply(warp: Warp, mask: Mask | None, *operands: Any) -> None:
        """Multiply into TMEM."""
        d, a, b, idesc, *rest = operands
        if lane_words and any(word[warp.lanes(mask)].any() for word in rest[0]):
            raise Unsupported("tcgen05.mma with disabled output lanes")
        _mma(warp, mask, (d, a, b, idesc, rest[-1]), kind, group=group, a_in_tmem=a_in_tmem)

    words = f"(b32*{lane_words}) " if lane_words else ""
    _multiplication(
        f"tcgen05.mma.cta_group::{group}.kind::{kind}<c>",
        f"[b32] {'[b32]' if a_in_tmem else 'b64'} b64 b32 {words}pred",
        c=COLLECTOR_A,
    )(multiply)


def _declare_weight_stationary_mma(kind: tensor_core.Kind) -> None:
    """D = A B (+ D), where B stays in the collector."""

    def multiply(warp: Warp, mask: Mask | None, *operands: Array) -> None:
        """Multiply shared-memory operands into TMEM, weights stationary."""
        d, a, b, idesc, enabled = operands
        _mma(warp, mask, (d, a, b, idesc, enabled), kind, group=1, weight_stationary=True)

    _multiplication(
        f"tcgen05.mma.ws.cta_group::1.kind::{kind}<c>",
        "[b32] b64 b64 b32 pred",
        c=_COLLECTOR_B,
    )(multiply)


_KINDS: tuple[tensor_core.Kind, ...] = ("f16", "tf32", "f8f6f4", "i8")

for _kind in _KINDS:
    _declare_weight_stationary_mma(_kind)
    for _group in (1, 2):
        for _words in (0, 4 * _group):
            _declare_mma(_kind, _group, _words, a_in_tmem=False)
            _declare_mma(_kind, _group, _words, a_in_tmem=True)


_ARRIVE = "tcgen05.commit.cta_group::<g>.mbarrier::arrive::one<s>"
_commitment = functools.partial(
    instruction,
    g=_GROUPS,
    s=(".shared::cluster", ""),
    section="9.7.16.12 tcgen05.commit",
    kind=Kind.EFFECT,
)


@_commitment(f"{_ARRIVE}.b64", "[b32]")
def commit(warp: Warp, mask: Mask | None, barrier: Array) -> None:
    """One arrival when every earlier MMA of this CTA's tensor core is complete."""
    _commit(warp, mask, barrier, None)


@_commitment(f"{_ARRIVE}.multicast::cluster.b64", "[b32] b16")
def commit_multicast(warp: Warp, mask: Mask | None, barrier: Array, ctas: Array) -> None:
    """As ``commit``, at the same offset in each CTA of the mask."""
    _commit(warp, mask, barrier, ctas)


def _commit(warp: Warp, mask: Mask | None, barrier: Array, ctas: Array | None) -> None:
    cluster = warp.cta.cluster
    for lane in warp.lanes(mask):
        addresses = [int(barrier[lane])]
        if ctas is not None:
            offset = addresses[0] & OFFSET_MASK
            chosen = int(ctas[lane])
            ranks = (r for r in range(len(cluster.ctas)) if chosen >> r & 1)
            addresses = [r << RANK_SHIFT | offset for r in ranks]

        def arrive(addresses: list[int] = addresses) -> None:
            for address in addresses:
                cluster.mbarrier(address).arrive()

        cluster.asynchronous.submit(engine(warp.cta), arrive, cluster.site(warp))
