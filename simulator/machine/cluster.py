"""A thread-block cluster and its CTAs: memories, barriers and warps."""

from __future__ import annotations

import functools
import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulator.checks import Checks
from simulator.errors import Location, Trap, Unsupported
from simulator.events import Observer
from simulator.isa.values import BITS, DTYPES
from simulator.machine.asynchronous import Asynchronous
from simulator.machine.barriers import ClusterBarrier, Mbarrier, MbarrierTable, NamedBarrier
from simulator.machine.global_memory import GlobalMemory
from simulator.machine.memory_map import OFFSET_MASK, RANK_SHIFT
from simulator.machine.shared_memory import SharedMemory
from simulator.machine.tensor_memory import TensorMemory
from simulator.machine.warp import LANES, ZEROS, Warp, is_of_warp
from simulator.numerics.accumulate import Accumulate, b200
from simulator.policy import Policy
from simulator.program import Program

Dim3 = tuple[int, int, int]
MAX_SHARED_BYTES = 232448
"""Shared memory that one CTA may use on sm_90 and sm_100: 227 KiB."""
MAX_THREADS = 1024
_VECTORS = (
    "%ctaid", "%nctaid", "%ntid", "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid",
)  # fmt: skip
_SCALARS = (
    "%nwarpid", "%cluster_ctarank", "%cluster_nctarank", "%is_explicit_cluster",
    "%dynamic_smem_size",
)  # fmt: skip
MAX_CLUSTER = 16


@dataclass(frozen=True)
class Launch:
    """One kernel launch on the machine. ``parameters`` are the bytes of the parameter space.

    ``accumulate`` is how the tensor core adds; ``may_start_early`` says that the launch asks for
    programmatic stream serialisation, for the check that needs to know.

    Dimensions are (x, y, z): ``grid`` and ``cluster`` in CTAs, ``block`` in threads.
    """

    program: Program
    grid: Dim3
    block: Dim3
    cluster: Dim3
    dynamic_shared_bytes: int
    parameters: bytes
    memory: GlobalMemory
    policy: Policy = field(default_factory=Policy)
    checks: Checks = field(default_factory=Checks)
    accumulate: Accumulate = b200
    may_start_early: bool = False

    @functools.cached_property
    def initial_registers(self) -> list[Any]:
        """What the registers of a warp hold at first."""
        return [ZEROS[kind] for kind in self.program.registers]


class Cta:
    """A thread block: shared memory, TMEM, barriers, warps.

    ``rank`` is that in the cluster; ``threads`` counts those that have not exited.
    """

    def __init__(self, cluster: Cluster, rank: int, index: Dim3) -> None:
        launch = cluster.launch
        self.cluster = cluster
        self.program = launch.program
        self.rank = rank
        self.block = launch.block
        self.dynamic_shared_bytes = launch.dynamic_shared_bytes
        self.shared = SharedMemory(
            launch.program.dynamic_shared_offset + launch.dynamic_shared_bytes,
            check_initialised=launch.checks.initialisation,
            dynamic_offset=launch.program.dynamic_shared_offset,
        )
        self.named_barriers: dict[int, NamedBarrier] = {}
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        self.warps = [
            Warp(self, rank, threads - LANES * rank, launch.initial_registers.copy())
            for rank in range(-(-threads // LANES))
        ]
        self._begin(index)

    def start(self, index: Dim3) -> None:
        """Become the CTA at ``index``, in which nothing has run."""
        self.shared.forget()
        for barrier in self.named_barriers.values():
            barrier.start()
        for warp in self.warps:
            warp.start()
        self._begin(index)

    def move(self, index: Dim3) -> None:
        """Become the CTA at ``index``, whose memories and barriers are like new."""
        self.index = index
        self.special.clear()
        self.__dict__.pop("_vectors", None)
        for warp in self.warps:
            warp.start()

    def _begin(self, index: Dim3) -> None:
        launch = self.cluster.launch
        self.index = index
        self.threads = launch.block[0] * launch.block[1] * launch.block[2]
        self.tensor_memory = TensorMemory(checked=launch.checks.initialisation)
        self.special: dict[tuple[str, str], Any] = {}
        self.mbarriers = MbarrierTable(self.shared.size)
        self.__dict__.pop("_vectors", None)

    def shared_address(self, offset: int) -> int:
        """The shared address of an offset in this CTA."""
        return self.rank << RANK_SHIFT | offset

    def special_value(self, name: str) -> int:
        """A special register that all threads of the CTA share, or a shared variable's address."""
        if name in self.program.shared_offsets:
            return self.shared_address(self.program.shared_offsets[name])
        base, _, axis = name.partition(".")
        vectors = self._vectors
        if base in vectors and axis in ("x", "y", "z"):
            return vectors[base]["xyz".index(axis)]
        scalars = {
            "%nwarpid": len(self.warps),
            "%cluster_ctarank": self.rank,
            "%cluster_nctarank": len(self.cluster.ctas),
            "%is_explicit_cluster": int(len(self.cluster.ctas) > 1),
            "%dynamic_smem_size": self.dynamic_shared_bytes,
        }
        return scalars[name]

    @functools.cached_property
    def _vectors(self) -> dict[str, Sequence[int]]:
        """The special registers that have three components, apart from ``%tid``."""
        launch = self.cluster.launch
        pairs = list(zip(self.index, launch.cluster, strict=True))
        return {
            "%ctaid": self.index, "%nctaid": launch.grid, "%ntid": launch.block,
            "%clusterid": [i // c for i, c in pairs],
            "%nclusterid": [g // c for g, c in zip(launch.grid, launch.cluster, strict=True)],
            "%cluster_ctaid": [i % c for i, c in pairs], "%cluster_nctaid": launch.cluster,
        }  # fmt: skip

    def named_barrier(self, number: int) -> NamedBarrier:
        """The CTA's barrier of this number, 0 to 15."""
        if not 0 <= number < 16:
            raise Trap(f"barrier {number} is not in 0..15")
        if number not in self.named_barriers:
            self.named_barriers[number] = NamedBarrier(
                str(number), self.cluster.note_event, self.cluster.observer
            )
        return self.named_barriers[number]


class Cluster:
    """The CTAs that run together. ``events`` counts what may let a waiting warp go on.

    ``number`` counts how often the object has become another cluster of its launch.
    ``waiting`` holds the CTA indices of the clusters of the grid that have not begun.
    """

    def __init__(
        self,
        launch: Launch,
        indices: list[Dim3],
        rng: random.Random,
        observer: Observer | None = None,
        waiting: deque[list[Dim3]] | None = None,
    ) -> None:
        self.observer = observer
        self.waiting = deque() if waiting is None else waiting
        self.launch = launch
        self.memory = launch.memory
        self.parameters = launch.parameters
        self.number = 0
        self._parameter_values: dict[tuple[int, str, int], Any] = {}
        self._rng = rng
        self.ctas = [Cta(self, rank, index) for rank, index in enumerate(indices)]
        self._begin()
        self._observe(observer)

    def start(self, indices: list[Dim3]) -> None:
        """Become the cluster of the CTAs ``indices``, in which nothing has run, without observer.

        Making all these objects takes longer than running a short kernel.
        """
        self.number += 1
        for cta, index in zip(self.ctas, indices, strict=True):
            cta.start(index)
        self._begin()

    def dismiss(self) -> None:
        """Let go of CTAs and warps: their memory is freed now, not when cycles are collected."""
        for cta in self.ctas:
            cta.warps.clear()
        self.ctas.clear()

    def follow(self, begun: int) -> None:
        """Become the last of the ``begun`` clusters that native code began after this one ended.

        Native code has made memories and barriers like new; ``past_instructions`` and
        ``past_polls`` count what the warps of the clusters before did.
        """
        for _ in range(begun):
            indices = self.waiting.popleft()
        for cta, index in zip(self.ctas, indices, strict=True):
            cta.move(index)

    def _begin(self) -> None:
        self.events = 0
        self.past_instructions = self.past_polls = 0
        self.counts: Counter[str] = Counter()
        self.asynchronous = Asynchronous(self.launch.policy.completion, self._rng)
        threads = sum(c.threads for c in self.ctas)
        self.barrier = ClusterBarrier(threads, self.note_event, self.observer)

    @property
    def warps(self) -> list[Warp]:
        """The warps of all CTAs, in order."""
        return [w for c in self.ctas for w in c.warps]

    @property
    def instructions(self) -> int:
        """Warp-instructions so far, with those of clusters that this one followed."""
        return self.past_instructions + sum(w.instructions for w in self.warps)

    @property
    def polls(self) -> int:
        """Failed polls so far, with those of clusters that this one followed."""
        return self.past_polls + sum(w.polls for w in self.warps)

    def parameter(self, start: int, kind: str, count: int) -> Any:
        """``count`` consecutive parameters of a type over 32 lanes; one array if it is one."""
        key = (start, kind, count)
        if key not in self._parameter_values:
            if not 0 <= start <= len(self.parameters) - count * BITS[kind] // 8:
                raise Trap(f"ld.param at byte {start} of {len(self.parameters)}")
            values = np.frombuffer(self.parameters, DTYPES[kind], count, start)
            rows = np.repeat(values, LANES).reshape(count, LANES)
            self._parameter_values[key] = rows[0] if count == 1 else rows
        return self._parameter_values[key]

    def _observe(self, observer: Observer | None) -> None:
        """From now on the observer is told of everything."""
        self.asynchronous.observer = observer
        self.launch.memory.observer = observer
        for cta in self.ctas:
            cta.shared.observer = observer
            cta.tensor_memory.observer = observer

    def note_event(self) -> None:
        """Something happened that a warp may be waiting for."""
        self.events += 1

    def on_exit(self, warp: Warp) -> None:
        """The active lanes of ``warp`` leave the kernel; ``warp.alive`` no longer has them."""
        lanes = LANES if warp.mask is None else int(warp.mask.sum())
        self.barrier.exit(lanes, warp.cluster_ticket)
        warp.cta.threads -= lanes
        for barrier in warp.cta.named_barriers.values():
            barrier.excuse(lanes)
        if warp.cta.threads == 0 and self.observer is not None:
            self.observer.exited(warp.cta)
        self.note_event()

    def cta(self, address: int) -> Cta:
        """The CTA that a shared address belongs to."""
        rank = address >> RANK_SHIFT
        if rank >= len(self.ctas):
            raise Trap(f"shared address {address:#x} names CTA rank {rank} of {len(self.ctas)}")
        return self.ctas[rank]

    def mbarrier(self, address: int) -> Mbarrier:
        """The mbarrier object at a shared address; ``Trap`` if none was initialised there."""
        cta = self.cta(address)
        barrier = cta.mbarriers.get(address & OFFSET_MASK)
        if barrier is None:
            raise Trap(f"no mbarrier was initialised at {self.shared_name(address)}")
        return barrier

    def shared_name(self, address: int) -> str:
        """A shared address as the offset in dynamic shared memory of a CTA, for messages."""
        name = self.ctas[0].shared.name(address & OFFSET_MASK)
        return f"{name} of CTA rank {address >> RANK_SHIFT}"

    def site(self, warp: Warp, position: int | None = None) -> Location:
        """Where ``warp`` is: the instruction that runs, or the one at ``position`` of its block."""
        position = warp.position if position is None else position
        place = self.launch.program.place(warp.block, position)
        return Location(
            place.kernel, place.ptx_line, place.ptx_text, place.source, warp.cta.index, warp.rank
        )


def is_special(name: str) -> bool:
    """Whether a name is that of a special register which the machine has."""
    base, _, axis = name.partition(".")
    return is_of_warp(name) or name in _SCALARS or (base in _VECTORS and axis in ("x", "y", "z"))


def validate(launch: Launch) -> None:
    """Raise ``Trap`` or ``Unsupported`` for a launch that no device would accept."""
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    ctas = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
    name = launch.program.kernel.name
    where = Location(kernel=name)
    if not 1 <= threads <= MAX_THREADS:
        raise Trap(f"block {launch.block} has {threads} threads; 1..{MAX_THREADS}", where)
    if ctas > MAX_CLUSTER:
        raise Trap(f"cluster {launch.cluster} has {ctas} CTAs; at most {MAX_CLUSTER}", where)
    if any(g % c for g, c in zip(launch.grid, launch.cluster, strict=True)):
        raise Trap(f"grid {launch.grid} is not a multiple of cluster {launch.cluster}", where)
    shared = launch.program.dynamic_shared_offset + launch.dynamic_shared_bytes
    if shared > MAX_SHARED_BYTES + 1024:
        raise Trap(f"{shared} bytes of shared memory; at most {MAX_SHARED_BYTES}", where)
    required = launch.program.kernel.directives.get("reqntid")
    if required and (*required, 1, 1)[:3] != launch.block:
        raise Trap(f"block {launch.block} where the kernel requires {required}", where)
    if "explicitcluster" in launch.program.kernel.directives and ctas == 1:
        raise Unsupported("a kernel with .explicitcluster launched without a cluster", where)
