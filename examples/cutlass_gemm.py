"""The dense GEMM examples of CUTLASS for Blackwell, as published, run without a GPU and judged.

    PYTHONPATH=. python examples/cutlass_gemm.py --cutlass PATH [--variant NAME] [--checks all]

PATH is a checkout of github.com/NVIDIA/cutlass, version 4.7, which is no Python package and must be
fetched by hand. Its kernel classes are compiled with tensors that have a layout and no memory;
random matrices then go through the simulator, and the product is compared with one in float64.
docs/simulator/kernels_run.md has the figures.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import cutlass
import torch
from cutlass import cute
from cutlass.cute import runtime

from simulator.checks import CHECKS, PRESETS, Checks
from simulator.errors import SimulationError
from simulator.launch import LoadedProgram, Policy, Tensor, launch, load

FOLDER = "examples/python/CuTeDSL/cute/blackwell/kernel/dense_gemm"
POLICIES = ("fair", "late", "run_to_block", "random")
CLASSES = (
    "DenseGemmKernel",
    "PersistentDenseGemmKernel",
    "SM100PersistentDenseGemmAlphaBetaKernel",
)
CLUSTERS = 2
"""How many clusters a persistent kernel is told that the device holds, so that each gets tiles."""
ALPHA, BETA = 1.5, -0.75


@dataclass(frozen=True)
class Element:
    """A number format: the DSL's name, what torch calls it, and the relative error of one."""

    dsl: Any
    torch: torch.dtype
    epsilon: float


ELEMENTS = {
    "f32": Element(cutlass.Float32, torch.float32, 2.0**-22),
    "tf32": Element(cutlass.TFloat32, torch.float32, 2.0**-22),
    "f16": Element(cutlass.Float16, torch.float16, 2.0**-11),
    "bf16": Element(cutlass.BFloat16, torch.bfloat16, 2.0**-8),
    "e4m3": Element(cutlass.Float8E4M3FN, torch.float8_e4m3fn, 2.0**-4),
    "e5m2": Element(cutlass.Float8E5M2, torch.float8_e5m2, 2.0**-3),
    "i8": Element(cutlass.Int8, torch.int8, 0.0),
    "u8": Element(cutlass.Uint8, torch.uint8, 0.0),
    "i32": Element(cutlass.Int32, torch.int32, 0.0),
}


@dataclass(frozen=True)
class Variant:
    """One compilation of one example, and the problem that it is given.

    ``majors`` are those of A, B and C; ``tile`` is (M, N) of an MMA; ``mnkl`` the problem's sizes.
    """

    file: str
    ab: str = "f16"
    c: str = "f32"
    accumulator: str = "f32"
    majors: str = "kkn"
    tile: tuple[int, int] = (128, 128)
    cluster: tuple[int, int] = (1, 1)
    two_ctas: bool = False
    tma_store: bool = True
    mnkl: tuple[int, int, int, int] = (256, 256, 192, 1)
    split_k: int = 1


V = Variant
PLAIN, PIPELINED = "dense_gemm", "dense_gemm_software_pipeline"
PERSISTENT, DYNAMIC = "dense_gemm_persistent", "dense_gemm_persistent_dynamic"
SCALED, PREFETCH = "dense_gemm_alpha_beta_persistent", "dense_gemm_persistent_prefetch"
VARIANTS = {
    "plain-f16-m128": V(PLAIN),
    "plain-f16-m64": V(PLAIN, tile=(64, 64)),
    "plain-bf16-mn-major": V(PLAIN, ab="bf16", c="bf16", majors="mnm"),
    "plain-e4m3": V(PLAIN, ab="e4m3", c="f16", mnkl=(256, 256, 320, 1)),
    "plain-e5m2-mn-major": V(PLAIN, ab="e5m2", majors="mnn"),
    "plain-tf32": V(PLAIN, ab="tf32"),
    "plain-tf32-mn-major": V(PLAIN, ab="tf32", majors="mnn"),
    "plain-i8": V(PLAIN, ab="i8", c="i32", accumulator="i32"),
    "plain-u8": V(PLAIN, ab="u8", c="i32", accumulator="i32"),
    "plain-f16-accumulator": V(PLAIN, c="f16", accumulator="f16"),
    "plain-2cta-m256": V(PLAIN, two_ctas=True, tile=(256, 128), cluster=(2, 1), c="f16"),
    "plain-2cta-m128": V(PLAIN, two_ctas=True, tile=(128, 128), cluster=(2, 1)),
    "plain-no-tma-store": V(PLAIN, tma_store=False, c="f16"),
    "plain-multicast-2x2": V(PLAIN, cluster=(2, 2)),
    "plain-multicast-4x1": V(PLAIN, cluster=(4, 1), mnkl=(512, 128, 192, 1)),
    "plain-batch-ragged": V(PLAIN, mnkl=(200, 136, 72, 2)),
    "pipelined-f16": V(PIPELINED, c="f16"),
    "pipelined-2cta-e4m3": V(
        PIPELINED, ab="e4m3", c="f16", two_ctas=True, tile=(256, 128), cluster=(2, 1)
    ),
    "persistent-f16": V(PERSISTENT, c="f16", mnkl=(512, 384, 128, 2)),
    "persistent-2cta-bf16-2x2": V(
        PERSISTENT, ab="bf16", c="bf16", two_ctas=True, tile=(256, 128), cluster=(2, 2),
        mnkl=(512, 512, 128, 1),
    ),
    "persistent-m64-e4m3": V(PERSISTENT, ab="e4m3", tile=(64, 64), mnkl=(192, 192, 256, 1)),
    "persistent-2cta-tf32": V(
        PERSISTENT, ab="tf32", two_ctas=True, tile=(256, 128), cluster=(2, 1)
    ),
    "prefetch-f16": V(PREFETCH, c="f16", mnkl=(512, 256, 192, 1)),
    "dynamic-f16": V(DYNAMIC, c="f16", mnkl=(512, 256, 192, 1)),
    "dynamic-2cta-f16": V(DYNAMIC, two_ctas=True, tile=(256, 128), cluster=(2, 1), c="f16"),
    "dynamic-split-k": V(DYNAMIC, split_k=2, tma_store=False, mnkl=(256, 256, 512, 1)),
    "alpha-beta-f16": V(SCALED, c="f16"),
    "alpha-beta-2cta-e4m3": V(
        SCALED, ab="e4m3", c="f32", two_ctas=True, tile=(256, 128), cluster=(2, 1)
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """What a run came to. ``error`` is the largest, as a fraction of what is allowed."""

    error: float
    warp_instructions: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"error {self.error:.3f} of what is allowed, "
            f"{self.warp_instructions:>6} warp-instructions, {self.seconds:.1f} s"
        )


# 1. Compiling


def example(cutlass_folder: Path, name: str) -> ModuleType:
    """The example's module."""
    path = cutlass_folder / FOLDER / f"{name}.py"
    if not path.is_file():
        raise SystemExit(f"--cutlass: there is no {path}")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def fake(element: Element, is_row_contiguous: bool) -> Any:
    """A [rows, columns, batch] matrix of any size, without memory."""
    step = 128 // element.dsl.width
    order = (1, 0, 2) if is_row_contiguous else (0, 1, 2)
    sizes = [cute.sym_int(divisibility=step if at == 0 else 1) for at in order]
    return runtime.make_fake_compact_tensor(
        element.dsl, tuple(sizes), stride_order=order, assumed_align=16
    )


def compile_variant(module: ModuleType, variant: Variant) -> LoadedProgram:
    """The variant's program, for ``sm_100a``."""
    options = "--enable-tvm-ffi --gpu-arch sm_100a --generate-line-info --keep-ptx"
    kernel, arguments = _kernel(module, variant)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = cute.compile(kernel, *arguments, options=f"{options} --dump-dir={folder}")

        return load(compiled.__ptx__, compiled.dump_to_object("gemm"))


def _kernel(module: ModuleType, variant: Variant) -> tuple[Any, tuple[Any, ...]]:
    """The example's kernel object and what to compile it with."""
    (kernel_class,) = (value for name, value in vars(module).items() if name in CLASSES)
    accumulator = ELEMENTS[variant.accumulator].dsl
    shape = (variant.two_ctas, variant.tile, variant.cluster)
    ab, c = ELEMENTS[variant.ab], ELEMENTS[variant.c]
    rows = [major in "kn" for major in variant.majors]
    rows[1] = variant.majors[1] == "k"  # B is [n, k]
    a, b, result = fake(ab, rows[0]), fake(ab, rows[1]), fake(c, rows[2])
    stream = runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    if variant.file == SCALED:
        scales = (cutlass.Float32(ALPHA), cutlass.Float32(BETA))
        kernel = kernel_class(accumulator, cutlass.Float32, *shape)
        return kernel, (a, b, fake(c, rows[2]), result, *scales, CLUSTERS, stream)
    if variant.file == DYNAMIC:
        kernel = kernel_class(accumulator, *shape, variant.tma_store, split_k=variant.split_k)
        return kernel, (a, b, result, stream)
    kernel = kernel_class(accumulator, *shape, variant.tma_store)
    clusters = (CLUSTERS,) if variant.file in (PERSISTENT, PREFETCH) else ()
    return kernel, (a, b, result, *clusters, stream)


# 2. Running and judging


def matrix(shape: tuple[int, int, int], element: Element, is_row_contiguous: bool) -> torch.Tensor:
    """Random values [rows, columns, batch] with unit variance, or whole numbers."""
    rows, columns, batch = shape
    stored = (batch, rows, columns) if is_row_contiguous else (batch, columns, rows)
    if element.torch in (torch.int8, torch.uint8):
        info = torch.iinfo(element.torch)
        values = torch.randint(info.min, info.max + 1, stored, dtype=element.torch)
    elif element.torch == torch.int32:
        values = torch.zeros(stored, dtype=torch.int32)
    else:
        values = torch.randn(stored).to(element.torch)
    if element is ELEMENTS["tf32"]:
        values = (values.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return values.permute(1, 2, 0) if is_row_contiguous else values.permute(2, 1, 0)


def run(program: LoadedProgram, variant: Variant, policy: Policy, checks: Checks) -> Figures:
    """Run the variant on random matrices; ValueError if an element is off by more than allowed."""
    m, n, k, batch = variant.mnkl
    ab, c = ELEMENTS[variant.ab], ELEMENTS[variant.c]
    rows = (variant.majors[0] == "k", variant.majors[1] == "k", variant.majors[2] == "n")
    a, b = matrix((m, k, batch), ab, rows[0]), matrix((n, k, batch), ab, rows[1])
    out = matrix((m, n, batch), c, rows[2])
    exact = torch.einsum("mkl,nkl->mnl", a.double(), b.double())
    size = torch.einsum("mkl,nkl->mnl", a.double().abs(), b.double().abs())
    arguments: list[Any] = [Tensor.of(a, "a"), Tensor.of(b, "b")]
    if variant.file == SCALED:
        addend = matrix((m, n, batch), c, rows[2])
        exact, size = ALPHA * exact + BETA * addend.double(), ALPHA * size + addend.double().abs()
        arguments.append(Tensor.of(addend, "c"))
    arguments.append(Tensor.of(out, "out", initialised=False))
    if variant.file == SCALED:
        arguments += [ALPHA, BETA]
    started = time.perf_counter()
    result = launch(program, arguments, policy=policy, checks=checks)
    seconds = time.perf_counter() - started
    steps = -(-k // 16) + 4
    accumulated = {"f16": 2.0**-10, "f32": 2.0**-23, "i32": 0.0}[variant.accumulator]
    allowed = size * steps * accumulated + exact.abs() * c.epsilon + 2.0**-24
    worst = float(((out.double() - exact).abs() / allowed).nan_to_num(nan=float("inf")).max())
    if worst > 1:
        raise ValueError(f"an element is off by {worst:.3g} times what is allowed")
    return Figures(worst, result.warp_instructions, seconds)


def parsed() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cutlass", type=Path, required=True, help="checkout of NVIDIA/cutlass")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="default: all")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="default: fair")
    parser.add_argument("--seed", type=int, default=0, help="of matrices and policies; default 0")
    parser.add_argument(
        "--checks", action="append", choices=(*PRESETS, *CHECKS), help="default: the usual ones"
    )
    return parser.parse_args()


def main() -> None:
    """Run what was asked for and print a line for each run; the exit status says if all is well."""
    asked, wrong = parsed(), 0
    checks = Checks.of(*asked.checks) if asked.checks else Checks()
    torch.set_num_threads(1)
    for name in asked.variant or VARIANTS:
        variant = VARIANTS[name]
        try:
            program = compile_variant(example(asked.cutlass, variant.file), variant)
        except SimulationError as error:
            sys.stdout.write(f"{name:26} {type(error).__name__}: {error}\n")
            wrong += 1
            continue
        for policy in asked.policy or POLICIES[:1]:
            torch.manual_seed(asked.seed)
            try:
                text = str(run(program, variant, Policy(policy, asked.seed), checks))
            except (SimulationError, ValueError) as error:
                text, wrong = f"{type(error).__name__}: {error}", wrong + 1
            sys.stdout.write(f"{name:26} {policy:13} {text}\n")
            sys.stdout.flush()
    raise SystemExit(min(wrong, 1))


if __name__ == "__main__":
    main()
