"""The fast executor: runs warps through native code, with the interpreter's results bit for bit.

Each instruction form of a program is one compiled function (``simulator.codegen``), and a native
loop runs warps from record to record. What has no native form, and every error, is left to the
instruction table's own function, called by way of the interpreter. So this executor never decides
anything about PTX by itself, and an instruction that only the table knows works at once.

Where an observer watches a cluster, all that it is told of is left to the table's functions too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

from simulator.codegen.image import Image, forms, lay_out
from simulator.codegen.library import Library, shared_library
from simulator.codegen.native_state import NativeCluster, NativeWarp
from simulator.codegen.state import (
    AT_BRANCH,
    AT_EXIT,
    BEGIN_TURN,
    BLOCKED,
    CONTINUE_TURN,
    DONE_ROUND,
    DONE_TURN,
    END_TURN,
    EXITED,
)
from simulator.coverage import Counters
from simulator.interpreter import Interpreter, Round
from simulator.machine.cluster import Cluster
from simulator.machine.warp import Warp
from simulator.program import Branch, Program, Wait

_ROUNDS: Final = 256
"""Rounds that may pass before the scheduler looks at its limit of instructions."""

_FINISHED: Final = (DONE_TURN, BLOCKED, EXITED)
_PROTOTYPE: Final = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)


class NativeExecutor(Interpreter):
    """Runs warps of one program, as ``Interpreter`` does. ``library`` compiles and caches.

    The registers of a warp that has exited may be used again by a warp of the next cluster.
    """

    def __init__(self, program: Program, library: Library | None = None) -> None:
        super().__init__(program)
        library = shared_library() if library is None else library
        functions = library.functions(forms(program))
        self._layout, self._functions, self._asks = lay_out(program), functions, library.python
        self._images: dict[bool, Image] = {}
        self._run_warp: Callable[[int], int] = _PROTOTYPE(library.run_warp)
        self._run_rounds: Callable[[int], int] = _PROTOTYPE(library.run_rounds)
        self._single: dict[tuple[int, int, bool], Callable[..., Any]] = {}
        self._cluster: NativeCluster | None = None

    def start_counting(self) -> None:
        """Count from zero; native code always counts, in its blocks."""
        super().start_counting()
        for image in self._images.values():
            for block in image.blocks:
                block.executed = block.taken = block.passed = 0

    def stop_counting(self) -> Counters | None:
        """What native code and Python have counted together."""
        counters = super().stop_counting()
        if counters is None:
            return None
        for image in self._images.values():
            for number in range(len(self.program.blocks)):
                block = image.blocks[number]
                counters.executed[number] += block.executed
                counters.taken[number] += block.taken
                counters.passed[number] += block.passed
        return counters

    def begin(self, cluster: Cluster) -> None:
        """Nothing to do: registers are native."""

    def rounds(self, live: list[Warp], *, idle: bool, budget: int, sleep: int) -> Round | None:
        """Rounds of a cluster's warps; see ``Interpreter.rounds``."""
        cluster = live[0].cta.cluster
        native = self._attached(cluster)
        native.state.sleep = sleep
        native.begin_rounds(live, idle=idle, turn_blocks=budget, rounds=_ROUNDS)
        state = native.state
        while True:
            code = self._run_rounds(native.address)
            if code == DONE_ROUND:
                return native.end_rounds()
            warp = native.acting()
            if cluster.observer is not None:
                cluster.observer.turn(warp)
            try:
                goes_on = self._python(code, warp, native.warps[warp])
            except Exception as error:
                self._fail(error, warp)
            state.step = CONTINUE_TURN if goes_on else END_TURN

    def bring_back(self, live: list[Warp]) -> None:
        """Bring what native code holds of the warps' state back into ``live``."""
        native = self._attached(live[0].cta.cluster)
        for warp in live:
            native.warps[warp].write_back(warp)

    def _turn(self, warp: Warp, budget: int) -> None:
        native = self._attached(warp.cta.cluster)
        mine = native.warps[warp]
        mine.state.budget, mine.state.advanced, mine.state.blocked = budget, 0, 0
        native.refresh()
        native.state.step = BEGIN_TURN
        while True:
            code = self._run_warp(mine.address)
            native.tell_python()
            if code in _FINISHED or not self._python(code, warp, mine):
                break
        mine.write_back(warp)

    def _attached(self, cluster: Cluster) -> NativeCluster:
        """The native side of a cluster; that of a finished one is used again."""
        native = self._cluster
        if native is None or not native.holds(cluster):
            image = self._image(watched=cluster.observer is not None)
            if native is None or native.image is not image or not native.take(cluster):
                native = NativeCluster(cluster, image, self.program.registers)
            self._cluster = native
        return native

    def _image(self, *, watched: bool) -> Image:
        """The program's records, for clusters that are observed or for others."""
        image = self._images.get(watched)
        if image is None:
            image = self._images[watched] = Image(
                self.program, self._layout, self._functions, self._asks, watched=watched
            )
        return image

    # What native code leaves to Python

    def _python(self, code: int, warp: Warp, mine: NativeWarp) -> bool:
        """Do the step that native code asks for; whether the turn goes on.

        Python's side of the cluster is up to date.
        """
        cluster = self._attached(warp.cta.cluster)
        mine.write_back(warp)
        if code == AT_EXIT:
            warp.exit_lanes()
            goes_on = not warp.done
        else:
            goes_on = self._step(code, warp, mine)
        mine.read_from(warp)
        mine.state.done = warp.done
        cluster.refresh()
        return goes_on

    def _step(self, code: int, warp: Warp, mine: NativeWarp) -> bool:
        block = self.program.blocks[warp.block]
        goes_on = True
        if code == AT_BRANCH:
            assert isinstance(block.terminator, Branch)
            self._branch(warp, block, block.terminator)
        elif isinstance(block.terminator, Wait):
            mask = warp.mask
            goes_on = self._compiled(warp.block, mask is not None)(warp, mine, mask)
            warp.blocked = not goes_on
            if goes_on:
                if self._counters is not None:
                    self._counters.executed[warp.block] += 1
                warp.instructions += 1
                warp.block = block.terminator.target
                warp.advanced = warp.advanced or not warp.polling
        else:
            place = self._attached(warp.cta.cluster).image.places[mine.state.resume]
            self._one(place.block, place.position, warp)
            mine.state.resume = place.following
        return goes_on

    def _one(self, block: int, position: int, warp: Warp) -> None:
        """Run one operation of a block through the table's function."""
        mask = warp.mask
        key = (block, position, mask is not None)
        run = self._single.get(key)
        if run is None:
            run = self._single[key] = self._writer.compile_one(block, position, mask is not None)
        run(warp, warp.registers, mask)
