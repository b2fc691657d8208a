"""How the roles hand data to each other: every mbarrier of the kernel.

    edge         producer -> consumer    stages  arrivals of a phase  says
    query        correction -> mma       1       4 warps of each CTA  the query lies in smem
    keys         TMA -> mma              k       each CTA, its bytes  a chunk of keys lies in smem
    keys_free    UMMA -> load keys       k       1                    it has been multiplied
    values       TMA -> mma              v       each CTA, its bytes  a chunk of values lies in smem
    values_free  UMMA -> load values     v       1                    it has been multiplied
    scores       UMMA -> softmax         2       1                    a tile of scores lies in TMEM
    rescale      softmax -> correction   2       4 warps              a tile's factors lie in smem
    ready        both -> mma             2       8 warps of each CTA  P written, output rescaled
    output       UMMA -> both            1       1                    a tile's values are added up
    final        softmax -> correction   1       4 warps              the rows' sums lie in smem
    scrub        TMA -> load values      1       1, and the bytes     a chunk to clean lies in smem

Where the keys serve as values too, values have no stages, and keys are free after both products.
With two CTAs, what the MMA warp waits for lies in the even CTA, and what the tensor core signals
arrives in both. What is handed back without a barrier of its own:

* scores: the MMA warp overwrites tile t's with those of t + 2 after `ready` of t, before which the
  softmax warps have read them;
* P: the softmax warps overwrite it after `output` of the tile before;
* rescale: the factors of t are overwritten by those of t + 2 after the softmax warps have seen
  `output` of t, to which the correction warps contributed after reading them. For the same reason
  neither `rescale` nor `ready` can run two phases ahead;
* final: overwritten after `output` of the next work, to which the correction warps contributed;
* query: overwritten after `output` of the work's last tile, which follows every product with it.
"""

from dataclasses import dataclass

from optimized.sm100.config import Config
from optimized.sm100.warps import CORRECTION_WARPS, SOFTMAX_WARPS

BARRIER_BYTES = 8


@dataclass(frozen=True)
class Edge:
    """The mbarriers of one edge: ``stages`` of them, from ``offset`` on in shared memory.

    ``producer`` and ``consumer`` are those of the table; "both" are softmax and correction.
    """

    name: str
    producer: str
    consumer: str
    stages: int
    arrivals: int
    offset: int

    def barrier(self, stage):  # type: ignore[no-untyped-def]
        """The offset of a stage's barrier; ``stage`` is a Python or a device integer."""
        return self.offset + BARRIER_BYTES * stage


@dataclass(frozen=True)
class Edges:
    """Every edge of a kernel, its barriers from ``offset`` on in shared memory."""

    config: Config
    offset: int

    @property
    def all(self) -> tuple[Edge, ...]:
        """The edges in the order of the table."""
        config = self.config
        softmax, correction = len(SOFTMAX_WARPS), len(CORRECTION_WARPS)
        declared = (
            ("query", "correction", "mma", 1, correction * config.num_ctas),
            ("keys", "load keys", "mma", config.key_stages, config.num_ctas),
            ("keys_free", "mma", "load keys", config.key_stages, 1),
            ("values", "load values", "mma", config.value_stages, config.num_ctas),
            ("values_free", "mma", "load values", config.value_stages, 1),
            ("scores", "mma", "softmax", 2, 1),
            ("rescale", "softmax", "correction", 2, softmax),
            ("ready", "both", "mma", 2, (softmax + correction) * config.num_ctas),
            ("output", "mma", "both", 1, 1),
            ("final", "softmax", "correction", 1, softmax),
            ("scrub", "load values", "load values", 1, 1),
        )
        edges: list[Edge] = []
        offset = self.offset
        for name, producer, consumer, stages, arrivals in declared:
            edges.append(Edge(name, producer, consumer, stages, arrivals, offset))
            offset += BARRIER_BYTES * stages
        return tuple(edges)

    @property
    def num_bytes(self) -> int:
        """Bytes of all barriers."""
        return BARRIER_BYTES * sum(edge.stages for edge in self.all)

    def __getitem__(self, name: str) -> Edge:
        """The edge called ``name``."""
        return next(edge for edge in self.all if edge.name == name)
