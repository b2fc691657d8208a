"""The native side of a cluster and of its warps, kept in step with the Python side."""

from __future__ import annotations

import ctypes
import functools
import itertools
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.codegen.accumulate import Fused, engines
from simulator.codegen.bulk_copy import TMA_LOAD
from simulator.codegen.emit import ADDRESS_LIMIT
from simulator.codegen.image import Image, register_bytes
from simulator.codegen.library import shared_library
from simulator.codegen.state import (
    BEGIN_TURN,
    COUNTS,
    FOR_BARRIER,
    FOR_CLUSTER,
    FOR_MBARRIER,
    FOR_OTHER,
    MBARRIER_POOL,
    NOT_WAITING,
    ClusterState,
    CtaState,
    RegionState,
    WarpState,
)
from simulator.codegen.tensor_core import MMA, Scratch
from simulator.interpreter import Round
from simulator.isa.values import BITS, STORAGE
from simulator.machine.barriers import Mbarrier
from simulator.machine.cluster import Cluster, Cta
from simulator.machine.global_memory import GlobalMemory
from simulator.machine.warp import LANES, Mask, Warp

_ALIGN: Final = 64
_SUCCESSORS: Final = 256
"""Clusters that native code is told of at once."""


class NativeWarp:
    """A warp's native state, and its registers as arrays for the table's functions."""

    def __init__(self, cluster: NativeCluster, image: Image, kinds: tuple[str, ...]) -> None:
        self._image = image
        self._kinds = kinds
        memory = np.zeros(image.layout.size + _ALIGN, np.uint8)
        self._base = -(-address_of(memory) // _ALIGN) * _ALIGN
        start = self._base - address_of(memory)
        self._memory = memory[start : start + image.layout.size]
        self._views: dict[int, Any] = {}
        self._fresh = True
        self._block = (0, 0, 0)
        self._initial = WarpState()
        self._told: tuple[object, ...] = (self, self)
        """The masks that Python was given last: what it leaves alone need not be read again."""
        self.state = WarpState()
        self.address = ctypes.addressof(self.state)
        self.state.registers, self.state.blocks = self._base, image.blocks_address
        self.state.block_count = len(image.blocks)
        self.state.cluster = ctypes.addressof(cluster.state)

    def take(self, warp: Warp, cta: int, specials: npt.NDArray[np.uint8]) -> None:
        """Become the state of a warp that has not run, in the CTA whose state is at ``cta``.

        ``specials`` are the special registers that its CTA shares.
        """
        layout = self._image.layout
        if not self._fresh:
            self._memory[: layout.register_bytes] = 0
        self._memory[layout.register_bytes : layout.register_bytes + len(specials)] = specials
        if self._fresh or self.state.rank != warp.rank or self._block != warp.cta.block:
            self._begin(warp)
        self._initial.cta = cta
        ctypes.memmove(self.address, ctypes.addressof(self._initial), WarpState.nothing.offset)
        warp.registers = self  # type: ignore[assignment]

    def _begin(self, warp: Warp) -> None:
        """Note what all warps of this rank begin with."""
        self._fresh, self._block = False, warp.cta.block
        for (name, kind), offset in self._image.layout.lane_specials.items():
            place = self._base + offset
            _view(place, BITS[kind])[...] = warp.special(name, kind).view(STORAGE[BITS[kind]])
        state = self.state
        state.rank, state.resume, state.done, state.asleep_since = warp.rank, 0, 0, -1
        state.initial = ctypes.addressof(self._initial)
        self._told = (self, self)
        self.read_from(warp)
        ctypes.memmove(state.initial, self.address, ctypes.sizeof(WarpState))

    # 1. Registers: reading gives a copy, because functions may keep what they are given

    def __getitem__(self, slot: int) -> Any:
        return self._register(slot).copy()

    def __setitem__(self, slot: int, value: Any) -> None:
        self._register(slot)[...] = value

    def _register(self, slot: int) -> Any:
        view = self._views.get(slot)
        if view is None:
            word = self._image.layout.words[slot]
            place = word if word >= ADDRESS_LIMIT else self._base + word
            view = self._views[slot] = _view(place, BITS[self._kinds[slot]])
        return view

    # 2. Native state to Python and back

    def write_back(self, warp: Warp) -> None:
        """Bring the Python warp up to date."""
        state = self.state
        warp.block, warp.reconverges = state.block, state.reconverges
        warp.mask = mask_array(state.mask)
        warp.advanced, warp.done = state.advanced != 0, state.done != 0
        warp.polling, warp.attempted = state.polling, state.attempted != 0
        warp.blocked = state.blocked != 0
        warp.instructions, warp.polls = state.instructions, state.polls
        warp.ticket = None if state.ticket < 0 else state.ticket
        warp.cluster_ticket = None if state.cluster_ticket < 0 else state.cluster_ticket
        if state.depth or warp.stack:
            warp.stack = [
                (entry.block, entry.reconverges, mask_array(entry.mask))
                for entry in state.stack[: state.depth]
            ]
        alive = mask_array(state.alive)
        warp.alive = _ALL if alive is None else alive
        self._told = (warp.mask, warp.alive)
        self.tell_waiting(warp)

    def tell_waiting(self, warp: Warp) -> None:
        """Tell the Python warp what it waits for."""
        state = self.state
        if state.waiting == NOT_WAITING:
            warp.waiting = None
        elif state.waiting == FOR_MBARRIER:
            barrier = warp.cta.cluster.mbarrier(state.waiting_for)
            warp.waiting = (barrier, f"the end of the phase of parity {state.parity & 1}")
        elif state.waiting == FOR_BARRIER:
            warp.waiting = (warp.cta.named_barriers[state.waiting_for], "the opening")
        elif state.waiting == FOR_CLUSTER:
            warp.waiting = (warp.cta.cluster.barrier, "the opening")

    def read_from(self, warp: Warp) -> None:
        """Bring the native state up to date with what Python did."""
        state = self.state
        state.block, state.reconverges = warp.block, warp.reconverges
        if warp.mask is not self._told[0]:
            state.mask = mask_bits(warp.mask)
        if warp.alive is not self._told[1]:
            state.alive = mask_bits(warp.alive)
        state.advanced, state.polling, state.attempted = warp.advanced, warp.polling, warp.attempted
        state.blocked = warp.blocked
        state.instructions, state.polls = warp.instructions, warp.polls
        state.ticket = -1 if warp.ticket is None else warp.ticket
        state.cluster_ticket = -1 if warp.cluster_ticket is None else warp.cluster_ticket
        state.waiting = NOT_WAITING if warp.waiting is None else FOR_OTHER
        state.depth = len(warp.stack)
        for entry, (block, reconverges, mask) in zip(state.stack, warp.stack, strict=False):
            entry.block, entry.reconverges, entry.mask = block, reconverges, mask_bits(mask)


class NativeCluster:
    """What native code knows of a cluster: its CTAs and warps, parameters, global memory."""

    def __init__(self, cluster: Cluster, image: Image, kinds: tuple[str, ...]) -> None:
        self.state = ClusterState()
        self.address = ctypes.addressof(self.state)
        self.image = self._image = image
        self.state.watched = image.watched
        self._ctas = (CtaState * len(cluster.ctas))()
        self._order = (ctypes.c_int64 * len(cluster.warps))()
        self._all = (ctypes.c_int64 * len(cluster.warps))()
        self._native = [NativeWarp(self, image, kinds) for _ in cluster.warps]
        self._scratch = Scratch()
        self._adopted = [0] * len(cluster.ctas)
        self._pools: list[Any] = []
        self._tables: list[npt.NDArray[np.int64]] = []
        self.live: list[Warp] = []
        self._rows = np.zeros((0, 0, 0), np.uint8)
        self._memory: GlobalMemory | None = None
        self._specials = np.zeros(image.layout.cta_special_bytes, np.uint8)
        start = address_of(self._specials) - image.layout.register_bytes
        self._special_views = [
            (name, _view(start + offset, BITS[kind]))
            for (name, kind), offset in image.layout.cta_specials.items()
        ]
        self._bind(cluster)

    def holds(self, cluster: Cluster) -> bool:
        """Whether this is the native side of ``cluster``, as that is now."""
        return self.cluster is cluster and self._number == cluster.number

    def take(self, cluster: Cluster) -> bool:
        """Become the native side of another cluster of the launch, if the present one has ended."""
        same = len(cluster.ctas) == len(self._ctas) and len(cluster.warps) == len(self._native)
        if not same or not all(native.state.done for native in self._native):
            return False
        if cluster is self.cluster:
            self._begin()
        else:
            self._bind(cluster)
        return True

    def _bind(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._parameters = np.frombuffer(cluster.parameters, np.uint8)
        if cluster.memory is not self._memory:
            self._memory = cluster.memory
            self._regions = _region_table(cluster.memory)
        self.state.warps = ctypes.addressof(self._order)
        self._bind_tensor_core(cluster)
        for state, cta in zip(self._ctas, cluster.ctas, strict=True):
            self._bind_cta(state, cta)
        if self._image.has_mbarriers:
            sizes = [-(-cta.shared.size // 8) for cta in cluster.ctas]
            if [len(table) for table in self._tables] != sizes:
                self._tables = [np.zeros(size, np.int64) for size in sizes]
            self._pools = [(Mbarrier * MBARRIER_POOL)() for _ in sizes]
        self.warps = dict(zip(cluster.warps, self._native, strict=True))
        self._all[:] = [native.address for native in self._native]
        state, layout = self.state, self._image.layout
        state.all_warps, state.warp_total = ctypes.addressof(self._all), len(self._native)
        state.cta_list, state.cta_total = ctypes.addressof(self._ctas), len(self._ctas)
        state.special_bytes, state.register_bytes = layout.cta_special_bytes, layout.register_bytes
        self._begin()

    def _begin(self) -> None:
        """Nothing of the cluster has run."""
        cluster, self._known = self.cluster, 0
        self._adopted = [0] * len(cluster.ctas)
        self._number, self._barrier = cluster.number, cluster.barrier
        self.state.number, self.state.barrier = 0, ctypes.addressof(cluster.barrier)
        self.state.successors = self.state.begun = 0
        self.state.past_instructions = self.state.past_polls = 0
        for state, cta in zip(self._ctas, cluster.ctas, strict=True):
            state.mbarriers = state.tensor = state.pooled = 0
            state.thread_total = cta.threads
            if self._image.has_mbarriers:
                state.pool = ctypes.addressof(self._pools[cta.rank])
                cta.mbarriers.addresses = self._tables[cta.rank]
                cta.mbarriers.addresses[:] = 0
            self._special_registers(cta)
            for warp in cta.warps:
                self.warps[warp].take(warp, ctypes.addressof(state), self._specials)
        self.refresh()

    def _bind_cta(self, state: CtaState, cta: Cta) -> None:
        cluster, checks = self.cluster, self.cluster.launch.checks
        state.rank, state.warp_count = cta.rank, len(cta.warps)
        state.ctas, state.cta_count = ctypes.addressof(self._ctas), len(self._ctas)
        state.shared, state.shared_valid = (
            address_of(cta.shared.bytes),
            address_of(cta.shared.valid),
        )
        state.shared_size = cta.shared.size
        state.check_shared = state.check_tensor = checks.initialisation
        state.parameters, state.parameter_bytes = (
            address_of(self._parameters),
            len(cluster.parameters),
        )
        state.regions, state.region_count = (
            ctypes.addressof(self._regions),
            len(cluster.memory.regions),
        )
        state.named_count = 0
        ctypes.memset(
            ctypes.addressof(state) + CtaState.named.offset, 0, ctypes.sizeof(state.named)
        )
        for number in self._image.named_barriers:
            cta.named_barrier(number)

    def _bind_tensor_core(self, cluster: Cluster) -> None:
        state, accumulate = self.state, cluster.launch.accumulate
        state.eager = cluster.asynchronous.is_eager
        model = accumulate.model if isinstance(accumulate, Fused) else None
        state.fraction_f16 = -1 if model is None else model.wide
        state.fraction_f8f6f4 = -1 if model is None else model.narrow
        state.scratch = ctypes.addressof(self._scratch)
        functions = engines(shared_library())
        state.tma_load = functions[TMA_LOAD]
        state.mma_f16, state.mma_f8f6f4 = (functions[MMA[kind]] for kind in ("f16", "f8f6f4"))

    def _special_registers(self, cta: Cta) -> None:
        """The special registers that the warps of a CTA share."""
        for name, view in self._special_views:
            view[...] = cta.special_value(name)

    def tell_python(self) -> None:
        """Bring Python's side of the cluster up to date: events, work done, threads left."""
        state, asynchronous = self.state, self.cluster.asynchronous
        if state.begun:
            self._follow()
        self.cluster.events = state.events
        done = state.completed - asynchronous.completed
        if done:
            asynchronous.submitted += done
            asynchronous.completed += done
            for name in COUNTS:
                if number := getattr(state, name):
                    self.cluster.counts[name] += number
                    setattr(state, name, 0)
        for cta_state, cta in zip(self._ctas, self.cluster.ctas, strict=True):
            cta.threads = cta_state.threads
            if cta_state.pooled > self._adopted[cta.rank]:
                self._adopt(cta_state, cta)

    def _adopt(self, state: CtaState, cta: Cta) -> None:
        """Give Python the mbarrier objects that native code has made."""
        room = self._pools[cta.rank]
        for index in range(self._adopted[cta.rank], state.pooled):
            address = state.pool + index * ctypes.sizeof(Mbarrier)
            offset = room[index].offset
            name = self.cluster.shared_name(cta.shared_address(offset))
            cta.mbarriers.adopt(Mbarrier.at(address, name, self.cluster.note_event, room))
        self._adopted[cta.rank] = state.pooled

    def refresh(self) -> None:
        """Bring native code up to date, also with what barriers and memories there are now."""
        self.state.events = self.cluster.events
        self.state.completed = self.cluster.asynchronous.completed
        for state, cta in zip(self._ctas, self.cluster.ctas, strict=True):
            state.threads = cta.threads
            if not state.mbarriers and cta.mbarriers.addresses is not None:
                state.mbarriers = address_of(cta.mbarriers.addresses)
            if state.named_count != len(cta.named_barriers):
                state.named_count = len(cta.named_barriers)
                for number, barrier in cta.named_barriers.items():
                    state.named[number] = ctypes.addressof(barrier)
            memory = cta.tensor_memory
            if not state.tensor and memory.allocations:
                state.tensor, state.tensor_valid = (
                    address_of(memory.words),
                    address_of(memory.valid),
                )
                state.tensor_owner = address_of(memory.owners)

    # Rounds

    def begin_rounds(self, live: list[Warp], *, idle: bool, turn_blocks: int, rounds: int) -> None:
        """Prepare for rounds of the warps in ``live``."""
        state, self.live = self.state, live
        if not state.successors:
            self._prepare_successors()
        state.warps = ctypes.addressof(self._order)
        if len(live) != self._known:
            self._known = len(live)
            for index, warp in enumerate(live):
                self._order[index] = self.warps[warp].address
        state.count, state.cursor, state.step = len(live), 0, BEGIN_TURN
        state.idle, state.turn_blocks, state.rounds = idle, turn_blocks, rounds
        state.events = self.cluster.events
        state.completed = self.cluster.asynchronous.completed

    def acting(self) -> Warp:
        """The warp whose turn it is, of the cluster that runs now."""
        self.tell_python()
        warp: Warp = self.live[self.state.cursor]
        return warp

    def _prepare_successors(self) -> None:
        """Let native code begin clusters of the grid by itself, if it can know which they are."""
        cluster, image = self.cluster, self._image
        knows = cluster.asynchronous.is_eager and image.grid_is_fixed and not image.watched
        if not (cluster.waiting and knows):
            return
        indices = np.array(list(itertools.islice(cluster.waiting, _SUCCESSORS)))
        self._rows = np.empty((*indices.shape[:2], image.layout.cta_special_bytes), np.uint8)
        for cta in cluster.ctas:
            self._special_registers(cta)
            self._rows[:, cta.rank] = self._specials
        image.layout.move_specials(self._rows, indices, cluster.launch.cluster)
        self.state.successors, self.state.special_rows = len(indices), address_of(self._rows)

    def _follow(self) -> None:
        """Let Python's cluster become the one that native code has begun."""
        state, cluster = self.state, self.cluster
        cluster.follow(state.begun)
        cluster.past_instructions, cluster.past_polls = state.past_instructions, state.past_polls
        state.begun, self.live, self._known = 0, cluster.warps, 0

    def end_rounds(self) -> Round:
        """Tell Python what its scheduler looks at."""
        self.tell_python()
        for warp in self.live:
            state = self.warps[warp].state
            warp.done, warp.instructions, warp.polls = (
                state.done != 0,
                state.instructions,
                state.polls,
            )
        before = (self.state.before_events, self.state.before_completed)
        return Round(bool(self.state.advanced), before)


def _region_table(memory: GlobalMemory) -> Any:
    table = (RegionState * max(len(memory.regions), 1))()
    for state, region in zip(table, memory.regions, strict=False):
        state.start, state.end, state.base = region.start, region.end, region.base
        state.valid = 0 if region.valid is None else address_of(region.valid)
    return table


def address_of(array: npt.NDArray[Any]) -> int:
    """Where an array's data lie."""
    address: int = array.__array_interface__["data"][0]
    return address


def _view(address: int, bits: int) -> npt.NDArray[Any]:
    """The register of ``bits`` bits at an address."""
    buffer: Any = (ctypes.c_uint8 * register_bytes(bits)).from_address(address)
    return np.frombuffer(buffer, STORAGE[bits])


_ALL: Final = np.ones(LANES, bool)
_ALL.setflags(write=False)


@functools.lru_cache(4096)
def mask_array(bits: int) -> Mask | None:
    """A 32-bit mask as the machine has it: None for all lanes, else booleans, not to be written."""
    if bits == 0xFFFFFFFF:
        return None
    lanes: Mask = (bits >> np.arange(LANES) & 1).astype(bool)
    lanes.setflags(write=False)
    return lanes


def mask_bits(mask: Mask | None) -> int:
    """The 32-bit mask of the machine's one."""
    if mask is None or mask is _ALL:
        return 0xFFFFFFFF
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")
