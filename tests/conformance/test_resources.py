"""Registers and local memory of compiled kernels, against ptxas and for all that we compile."""

import re
import shutil
import subprocess
import warnings

import pytest

from conformance.resources import Resources, resources
from optimized.compile import ARCHES, compiled
from optimized.plan import Specialisation
from optimized.sm100.config import Config
from optimized.sm100.smem import SharedLayout
from reference.problem import PAGE_SIZES

PTXAS = shutil.which("ptxas")
MOST_REGISTERS = 255
POOL = 65_536  # registers of an SM
ALLOTTED = 8  # a thread's registers are allotted in eights
TMEM_COLUMNS = 512
SHARED_BYTES = 232_448
KINDS = (("float8_e4m3fn", 64), ("float8_e4m3fn", 128), ("float16", 128), ("bfloat16", 128))
CHECKED = [
    pytest.param(
        Specialisation(dtype, tile_m, page_size),
        arch,
        id=f"{dtype}-{tile_m}-{page_size}-{arch}",
        # Compiled from nothing each takes seconds; pages of 64 stand for the rest in between.
        marks=[] if page_size == 64 else [pytest.mark.slow],
    )
    for dtype, tile_m in KINDS
    for page_size in PAGE_SIZES
    for capability, arch in ARCHES.items()
    if tile_m == 128 or capability == (10, 0)  # the plan uses the small tile there alone
]


@pytest.mark.parametrize(("key", "arch"), CHECKED)
def test_nothing_spills_and_everything_fits(key: Specialisation, arch: str) -> None:
    made = compiled(key, arch)
    found = resources(made.host_object)
    assert {re.search(r"cutlass_(split_kv|combine)", entry.kernel)[1] for entry in found} == {
        "split_kv",
        "combine",
    }
    for entry in found:
        assert entry.local_bytes == 0, entry
        allotted = -(-entry.registers // ALLOTTED) * ALLOTTED
        assert allotted * threads_of(made.ptx, entry.kernel) <= POOL
        assert entry.registers <= MOST_REGISTERS
    assert ".local" not in made.ptx
    static = sum(map(int, re.findall(r"\.shared .*?\[(\d+)\]", made.ptx)))
    dynamic = SharedLayout(Config(key.dtype, key.tile_m, key.page_size)).num_bytes
    assert static + dynamic <= SHARED_BYTES
    assert 0 < tmem_columns(made.ptx) <= TMEM_COLUMNS


def threads_of(ptx: str, kernel: str) -> int:
    """The threads of a CTA that the kernel is compiled for."""
    head = ptx[ptx.index(f".entry {kernel}") :]
    return int(re.search(r"\.(?:max|req)ntid (\d+)", head)[1])


def tmem_columns(ptx: str) -> int:
    return sum(map(int, re.findall(r"tcgen05\.alloc[^;]*, (\d+);", ptx)))


@pytest.mark.skipif(PTXAS is None, reason="ptxas is not on PATH")
def test_registers_are_those_that_ptxas_reports(tmp_path) -> None:
    made = compiled(Specialisation("float8_e4m3fn", 128, 64))
    path = tmp_path / "kernel.ptx"
    path.write_text(made.ptx)
    command = [PTXAS, "-v", "-arch=sm_100a", str(path), "-o", str(tmp_path / "kernel.cubin")]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    names = re.findall(r"Function properties for (\S+)", report)
    frames = re.findall(r"(\d+) bytes stack frame, 0 bytes spill stores", report)
    registers = re.findall(r"Used (\d+) registers", report)
    told = [Resources(n, int(r), int(f)) for n, r, f in zip(names, registers, frames, strict=True)]
    assert resources(made.host_object) == tuple(sorted(told, key=lambda entry: entry.kernel))


def test_an_array_outside_registers_is_reported() -> None:
    (found,) = resources(kernel_with_a_local_array())
    assert found.local_bytes >= 64 * 4


def kernel_with_a_local_array() -> bytes:
    import cutlass
    from cutlass import cute

    @cute.kernel
    def pick(out: cute.Tensor, index: cutlass.Int32) -> None:
        values = cute.make_rmem_tensor(cute.make_layout(64), cutlass.Int32)
        for at in cutlass.range(64, unroll=1):
            values[at] = out[at]
        out[0] = values[index]

    @cute.jit
    def host(out: cute.Tensor, index: cutlass.Int32) -> None:
        pick(out, index).launch(grid=(1, 1, 1), block=(1, 1, 1))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = cute.runtime.make_fake_compact_tensor(cutlass.Int32, (64,))
        options = "--enable-tvm-ffi --gpu-arch sm_100a"
        made = cute.compile(host, out, cutlass.Int32(0), options=options)
        return made.dump_to_object("pick")


def test_an_object_without_device_code_is_refused() -> None:
    with pytest.raises(ValueError, match="host_object: no device code in its 8 bytes"):
        resources(b"\x7fELF\0\0\0\0")
