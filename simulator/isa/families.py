"""Every instruction family, imported for what it enters into the table."""

from simulator.isa import (
    approximation,
    bit_field,
    bulk_copy,
    comparison,
    control,
    conversion,
    float32,
    float64,
    half,
    integer,
    launch_control,
    logic,
    matrix_fragments,
    memory,
    move,
    packed_conversion,
    synchronisation,
    tcgen05,
    warp_level,
)
from simulator.isa.table import TABLE

__all__ = ["FAMILIES", "TABLE"]

FAMILIES = (
    approximation, bit_field, bulk_copy, comparison, control, conversion, float32, float64, half,
    integer, launch_control, logic, matrix_fragments, memory, move, packed_conversion,
    synchronisation, tcgen05, warp_level,
)  # fmt: skip
"""The modules whose declarations fill ``TABLE``."""
