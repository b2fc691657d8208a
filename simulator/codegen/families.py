"""Every family of translations, imported for what it enters."""

from simulator.codegen import (
    asynchronous,
    barriers,
    floating,
    integer,
    memory,
    tensor_memory,
    warp_level,
)
from simulator.codegen.translations import translation

__all__ = ["FAMILIES", "translation"]

FAMILIES = (asynchronous, barriers, floating, integer, memory, tensor_memory, warp_level)
