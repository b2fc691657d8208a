"""The fast executor: runs warps through native code, with the interpreter's results bit for bit.

Each instruction form of a program is one compiled function (``simulator.codegen``), and a native
loop runs a warp from record to record. What has no native form, and every error, is left to the
instruction table's own function, called by way of the interpreter. So this executor never decides
anything about PTX by itself, and an instruction that only the table knows works at once.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from simulator.codegen.image import Image, Layout, forms, lay_out
from simulator.codegen.library import Library, shared_library
from simulator.codegen.state import (
    AT_BRANCH,
    AT_EXIT,
    BLOCKED,
    DONE_TURN,
    FOR_BARRIER,
    FOR_MBARRIER,
    FOR_OTHER,
    NOT_WAITING,
    CtaState,
    RegionState,
    WarpState,
)
from simulator.interpreter import Interpreter
from simulator.isa.types import BITS, STORAGE
from simulator.machine.cluster import Cluster
from simulator.machine.memory_map import OFFSET_MASK
from simulator.machine.warp import LANES, Mask, Warp
from simulator.program import Branch, Program, Wait

_ALIGN: Final = 64


class NativeExecutor(Interpreter):
    """Runs warps of one program, as ``Interpreter`` does. ``library`` compiles and caches."""

    def __init__(self, program: Program, library: Library | None = None) -> None:
        super().__init__(program)
        library = shared_library() if library is None else library
        self._layout = lay_out(program)
        self._image = Image(program, self._layout, library.functions(forms(program)), library.python)
        self._run: Callable[[int], int] = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)(library.run)
        self._single: dict[tuple[int, int, bool], Callable[..., Any]] = {}
        self._clusters: weakref.WeakKeyDictionary[Cluster, _NativeCluster] = weakref.WeakKeyDictionary()

    def _turn(self, warp: Warp, budget: int) -> None:
        native = warp.registers
        if type(native) is not _NativeWarp:
            native = self._attach(warp)
        state = native.state
        state.budget, state.advanced = budget, 0
        run, address = self._run, native.address
        try:
            while True:
                code = run(address)
                if code == DONE_TURN or code == BLOCKED or not self._python(code, warp, native):
                    return
        finally:
            native.give_back(warp)

    # 1. What native code leaves to Python

    def _python(self, code: int, warp: Warp, native: _NativeWarp) -> bool:
        """Do the step that native code asks for; whether the turn goes on."""
        native.write_back(warp)
        block = self.program.blocks[warp.block] if warp.block < len(self.program.blocks) else None
        goes_on = True
        if code == AT_EXIT:
            warp.exit_lanes()
            goes_on = not warp.done
        elif code == AT_BRANCH:
            assert block is not None
            assert isinstance(block.terminator, Branch)
            self._branch(warp, block, block.terminator)
        elif block is not None and isinstance(block.terminator, Wait):
            mask = warp.mask
            goes_on = self._compiled(warp.block, mask is not None)(warp, native, mask)
            if goes_on:
                warp.instructions += 1
                warp.block = block.terminator.target
                warp.advanced = warp.advanced or not warp.polling
        else:
            place = self._image.places[native.state.resume]
            self._one(place.block, place.position, warp)
            native.state.resume = place.following
        native.read_from(warp)
        return goes_on

    def _one(self, block: int, position: int, warp: Warp) -> None:
        """Run one operation of a block through the table's function."""
        mask = warp.mask
        key = (block, position, mask is not None)
        run = self._single.get(key)
        if run is None:
            run = self._single[key] = self._writer.compile_one(block, position, mask is not None)
        run(warp, warp.registers, mask)

    # 2. State

    def _attach(self, warp: Warp) -> _NativeWarp:
        cluster = warp.cta.cluster
        native_cluster = self._clusters.get(cluster)
        if native_cluster is None:
            native_cluster = self._clusters[cluster] = _NativeCluster(cluster)
        native = _NativeWarp(warp, self._image, self.program.registers, native_cluster)
        warp.registers = native  # type: ignore[assignment]
        native.read_from(warp)
        return native


class _NativeWarp:
    """A warp's native state, and its registers as a sequence of arrays, for the table's functions."""

    def __init__(self, warp: Warp, image: Image, kinds: tuple[str, ...], cluster: _NativeCluster) -> None:
        layout: Layout = image.layout
        self._kinds = kinds
        self._words = layout.words
        self._memory = np.zeros(layout.size + _ALIGN, np.uint8)
        self._base = -(-self._memory.ctypes.data // _ALIGN) * _ALIGN
        self._views: dict[int, Any] = {}
        self.cluster = cluster
        self.state = WarpState()
        self.address = ctypes.addressof(self.state)
        state = self.state
        state.registers, state.blocks = self._base, image.blocks_address
        state.block_count, state.rank = len(image.blocks), warp.rank
        state.cta = cluster.address(warp.cta.rank)
        for (name, kind), offset in layout.specials.items():
            self._view(self._base + offset, BITS[kind])[...] = warp.special(name, kind).view(STORAGE[BITS[kind]])

    # Registers: reading gives a copy, because functions may keep what they are given

    def __getitem__(self, slot: int) -> Any:
        return self._register(slot).copy()

    def __setitem__(self, slot: int, value: Any) -> None:
        self._register(slot)[...] = value

    def _register(self, slot: int) -> Any:
        view = self._views.get(slot)
        if view is None:
            word = self._words[slot]
            place = word if word >= 1 << 32 else self._base + word
            view = self._views[slot] = self._view(place, BITS[self._kinds[slot]])
        return view

    @staticmethod
    def _view(address: int, bits: int) -> Any:
        dtype = STORAGE[bits]
        count = 2 * LANES if bits == 128 else LANES
        return np.frombuffer((ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address), dtype)

    # Native state to Python and back

    def give_back(self, warp: Warp) -> None:
        """After a run, tell Python what its scheduler looks at."""
        state = self.state
        warp.block = state.block
        warp.advanced = state.advanced != 0
        warp.instructions, warp.polls = state.instructions, state.polls
        if state.events:
            warp.cta.cluster.events += state.events
            state.events = 0
        waiting = state.waiting
        if waiting == NOT_WAITING:
            warp.waiting = None
        elif waiting == FOR_MBARRIER:
            address = state.waiting_for
            warp.waiting = (warp.cta.cluster.mbarrier(address), f"parity {state.parity}")
        elif waiting == FOR_BARRIER:
            warp.waiting = (warp.cta.named_barriers[state.waiting_for], "the opening")

    def write_back(self, warp: Warp) -> None:
        """Bring the whole of the Python warp up to date."""
        self.give_back(warp)
        state = self.state
        warp.reconverges = state.reconverges
        warp.mask = mask_array(state.mask)
        warp.polling, warp.attempted = state.polling != 0, state.attempted != 0
        warp.ticket = None if state.ticket < 0 else state.ticket
        warp.stack = [
            (entry.block, entry.reconverges, mask_array(entry.mask))
            for entry in state.stack[: state.depth]
        ]

    def read_from(self, warp: Warp) -> None:
        """Bring the native state up to date with what Python did."""
        state = self.state
        state.block, state.reconverges = warp.block, warp.reconverges
        state.mask, state.alive = mask_bits(warp.mask), mask_bits(warp.alive)
        state.advanced, state.polling, state.attempted = warp.advanced, warp.polling, warp.attempted
        state.instructions, state.polls = warp.instructions, warp.polls
        state.ticket = -1 if warp.ticket is None else warp.ticket
        state.waiting = NOT_WAITING if warp.waiting is None else FOR_OTHER
        state.depth = len(warp.stack)
        for entry, (block, reconverges, mask) in zip(state.stack, warp.stack, strict=False):
            entry.block, entry.reconverges, entry.mask = block, reconverges, mask_bits(mask)
        self.cluster.refresh()


class _NativeCluster:
    """What native code needs to know of a cluster: its CTAs, its parameters and global memory."""

    def __init__(self, cluster: Cluster) -> None:
        self._ctas = cluster.ctas
        self._states = (CtaState * len(cluster.ctas))()
        self._parameters = np.frombuffer(cluster.parameters, np.uint8)
        self._regions = _region_table(cluster.memory)
        for state, cta in zip(self._states, cluster.ctas, strict=True):
            state.rank, state.threads = cta.rank, cta.threads
            state.ctas, state.cta_count = ctypes.addressof(self._states), len(cluster.ctas)
            state.shared, state.shared_valid = cta.shared.bytes.ctypes.data, cta.shared.valid.ctypes.data
            state.shared_size = cta.shared.size
            state.check_shared = cluster.launch.checks.initialisation
            state.check_tensor = cluster.launch.checks.initialisation
            state.parameters = self._parameters.ctypes.data
            state.parameter_bytes = len(cluster.parameters)
            state.regions = ctypes.addressof(self._regions)
            state.region_count = len(cluster.memory.regions)
        self.refresh()

    def address(self, rank: int) -> int:
        """The address of a CTA's state."""
        return ctypes.addressof(self._states) + rank * ctypes.sizeof(CtaState)

    def refresh(self) -> None:
        """Tell native code of barriers and memories that have come into being."""
        for state, cta in zip(self._states, self._ctas, strict=True):
            table = cta.mbarriers.addresses
            if not state.mbarriers and table is not None:
                state.mbarriers = table.ctypes.data
            for number, barrier in cta.named_barriers.items():
                state.named[number] = ctypes.addressof(barrier)
            if not state.tensor:
                memory = cta.tensor_memory
                state.tensor, state.tensor_valid = memory.words.ctypes.data, memory.valid.ctypes.data
                state.tensor_owner = memory.owners.ctypes.data


def _region_table(memory: Any) -> Any:
    table = (RegionState * max(len(memory.regions), 1))()
    for state, region in zip(table, memory.regions, strict=False):
        state.start, state.end, state.base = region.start, region.end, region.base
        state.valid = 0 if region.valid is None else region.valid.ctypes.data
    return table


@functools.lru_cache(4096)
def mask_array(bits: int) -> Mask | None:
    """A 32-bit mask as the machine has it: None for all lanes, else booleans, not to be written."""
    if bits == 0xFFFFFFFF:
        return None
    lanes = (bits >> np.arange(LANES) & 1).astype(bool)
    lanes.setflags(write=False)
    return lanes


def mask_bits(mask: Mask | None) -> int:
    """The 32-bit mask of the machine's one."""
    if mask is None:
        return 0xFFFFFFFF
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")
