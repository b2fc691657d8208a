"""Every instruction family, imported for what it enters into the table."""

from simulator.isa import (
    approximation,
    atomics,
    bit_field,
    block_scale,
    bulk_copy,
    bulk_linear,
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
    matrix_multiply,
    memory,
    move,
    packed_conversion,
    remote,
    synchronisation,
    tcgen05,
    warp_level,
    warpgroup,
)
from simulator.isa.table import TABLE

__all__ = ["FAMILIES", "TABLE"]

FAMILIES = (
    approximation, atomics, bit_field, block_scale, bulk_copy, bulk_linear, comparison, control,
    conversion, float32, float64, half, integer, launch_control, logic, matrix_fragments,
    matrix_multiply, memory, move, packed_conversion, remote, synchronisation, tcgen05, warp_level,
    warpgroup,
)  # fmt: skip
"""The modules whose declarations fill ``TABLE``."""
