"""y = a x + y with a CuTe DSL kernel of a few lines, compiled for Blackwell and run without a GPU.

    PYTHONPATH=. python examples/scale.py
    python -m simulator run examples/scale.py:call

The second line runs it by the simulator's command line, which can also profile, trace and debug.

The steps are those of any kernel: write it, compile it for ``sm_100a``, load its PTX and its host
object, launch them on tensors in host memory. docs/simulator/README.md says what happens inside.
"""

from __future__ import annotations

import sys
import tempfile

import cutlass
import torch
from cutlass import cute

from simulator.artefact import Call
from simulator.launch import Tensor, launch, load

THREADS = 128


@cute.kernel
def scale_kernel(a: cutlass.Float32, x: cute.Tensor, y: cute.Tensor) -> None:
    """One element a thread."""
    i = cute.arch.block_idx()[0] * THREADS + cute.arch.thread_idx()[0]
    if i < y.shape[0]:
        y[i] = a * x[i] + y[i]


@cute.jit
def scale(a: cutlass.Float32, x: cute.Tensor, y: cute.Tensor) -> None:
    """Launch enough blocks for all elements."""
    grid = [cute.ceil_div(y.shape[0], THREADS), 1, 1]
    scale_kernel(a, x, y).launch(grid=grid, block=[THREADS, 1, 1])


def compile_scale() -> tuple[str, bytes]:
    """PTX and host object for vectors of any length, which fake tensors stand for.

    The PTX must be kept, and line information lets errors name the lines of this file.
    """
    length = cute.sym_int()
    x, y = (
        cute.runtime.make_fake_compact_tensor(cutlass.Float32, (length,), assumed_align=4)
        for _ in range(2)
    )
    options = "--enable-tvm-ffi --gpu-arch sm_100a --generate-line-info --keep-ptx"
    with tempfile.TemporaryDirectory() as folder:
        compiled = cute.compile(
            scale, cutlass.Float32(1.0), x, y, options=f"{options} --dump-dir={folder}"
        )
        return compiled.__ptx__, compiled.dump_to_object("scale")


def call() -> Call:
    """A call on vectors that are always the same, for ``python -m simulator``."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(1000, generator=generator) for _ in range(2))
    return Call(*compile_scale(), (2.5, Tensor.of(x, "x"), Tensor.of(y, "y")))


def main() -> None:
    """Run the kernel and print what came out."""
    x, y = torch.randn(1000), torch.randn(1000)
    expected = 2.5 * x + y
    result = launch(load(*compile_scale()), [2.5, Tensor.of(x, "x"), Tensor.of(y, "y")])
    (kernel,) = result.kernels
    worst = float((y - expected).abs().max())
    sys.stdout.write(
        f"{kernel.name}: grid {kernel.grid}, block {kernel.block}, "
        f"{kernel.warp_instructions} warp-instructions, largest difference {worst:.1e}\n"
    )


if __name__ == "__main__":
    main()
