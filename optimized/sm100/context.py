"""What every role is given, and does."""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute, select_

from optimized.common import ptx
from optimized.sm100.config import Config
from optimized.sm100.pipelines import BARRIER_BYTES, Edge
from optimized.sm100.scheduler import Parameters
from optimized.sm100.smem import SharedLayout


@dataclass(frozen=True)
class Context:
    """A warp's place in the launch, and the launch's arguments.

    ``shared`` is where dynamic shared memory starts, ``leader`` where that of the even CTA does in
    the cluster's address space; ``tensor_memory`` is the address of its first column.
    """

    config: Config
    parameters: Parameters
    shared: Int32
    leader: Int32
    tensor_memory: Int32
    rank: Int32  # of the CTA in the cluster
    cluster: Int32
    num_clusters: Int32
    lane: Int32
    thread: Int32  # among the role's threads
    tensor_map: Any  # address of the tensor map of the cache, an Int64

    @property
    def layout(self) -> SharedLayout:
        """Where everything lies in shared memory."""
        return SharedLayout(self.config)

    def edge(self, name: str) -> Edge:
        """The barriers of an edge, as offsets."""
        return self.layout.edges[name]

    def barrier(self, edge: str, stage: Any = 0) -> ptx.Place:
        """A barrier of this CTA."""
        return ptx.Place(self.shared + BARRIER_BYTES * stage, self.edge(edge).offset)

    def leaders(self, edge: str, stage: Any = 0) -> ptx.Place:
        """A barrier of the even CTA, in the cluster's address space."""
        return ptx.Place(self.leader + BARRIER_BYTES * stage, self.edge(edge).offset)


@cute.jit
def signal(c: Context, barrier: Int32 | ptx.Place) -> None:
    """Arrive for the warp, once all its lanes are here, at a barrier of any CTA of the cluster."""
    ptx.sync_warp()
    if c.lane == 0:
        if cutlass.const_expr(c.config.num_ctas == 1):
            ptx.arrive(barrier)
        else:
            ptx.arrive_in_cluster(barrier)


def next_stage(stage: Int32, parity: Int32, stages: int) -> tuple[Int32, Int32]:
    """The stage after ``stage`` of a ring, and its parity, which flips on the way round."""
    wrapped = stage == stages - 1
    return select_(wrapped, Int32(0), stage + 1), select_(wrapped, parity ^ 1, parity)
