"""Single PTX instructions, in the exact form that the kernels rely on.

Addresses of shared memory are 32-bit integers, those of global memory 64-bit ones. Whatever waits,
signals or touches memory is volatile and clobbers memory, so that the compiler keeps the order in
which it is written; arithmetic is not, so that it may be scheduled. Source: PTX ISA.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from cutlass import Float32, Int32, Int64, Uint32
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import as_numeric

T = TypeVar("T")

_CONSTRAINT = {"f32": "f", "i32": "r", "i64": "l"}


def asm(
    text: str, arguments: Sequence[Any] = (), results: Sequence[Any] = (), *, effect: bool = True
) -> Any:
    """The results of one PTX text, whose operands are $0, $1, ...: results first, then arguments.

    ``results`` are DSL types. None, one value or a tuple comes back, as there are results.
    """
    values = [as_numeric(a).ir_value() for a in arguments]
    types = [r.mlir_type for r in results]
    outputs = [f"={_CONSTRAINT[str(t)]}" for t in types]
    inputs = [_CONSTRAINT[str(v.type)] for v in values]
    constraints = ",".join([*outputs, *inputs, *(["~{memory}"] if effect else [])])
    kind = None if not types else types[0] if len(types) == 1 else _struct(types)
    raw = llvm.inline_asm(kind, values, text, constraints, has_side_effects=effect)
    if len(types) < 2:
        return results[0](raw) if types else None
    parts = [llvm.extractvalue(t, raw, _index(i)) for i, t in enumerate(types)]
    return tuple(r(part) for r, part in zip(results, parts, strict=True))


def _struct(types: Sequence[Any]) -> Any:
    """The type of several results."""
    return ir.Type.parse(f"!llvm.struct<({', '.join(str(t) for t in types)})>")  # type: ignore[attr-defined]


def _index(position: int) -> Any:
    """The place of one of several results."""
    return ir.Attribute.parse(f"array<i64: {position}>")  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Place:
    """An address: a register, and a constant that the instruction adds."""

    base: Int32 | Int64
    offset: int


def _place(address: Any) -> tuple[Any, int]:
    """The register and the constant of an address."""
    return (address.base, address.offset) if isinstance(address, Place) else (address, 0)


def opaque(number: T) -> T:
    """The same integer, as something that the compiler keeps in a register and does not redo."""
    return value("mov.b32 $0, $1;", [number], type(number), effect=True)


def value(text: str, arguments: Sequence[Any], kind: type[T], *, effect: bool = False) -> T:
    """The one result, of a DSL type, of a PTX text; see `asm`."""
    result: T = asm(text, arguments, [kind], effect=effect)
    return result


# 1. Memory


def load_global_int(address: Int64) -> Int32:
    """A 32-bit word of global memory that nobody writes meanwhile."""
    return value("ld.global.nc.b32 $0, [$1];", [address], Int32)


def load_global_float(address: Int64) -> Float32:
    """A float32 of global memory."""
    return value("ld.global.f32 $0, [$1];", [address], Float32, effect=True)


def load_global_float4(address: Int64 | Place) -> tuple[Float32, ...]:
    """Four float32 of global memory, aligned to 16 bytes."""
    base, offset = _place(address)
    text = f"ld.global.v4.f32 {{$0, $1, $2, $3}}, [$4+{offset}];"
    parts: tuple[Float32, ...] = asm(text, [base], [Float32] * 4)
    return parts


def store_global_float(address: Int64, value: Float32) -> None:
    """Write a float32 to global memory."""
    asm("st.global.f32 [$0], $1;", [address, value])


def store_global_words(address: Int64 | Place, words: Sequence[Any]) -> None:
    """Write two or four 32-bit words to global memory, aligned to their size."""
    _store("global", address, words)


def load_shared_float(address: Int32 | Place) -> Float32:
    """A float32 of the CTA's shared memory."""
    base, offset = _place(address)
    return value(f"ld.shared.f32 $0, [$1+{offset}];", [base], Float32, effect=True)


def load_shared_int(address: Int32) -> Int32:
    """A 32-bit word of the CTA's shared memory."""
    return value("ld.shared.b32 $0, [$1];", [address], Int32, effect=True)


def store_shared_float(address: Int32 | Place, value: Float32) -> None:
    """Write a float32 to the CTA's shared memory."""
    base, offset = _place(address)
    asm(f"st.shared.f32 [$0+{offset}], $1;", [base, value])


def store_shared_words(address: Int32, words: Sequence[Any]) -> None:
    """Write four 32-bit words to the CTA's shared memory, aligned to 16 bytes."""
    _store("shared", address, words)


def _store(space: str, address: Any, words: Sequence[Any]) -> None:
    kind = "f32" if isinstance(words[0], Float32) else "b32"
    base, offset = _place(address)
    names = ", ".join(f"${i + 1}" for i in range(len(words)))
    asm(f"st.{space}.v{len(words)}.{kind} [$0+{offset}], {{{names}}};", [base, *words])


def copy_async_16(shared: Int32 | Place, source: Int64 | Place, source_bytes: Int32) -> None:
    """Start a copy of 16 bytes to shared memory: ``source_bytes`` of the source, then zeros."""
    (target, to), (origin, at) = _place(shared), _place(source)
    text = f"cp.async.cg.shared.global [$0+{to}], [$1+{at}], 16, $2;"
    asm(text, [target, origin, source_bytes])


def wait_async_copies() -> None:
    """Wait for this thread's `copy_async_16`."""
    asm("cp.async.wait_all;")


# 2. Barriers


def init_barrier(barrier: Int32, arrivals: int) -> None:
    """Make an mbarrier that completes a phase with every ``arrivals`` arrivals."""
    asm(f"mbarrier.init.shared::cta.b64 [$0], {arrivals};", [barrier])


def wait_barrier(barrier: Int32 | Place, parity: Int32) -> None:
    """Wait until the phase of that parity is complete; acquires in the cluster."""
    base, offset = _place(barrier)
    asm(
        "{\n.reg .pred done;\nRETRY:\n"
        f"mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [$0+{offset}], $1;\n"
        "@done bra DONE;\nbra RETRY;\nDONE:\n}",
        [base, parity],
    )


def arrive(barrier: Int32 | Place) -> None:
    """Arrive at an mbarrier of the CTA; releases in the CTA."""
    base, offset = _place(barrier)
    asm(f"mbarrier.arrive.release.cta.shared::cta.b64 _, [$0+{offset}];", [base])


def arrive_in_cluster(barrier: Int32 | Place) -> None:
    """Arrive at an mbarrier of any CTA of the cluster; releases in the cluster."""
    base, offset = _place(barrier)
    asm(f"mbarrier.arrive.release.cluster.shared::cluster.b64 _, [$0+{offset}];", [base])


def arrive_expecting(barrier: Int32 | Place, num_bytes: int) -> None:
    """Arrive at an mbarrier of any CTA of the cluster; its phase waits for ``num_bytes`` more."""
    base, offset = _place(barrier)
    name = "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64"
    asm(f"{name} _, [$0+{offset}], {num_bytes};", [base])


def in_cta(address: Int32, rank: int) -> Int32:
    """The cluster's address of what lies at ``address`` in the shared memory of CTA ``rank``."""
    return value(f"mapa.shared::cluster.u32 $0, $1, {rank};", [address], Int32)


def sync_threads(barrier: Int32, num_threads: int) -> None:
    """Wait at a named barrier of the CTA for ``num_threads`` threads."""
    asm(f"bar.sync $0, {num_threads};", [barrier])


def sync_warp() -> None:
    """Wait for the warp's lanes, and order their memory accesses."""
    asm("bar.warp.sync 0xffffffff;")


def sync_cluster() -> None:
    """Wait for every thread of the cluster."""
    asm("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;")


def fence_barrier_init() -> None:
    """Show the mbarriers that this thread made to the cluster and to the async proxy."""
    asm("fence.mbarrier_init.release.cluster;")


def fence_async_proxy() -> None:
    """Show this thread's writes to shared memory to the tensor core and to the TMA."""
    asm("fence.proxy.async.shared::cta;")


def wait_for_prerequisite_grids() -> None:
    """Wait until the kernels that this one may overlap with are done and their writes visible."""
    asm("griddepcontrol.wait;")


def launch_dependent_grids() -> None:
    """Let the next kernel start when every CTA has come to here."""
    asm("griddepcontrol.launch_dependents;")


# 3. Arithmetic


def exp2(x: Float32) -> Float32:
    """2 to the ``x``, within 2 ulp; 0 for -inf."""
    return value("ex2.approx.ftz.f32 $0, $1;", [x], Float32)


def log2(x: Float32) -> Float32:
    """The logarithm of ``x`` to the base 2; -inf for 0."""
    return value("lg2.approx.ftz.f32 $0, $1;", [x], Float32)


def reciprocal(x: Float32) -> Float32:
    """1 / ``x``, rounded to nearest."""
    return value("rcp.rn.f32 $0, $1;", [x], Float32)


def max3(a: Float32, b: Float32, c: Float32) -> Float32:
    """The largest of three; a NaN counts only among NaN."""
    return value("max.f32 $0, $1, $2, $3;", [a, b, c], Float32)


def smaller(a: Int32, b: Int32) -> Int32:
    """The smaller of two signed integers."""
    return value("min.s32 $0, $1, $2;", [a, b], Int32)


def larger(a: Int32, b: Int32) -> Int32:
    """The larger of two signed integers."""
    return value("max.s32 $0, $1, $2;", [a, b], Int32)


def divide(a: Int32, b: Int32) -> Int32:
    """The quotient of two integers that are not negative, rounded down."""
    return value("div.u32 $0, $1, $2;", [a, b], Int32)


def quotient(a: Any, power: int) -> Any:
    """The quotient of an integer and a power of two, rounded down; one shift, unlike ``//``."""
    assert power & (power - 1) == 0
    return a >> (power.bit_length() - 1)


def remainder(a: Any, power: int) -> Any:
    """What `quotient` leaves, never negative; one instruction, unlike ``%``."""
    assert power & (power - 1) == 0
    return a & (power - 1)


def shown(x: Float32, mask: Uint32, bit: int) -> Float32:
    """``x`` where a bit of ``mask`` is set, else -inf."""
    text = (
        f"{{\n.reg .b32 m;\nbfe.s32 m, $2, {bit}, 1;\n"  # all ones, or nothing
        "lop3.b32 $0, $1, m, 0xff800000, 0xe2;\n}"  # (x & m) | (-inf & ~m)
    )
    return value(text, [x, mask], Float32)


def low_bits(count: Int32) -> Uint32:
    """A word whose lowest ``count`` bits are set: none below 0, all from 32 on."""
    text = "{\n.reg .b32 n;\nmax.s32 n, $1, 0;\nshl.b32 n, 1, n;\nadd.u32 $0, n, 0xffffffff;\n}"
    return value(text, [count], Uint32)


def pack_half(dtype: str, low: Float32, high: Float32) -> Uint32:
    """Two values rounded to ``dtype``, "float16" or "bfloat16", as one word."""
    kind = {"float16": "f16x2", "bfloat16": "bf16x2"}[dtype]
    return value(f"cvt.rn.{kind}.f32 $0, $2, $1;", [low, high], Uint32)


def pack_e4m3(values: Sequence[Float32]) -> Uint32:
    """Four values rounded to e4m3, saturated, as one word, the first one lowest."""
    text = (
        "{\n.reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;\n"
        "mov.b32 $0, {low, high};\n}"
    )
    return value(text, list(values), Uint32)
