"""Where everything lies in a CTA's shared memory, as offsets.

Operands of the tensor core lie in groups of 64 columns, each one swizzle span wide:

    query   [9 groups][64 rows][span]              once
    keys    [groups of a chunk][key rows][span]    a ring of stages
    values  [groups of the CTA][chunk rows][span]  a ring of stages
    P       [2 groups of keys][64 rows][span]      once

Eight rows of a span are a swizzle pattern, so each operand starts at a multiple of 1024 bytes.
"""

from dataclasses import dataclass

from optimized.plan import TILE_N
from optimized.sm100.config import GROUP, QK_GROUPS, ROWS, Config
from optimized.sm100.pipelines import Edges
from optimized.sm100.warps import ROLE_THREADS

LIMIT_BYTES = 227 * 1024  # of dynamic shared memory for one CTA
ALIGNMENT_BYTES = 1024
FLOAT_BYTES = 4
SLOT_BYTES = ROLE_THREADS * FLOAT_BYTES  # a float for each softmax thread


@dataclass(frozen=True)
class SharedLayout:
    """Offsets in bytes from the start of dynamic shared memory."""

    config: Config

    @property
    def query(self) -> int:
        """The query rows of the CTA."""
        return 0

    @property
    def query_group_bytes(self) -> int:
        """Bytes of a group of the query, and of P: 64 rows."""
        return ROWS * self.config.span_bytes

    @property
    def probabilities(self) -> int:
        """P of a tile."""
        return self.query + QK_GROUPS * self.query_group_bytes

    @property
    def keys(self) -> int:
        """The stages of keys."""
        return self.probabilities + TILE_N // GROUP * self.query_group_bytes

    @property
    def values(self) -> int:
        """The stages of values."""
        return self.keys + self.config.key_stages * self.config.key_chunk_bytes

    @property
    def exchange(self) -> int:
        """Two slots in which the threads of a row tell each other its maximum."""
        return self.values + self.config.value_stages * self.config.value_chunk_bytes

    @property
    def rescale(self) -> int:
        """Two slots of factors, from the softmax to the correction warps."""
        return self.exchange + 2 * SLOT_BYTES

    @property
    def final(self) -> int:
        """A slot of the rows' last factors."""
        return self.rescale + 2 * SLOT_BYTES

    @property
    def edges(self) -> Edges:
        """The barriers."""
        return Edges(self.config, self.final + SLOT_BYTES)

    @property
    def tensor_memory(self) -> int:
        """The word in which the address of tensor memory is left."""
        return self.edges.offset + self.edges.num_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes in all. Raises ValueError beyond what a CTA may have."""
        total = self.tensor_memory + FLOAT_BYTES
        if total > LIMIT_BYTES:
            raise ValueError(f"shared memory must be at most {LIMIT_BYTES} bytes, got {total}")
        return total
