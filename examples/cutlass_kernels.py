"""Examples of CUTLASS beyond dense GEMM, as published, run without a GPU and judged.

    PYTHONPATH=. python examples/cutlass_kernels.py --cutlass PATH [--variant NAME] [--checks all]

Block-scaled and blockwise-scaled GEMM, mixed-input GEMM, and attention. PATH and what is compared
are as in examples/cutlass_gemm.py; docs/simulator/kernels_run.md has the figures.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import cutlass
import torch
from cutlass import cute
from cutlass.cute import runtime

from examples.cutlass_gemm import CLUSTERS, ELEMENTS, POLICIES, Figures
from simulator.checks import CHECKS, PRESETS, Checks
from simulator.errors import SimulationError
from simulator.launch import LoadedProgram, Policy, Tensor, launch, load

ROOT = "examples/python/CuTeDSL"
FOLDER = f"{ROOT}/cute/blackwell/kernel"
K_MAJOR, MN_MAJOR, ROWS_LAST = (1, 0, 2), (0, 1, 2), (2, 1, 0)
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]).double()


@dataclass(frozen=True)
class Problem:
    """Arguments of one call, what comes out in them, what should, and how far off it may be."""

    arguments: list[Any]
    out: torch.Tensor
    exact: torch.Tensor
    allowed: torch.Tensor


@dataclass(frozen=True)
class Variant:
    """One compilation: the example's file, its kernel with what to compile it with, a problem."""

    file: str
    build: Callable[[ModuleType], tuple[Any, tuple[Any, ...]]]
    problem: Callable[[], Problem]


def fake(element: Any, order: Sequence[int], divisibility: int | None = None) -> Any:
    """A tensor of any size, without memory; ``order`` numbers the axes from the innermost."""
    step = divisibility or max(1, 128 // element.width)
    sizes = [cute.sym_int(divisibility=step if place == 0 else 1) for place in order]
    return runtime.make_fake_compact_tensor(
        element, tuple(sizes), stride_order=tuple(order), assumed_align=16
    )


def stream() -> Any:
    """The stream that a kernel is compiled with."""
    return runtime.make_fake_stream(use_tvm_ffi_env_stream=True)


# 1. Block scales


def block_scaled(
    kind: str, scale: str, block: int, *, out: str, two_ctas: bool = False, n: int = 128
) -> Variant:
    """D = (A scaled) (B scaled): ``kind`` is e4m3 or e2m1, a scale for each ``block`` of K."""
    tile, cluster = ((256, n), (2, 1)) if two_ctas else ((128, n), (1, 1))
    ab = {"e4m3": cutlass.Float8E4M3FN, "e2m1": cutlass.Float4E2M1FN}[kind]
    sf = {"ue8m0": cutlass.Float8E8M0FNU, "ue4m3": cutlass.Float8E4M3FN}[scale]

    def build(module: ModuleType) -> tuple[Any, tuple[Any, ...]]:
        kernel = module.Sm100BlockScaledPersistentDenseGemmKernel(block, tile, cluster)
        operands = [fake(ab, K_MAJOR, 32) for _ in range(2)]
        scales = [fake(sf, ROWS_LAST) for _ in range(2)]
        c = fake(ELEMENTS[out].dsl, K_MAJOR)
        return kernel, (*operands, *scales, c, CLUSTERS, stream())

    def problem() -> Problem:
        rows, columns, depth = 2 * tile[0], 2 * n, 256
        a, stored_a = _operand(kind, rows, depth, "a")
        b, stored_b = _operand(kind, columns, depth, "b")
        scale_a, laid_a = _scales(scale, rows, depth // block, "scale_a")
        scale_b, laid_b = _scales(scale, columns, depth // block, "scale_b")
        a, b = a * scale_a.repeat_interleave(block, 1), b * scale_b.repeat_interleave(block, 1)
        c = torch.zeros(rows, columns, 1, dtype=ELEMENTS[out].torch)
        arguments = [stored_a, stored_b, laid_a, laid_b, Tensor.of(c, "c", initialised=False)]
        return _product(arguments, c, a, b, out)

    return Variant("blockscaled_gemm/dense_blockscaled_gemm_persistent_prefetch.py", build, problem)


def _product(
    arguments: list[Any], c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, out: str
) -> Problem:
    """The problem C = A B with the error of a float32 accumulator and of the output's format."""
    exact, size = a @ b.T, a.abs() @ b.abs().T
    steps = a.shape[1] / 16 + 4
    allowed = size * steps * 2.0**-23 + exact.abs() * ELEMENTS[out].epsilon + 2.0**-24
    return Problem(arguments, c[:, :, 0], exact, allowed)


def _operand(kind: str, rows: int, depth: int, name: str) -> tuple[torch.Tensor, Tensor]:
    """Random values [rows, depth], and the tensor that holds them."""
    if kind == "e4m3":
        values = torch.randn(rows, depth).to(torch.float8_e4m3fn)
        return values.double(), Tensor.of(values[:, :, None], name)
    codes = torch.randint(0, 16, (rows, depth))
    pairs = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    return E2M1[codes], replace(Tensor.of(pairs[:, :, None], name), dtype="float4_e2m1fn_x2")


def _scales(kind: str, rows: int, count: int, name: str) -> tuple[torch.Tensor, Tensor]:
    """Random scales [rows, count], and the tensor with them in the order of the tensor core.

    Four rows that lie 32 apart, by four scales each, stand together; then the other 31 such
    groups; then the next four scales; then the next 128 rows.
    """
    if kind == "ue8m0":
        codes = torch.randint(125, 130, (rows, count), dtype=torch.uint8)
        values, dtype = torch.pow(2.0, codes.double() - 127), "float8_e8m0fnu"
    else:
        codes = torch.randint(0x20, 0x48, (rows, count), dtype=torch.uint8)
        values, dtype = codes.view(torch.float8_e4m3fn).double(), "float8_e4m3fn"
    laid = codes.reshape(rows // 128, 4, 32, count // 4, 4).permute(0, 3, 2, 1, 4).contiguous()
    flat = laid.reshape(-1, 16).T[None].permute(2, 0, 1)  # [groups, 1, 16], the last innermost
    return values, replace(Tensor.of(flat, name), dtype=dtype)


# 2. Scales for blocks of 128, applied to the accumulator


def blockwise() -> Variant:
    """D = A B, e4m3, a float32 scale for 128 of K in each row of A and each 128 columns of B."""

    def build(module: ModuleType) -> tuple[Any, tuple[Any, ...]]:
        kernel = module.BlockwiseGemmKernel(cutlass.Float32, False, (128, 128), (1, 1))
        operands = [fake(cutlass.Float8E4M3FN, K_MAJOR) for _ in range(2)]
        scales = [fake(cutlass.Float32, MN_MAJOR, 1) for _ in range(2)]
        return kernel, (*operands, fake(cutlass.BFloat16, K_MAJOR), *scales, CLUSTERS, stream())

    def problem() -> Problem:
        m, n, depth = 256, 256, 256
        a, b = (torch.randn(rows, depth).to(torch.float8_e4m3fn) for rows in (m, n))
        scale_a, scale_b = torch.rand(depth // 128, m) + 0.5, torch.rand(depth // 128, n // 128) + 1
        c = torch.zeros(m, n, 1, dtype=torch.bfloat16)
        tensors = {"a": a[:, :, None], "b": b[:, :, None]}
        arguments = [Tensor.of(x, name) for name, x in tensors.items()]
        arguments.append(Tensor.of(c, "c", initialised=False))
        arguments.append(Tensor.of(scale_a.T[:, :, None], "scale_a"))
        arguments.append(Tensor.of(scale_b.T[:, :, None], "scale_b"))
        wide_a = a.double() * scale_a.double().T.repeat_interleave(128, 1)
        wide_b = b.double() * scale_b.double().T.repeat_interleave(128, 0).repeat_interleave(128, 1)
        return _product(arguments, c, wide_a, wide_b, "bf16")

    return Variant("blockwise_gemm/blockwise_gemm.py", build, problem)


# 3. A of another type than B


def mixed_input() -> Variant:
    """D = A B with A of int8, which warps convert to bf16; A is M-major."""

    def build(module: ModuleType) -> tuple[Any, tuple[Any, ...]]:
        tile = (128, 128, 64)
        kernel = module.MixedInputGemmKernel(
            0, 0, cutlass.Float32, False, tile, (1, 1), True, False
        )
        a, b = fake(cutlass.Int8, MN_MAJOR), fake(cutlass.BFloat16, K_MAJOR)
        return kernel, (a, None, b, fake(cutlass.BFloat16, MN_MAJOR), CLUSTERS, stream())

    def problem() -> Problem:
        m, n, depth = 256, 256, 192
        a = torch.randint(-128, 128, (depth, m), dtype=torch.int8)
        b = torch.randn(n, depth).bfloat16()
        c = torch.zeros(1, n, m, dtype=torch.bfloat16).permute(2, 1, 0)
        arguments = [Tensor.of(a.T[:, :, None], "a"), None, Tensor.of(b[:, :, None], "b")]
        arguments.append(Tensor.of(c, "c", initialised=False))
        return _product(arguments, c, a.T.double(), b.double(), "bf16")

    return Variant("mixed_input_gemm/mixed_input_gemm.py", build, problem)


# 4. Attention


def attention(element: str, *, keys: int, head_dim: int = 64) -> Variant:
    """Forward attention of two heads and one request; P is written to TMEM and multiplied there."""
    queries, heads, batch = 256, 2, 1
    dsl, dtype = ELEMENTS[element].dsl, ELEMENTS[element].torch

    def build(module: ModuleType) -> tuple[Any, tuple[Any, ...]]:
        mask = module.fmha_utils.MaskEnum.RESIDUAL_MASK
        kernel = module.BlackwellFusedMultiHeadAttentionForward(
            cutlass.Float32, cutlass.Float32, (128, 128), head_dim, False, mask, False, False
        )

        @cute.jit  # type: ignore[untyped-decorator]
        def call(  # type: ignore[no-untyped-def]  # noqa: PLR0917 - TVM-FFI takes no bundles
            q, k, v, o, lse, count: cutlass.Int32, base_2: cutlass.Float32, base_e: cutlass.Float32,
            output: cutlass.Float32, stream,
        ):  # fmt: skip
            sizes = [cutlass.Int32(x) for x in (batch, queries, queries)]
            sizes += [count, *(cutlass.Int32(x) for x in (heads, heads, head_dim, head_dim))]
            kernel(
                q, k, v, o, tuple(sizes), None, None, lse, None, base_2, base_e, output,
                None, None, None, None, None, stream, False,
            )  # fmt: skip

        tensors = [fake(dsl, (4, 3, 2, 1, 0), head_dim) for _ in range(4)]
        lse = fake(cutlass.Float32, (3, 2, 1, 0), 1)
        factors = [cutlass.Float32(x) for x in _factors(head_dim)]
        return call, (*tensors, lse, cutlass.Int32(keys), *factors, stream())

    def problem() -> Problem:
        shapes = [(batch, n, heads, 1, head_dim) for n in (queries, keys, keys)]
        q, k, v = (torch.randn(shape).to(dtype) for shape in shapes)
        out = torch.zeros(shapes[0], dtype=dtype)
        lse = torch.zeros(batch, queries, heads, 1)
        scores = torch.einsum("bqhrd,bkhrd->bqhrk", q.double(), k.double()) / math.sqrt(head_dim)
        weights = scores.softmax(-1)
        exact = torch.einsum("bqhrk,bkhrd->bqhrd", weights, v.double())
        size = torch.einsum("bqhrk,bkhrd->bqhrd", weights, v.double().abs())
        named = {"q": q, "k": k, "v": v}
        arguments: list[Any] = [Tensor.of(x, name) for name, x in named.items()]
        written = {"out": out, "lse": lse}
        arguments += [Tensor.of(x, n, initialised=False) for n, x in written.items()]
        # P and the output are rounded to the element's format, P against a power of two above it.
        allowed = 4 * ELEMENTS[element].epsilon * size
        return Problem([*arguments, keys, *_factors(head_dim)], out, exact, allowed)

    return Variant("attention/fmha/fmha.py", build, problem)


def _factors(head_dim: int) -> tuple[float, float, float]:
    """The factors of scores (base 2), of scores, and of the output."""
    scale = 1 / math.sqrt(head_dim)
    return scale * math.log2(math.e), scale, 1.0


# 5. Running and judging

VARIANTS = {
    "mxf8": block_scaled("e4m3", "ue8m0", 32, out="f32"),
    "mxf8-2cta": block_scaled("e4m3", "ue8m0", 32, out="f16", two_ctas=True, n=256),
    "mxf4": block_scaled("e2m1", "ue8m0", 32, out="f16"),
    "nvf4": block_scaled("e2m1", "ue4m3", 16, out="f16"),
    "nvf4-2cta": block_scaled("e2m1", "ue4m3", 16, out="f16", two_ctas=True),
    "blockwise-e4m3": blockwise(),
    "mixed-int8-bf16": mixed_input(),
    "attention-f16": attention("f16", keys=200),
}


def module_of(checkout: Path, file: str) -> ModuleType:
    """The example's module; it finds its neighbours by the folder's own names."""
    path = checkout / FOLDER / file
    if not path.is_file():
        raise SystemExit(f"--cutlass: there is no {path}")
    for folder in (checkout / ROOT, path.parent):
        sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def compile_variant(module: ModuleType, variant: Variant) -> LoadedProgram:
    """The variant's program, for ``sm_100a``."""
    kernel, arguments = variant.build(module)
    options = "--enable-tvm-ffi --gpu-arch sm_100a --generate-line-info --keep-ptx"
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = cute.compile(kernel, *arguments, options=f"{options} --dump-dir={folder}")
        return load(compiled.__ptx__, compiled.dump_to_object("kernel"))


def run(program: LoadedProgram, variant: Variant, policy: Policy, checks: Checks) -> Figures:
    """Run the variant on random data; ValueError if an element is off by more than allowed."""
    problem = variant.problem()
    started = time.perf_counter()
    result = launch(program, problem.arguments, policy=policy, checks=checks)
    seconds = time.perf_counter() - started
    off = (problem.out.double() - problem.exact).abs() / problem.allowed
    worst = float(off.nan_to_num(nan=float("inf")).max())
    if worst > 1:
        raise ValueError(f"an element is off by {worst:.3g} times what is allowed")
    return Figures(worst, result.warp_instructions, seconds)


def parsed() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cutlass", type=Path, required=True, help="checkout of NVIDIA/cutlass")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="default: all")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="default: fair")
    parser.add_argument("--seed", type=int, default=0, help="of data and policies; default 0")
    parser.add_argument(
        "--checks", action="append", choices=(*PRESETS, *CHECKS), help="default: the usual ones"
    )
    return parser.parse_args()


def main() -> None:
    """Run what was asked for and print a line for each run; the exit status says if all is well."""
    asked, wrong = parsed(), 0
    torch.set_num_threads(1)
    checks = Checks.of(*asked.checks) if asked.checks else Checks()
    for name in asked.variant or VARIANTS:
        variant = VARIANTS[name]
        program = compile_variant(module_of(asked.cutlass, variant.file), variant)
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
