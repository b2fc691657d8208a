"""Where the registers of native code lie: an address must be told from an offset by its size."""

import mmap

from simulator.codegen.emit import ADDRESS_LIMIT
from simulator.codegen.image import lay_out
from simulator.decode import decode
from simulator.ptx.parser import parse
from tests.simulator.ptx_text import module


def test_registers_of_one_block_have_pages_of_their_own():
    """Not an allocator's memory: in a Python at a fixed place that lies below the limit."""
    program = decode(parse(module("add.u32 %r1, %r2, 1; mov.u32 %r3, %r1;")).kernels["k"])
    layout = lay_out(program)
    assert layout.shared.ctypes.data % mmap.PAGESIZE == 0
    assert layout.shared.ctypes.data >= ADDRESS_LIMIT
    assert not layout.shared.any()
