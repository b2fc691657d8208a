"""Every instruction family, imported for what it enters into the table."""

from simulator.isa import (
    bit_field,
    bulk_copy,
    comparison,
    control,
    float32,
    integer,
    logic,
    memory,
    move,
    synchronisation,
    tcgen05,
    warp_level,
)
from simulator.isa.table import TABLE

__all__ = ["TABLE", "FAMILIES"]

FAMILIES = (
    bit_field, bulk_copy, comparison, control, float32, integer, logic, memory, move, synchronisation, tcgen05, warp_level,
)  # fmt: skip
"""The modules whose declarations fill ``TABLE``."""
