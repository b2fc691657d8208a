"""From a specialisation to a kernel that can be launched, on a GPU or on the simulator.

Both run the same compiled object: PTX, and the host function that encodes the tensor map and
launches. The CuTe DSL is imported when something has to be compiled.
"""

from __future__ import annotations

import functools
import hashlib
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import torch

from optimized.cache import Compiled, fetch
from optimized.plan import NUM_SMS, Specialisation

ARCHES = {(10, 0): "sm_100a", (10, 3): "sm_103a"}
CACHE = Path(__file__).parents[1] / ".cache" / "optimized"
KEPT_PROGRAMS = 32  # decoded for the simulator; beyond that the least recently used is dropped
TMA_BYTES = 16  # alignment of bases and strides of query and cache
WORKSPACE_ALIGNMENT = 32

_PREFIX = "kernel"  # of the exported symbols
_ROOT = Path(__file__).parent
_SOURCES = ("plan.py", "compile.py", "common/*.py", "sm100/*.py")

# The host function's tensors, in its order, as the simulator reports them. What `out`, `lse` and
# the workspace hold before a call means nothing.
TENSORS = (
    "query", "kv_cache", "block_tables", "seq_lens", "causal_seqs", "out", "lse",
    "workspace_buffer",
)  # fmt: skip
WRITTEN_FIRST = ("out", "lse", "workspace_buffer")


class Device(Protocol):
    """Where a call runs."""

    @property
    def num_sms(self) -> int:
        """Its streaming multiprocessors."""

    @property
    def capability(self) -> tuple[int, int]:
        """Its compute capability."""

    def launch(self, key: Specialisation, arguments: Sequence[Any]) -> None:
        """Launch the kernels of ``key``."""


@dataclass(frozen=True)
class SimulatedDevice:
    """The simulator, for CPU tensors.

    ``policy``, ``seed``, ``checks`` and what ``options`` holds are those of simulator.launch, its
    defaults where None; ``transform`` changes the PTX before it is decoded, and ``on_result`` is
    given the simulator's result.
    """

    num_sms: int = NUM_SMS
    capability: tuple[int, int] = (10, 0)
    policy: str = "fair"
    seed: int = 0
    checks: Any = None
    transform: Callable[[str], str] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    on_result: Callable[[Any], None] | None = None

    def launch(self, key: Specialisation, arguments: Sequence[Any]) -> None:
        """Run the kernels of ``key``."""
        from simulator import launch as simulation

        program = _program(key, ARCHES[self.capability], self.transform)
        tensors = [
            simulation.Tensor.of(tensor, name, initialised=name not in WRITTEN_FIRST)
            for name, tensor in zip(TENSORS, arguments, strict=False)
        ]
        result = simulation.launch(
            program,
            [*tensors, *arguments[len(TENSORS) :]],
            policy=simulation.Policy(self.policy, self.seed),
            checks=self.checks or simulation.Checks(),
            **self.options,
        )
        if self.on_result is not None:
            self.on_result(result)


@dataclass(frozen=True)
class CudaDevice:
    """A GPU of this process; launches go to torch's current stream of it."""

    device: torch.device

    @property
    def num_sms(self) -> int:
        """Its streaming multiprocessors."""
        return torch.cuda.get_device_properties(self.device).multi_processor_count

    @property
    def capability(self) -> tuple[int, int]:
        """Its compute capability."""
        return torch.cuda.get_device_capability(self.device)

    def launch(self, key: Specialisation, arguments: Sequence[Any]) -> None:
        """Launch the kernels of ``key``."""
        function = _function(key, ARCHES[self.capability])
        with torch.cuda.device(self.device):
            function(*arguments)


@functools.lru_cache(KEPT_PROGRAMS)
def _program(key: Specialisation, arch: str, transform: Callable[[str], str] | None) -> Any:
    """The simulator's program of a specialisation."""
    from simulator import launch as simulation

    made = compiled(key, arch)
    ptx = made.ptx if transform is None else transform(made.ptx)
    return simulation.load(ptx, made.host_object, made.entry)


@functools.cache
def _function(key: Specialisation, arch: str) -> Callable[..., None]:
    """The host function of a specialisation, linked into this process."""
    import tvm_ffi
    from cutlass.cute import runtime

    made = compiled(key, arch)
    with tempfile.TemporaryDirectory(prefix="mla-decode-") as folder:
        path = Path(folder) / "host.o"
        path.write_bytes(made.host_object)
        engine = runtime.load_module(str(path), enable_tvm_ffi=True).engine
    function: Callable[..., None] = tvm_ffi.Function.__from_extern_c__(
        engine.lookup(made.entry), keep_alive_object=engine
    )
    return function


@functools.cache
def compiled(key: Specialisation, arch: str = ARCHES[10, 0]) -> Compiled:
    """The compilation of a specialisation for ``arch``, from the cache on disk or made now."""
    facts = {
        "dtype": key.dtype,
        "tile_m": str(key.tile_m),
        "page_size": str(key.page_size),
        "arch": arch,
        "sources": _sources(),
        **_toolchain(),
    }
    return fetch(CACHE, facts, lambda: _compile(key, arch))


def _sources() -> str:
    """A digest of everything here that decides how a compilation comes out."""
    digest = hashlib.sha256()
    for pattern in _SOURCES:
        for path in sorted(_ROOT.glob(pattern)):
            digest.update(f"{path.relative_to(_ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _toolchain() -> dict[str, str]:
    """What else decides it. The host object is machine code for the processor it was made on."""
    import llvmlite.binding as llvm

    return {
        "nvidia-cutlass-dsl": metadata.version("nvidia-cutlass-dsl"),
        "apache-tvm-ffi": metadata.version("apache-tvm-ffi"),
        "host": f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}",
    }


def _compile(key: Specialisation, arch: str) -> Compiled:
    """Compile for ``arch``. No GPU is needed, and no file stays."""
    import cutlass.cute as cute
    from cutlass.cutlass_dsl import CuTeDSL

    from optimized.sm100.config import Config
    from optimized.sm100.decode import decode

    config = Config(key.dtype, key.tile_m, key.page_size)
    with (
        tempfile.TemporaryDirectory(prefix="mla-decode-") as folder,
        warnings.catch_warnings(),
        # A process's first compilation cannot be exported if its target is not the DSL's default,
        # which without a GPU is sm_100a (nvidia-cutlass-dsl 4.8.1).
        mock.patch.object(CuTeDSL._get_dsl().envar, "arch", arch),
    ):
        warnings.simplefilter("ignore")  # those of the DSL are about its own code
        # Lines of the source change no instruction, and let the simulator's reports name them.
        options = f"--enable-tvm-ffi --gpu-arch {arch} --generate-line-info --keep-ptx"
        options += f" --dump-dir {folder}"
        made = cute.compile(decode, config, *_placeholders(config), options=options)
        ptx, host_object = made.__ptx__, made.dump_to_object(_PREFIX)
    entry = f"{_PREFIX}___tvm_ffi_{made.function_name}"
    if not ptx or entry.encode() not in host_object:
        raise RuntimeError(f"the compilation of {made.function_name} has no PTX or no {entry}")
    return Compiled(ptx, host_object, entry)


def _placeholders(config: Any) -> list[Any]:
    """Stand-ins for the arguments of `optimized.sm100.decode.decode`, of no particular size."""
    import cutlass
    from cutlass import Float32, Int32, Int64, cute

    kinds = {
        "float16": cutlass.Float16,
        "bfloat16": cutlass.BFloat16,
        "float8_e4m3fn": cutlass.Float8E4M3FN,
    }
    tensor, compact = cute.runtime.make_fake_tensor, cute.runtime.make_fake_compact_tensor
    size = cute.sym_int
    batch, tokens, heads = size(), size(), size()
    rows = (batch, tokens, heads)

    def stride() -> Any:
        return cute.sym_int64(divisibility=TMA_BYTES // config.element_bytes)

    kind, order = kinds[config.dtype], (3, 2, 1, 0)
    return [
        tensor(kind, (*rows, 576), (stride(), stride(), stride(), 1), assumed_align=TMA_BYTES),
        tensor(
            kind, (size(), config.page_size, 576), (stride(), stride(), 1), assumed_align=TMA_BYTES
        ),
        tensor(Int32, (batch, size()), (cute.sym_int64(), 1)),
        tensor(Int32, (batch,), (1,)),
        tensor(Int32, (batch,), (1,)),
        compact(
            kinds[config.output_dtype], (*rows, 512), stride_order=order, assumed_align=TMA_BYTES
        ),
        compact(Float32, rows, stride_order=order[1:]),
        tensor(cutlass.Int8, (size(),), (1,), assumed_align=WORKSPACE_ALIGNMENT),
        Int64(0),
        *[Int32(1)] * 9,
        *[Float32(1.0)] * 3,
        Int32(0),
        cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True),
    ]
