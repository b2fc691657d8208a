"""What every role is given."""

from dataclasses import dataclass
from typing import Any

from cutlass import Int32

from optimized.sm100.config import Config
from optimized.sm100.pipelines import Edge
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
