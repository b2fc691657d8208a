"""Programs that go wrong, one for each way in which a run can end, and the page of their messages.

    python -m tests.simulator.error_cases > docs/simulator/errors.md

``tests/architecture/test_error_messages.py`` runs them and compares with the page, and demands a
message there for each place in the simulator that makes an error.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from simulator import errors
from simulator.checks import Checks
from simulator.errors import SimulationError
from simulator.host.link import HostProgram
from simulator.host.runtime import Call
from simulator.isa.table import TABLE
from simulator.launch import Extent, Tensor, launch_kernel
from simulator.machine import tensor_core, tensor_map, tensor_memory
from simulator.machine.barriers import NamedBarrier
from tests.simulator.block_scale_refusals import scaled_refusals
from tests.simulator.host.test_capture import configuration, read
from tests.simulator.ptx_text import aligned, module, run
from tests.simulator.sanitizer.test_checks import FAULTS
from tests.simulator.test_bulk_copy import load_box, store_box
from tests.simulator.test_bulk_copy import tensor_map as map_bytes
from tests.simulator.warpgroup_refusals import warpgroup_refusals

SHARED = "mov.u32 %r1, smem;\n"
PAIR = {"grid": 2, "cluster": 2}


@dataclass(frozen=True)
class Case:
    """Something that ends in an error of this kind, whose class has this name."""

    kind: str
    provoke: Callable[[], object]

    def message(self) -> str:
        """The whole text of the error. Raises ``AssertionError`` if it is of another kind."""
        try:
            self.provoke()
        except SimulationError as error:
            found, text = type(error).__name__, str(error)
        else:
            found, text = "error", ""
        if found != self.kind:
            raise AssertionError(f"no {self.kind} but {found}: {text}")
        return text


def program(kind: str, body: str, arguments: Any = None, **options: Any) -> Case:
    """A kernel of these statements, run by both executors."""
    return Case(kind, lambda: run(body, arguments() if arguments else None, **options))


def in_shared(kind: str, statements: str, **options: Any) -> Case:
    """The same with 64 bytes of shared memory at ``%r1``."""
    return program(kind, SHARED + statements, **{"shared_bytes": 64, "threads": 1, **options})


# 1. Instructions


def instructions() -> Iterator[Case]:
    """What single instructions refuse."""
    yield program("Trap", "trap;")
    yield program("Trap", "setp.lt.u32 %p1, %lane, 3;\n@%p1 bra.uni L;\nL: mov.u32 %r1, 1;")
    yield program("Trap", "setp.lt.u32 %p1, %lane, 3; @%p1 bra L;\nbar.sync 0;\nL: mov.u32 %r1, 1;")
    yield program("Trap", "setmaxnreg.inc.sync.aligned.u32 44;")
    yield program("Trap", "shfl.sync.idx.b32 %r2, %lane, 8, 31, 0xff;".join(ONLY_EIGHT))
    yield program("Trap", "bar.warp.sync 2;", threads=2)
    yield program("Trap", "mov.u32 %r1, 3; setp.eq.u32 %p1, %lane, 0; selp.u32 %r1, 1, %r1, %p1;"
                  "\nbar.warp.sync %r1;", threads=2)  # fmt: skip
    yield program("Trap", "mov.b64 %rd1, x; cvt.u64.u32 %rd2, %lane; add.u64 %rd1, %rd1, %rd2;\n"
                  "ld.param.u8 %h1, [%rd1];", lambda: {"x": bytes(64)})  # fmt: skip
    yield program("Trap", "ld.param.u32 %r1, [x+8];", lambda: {"x": 5})
    yield program("Trap", "mov.b64 %rd1, x; cvta.param.u64 %rd1, %rd1;\nst.u32 [%rd1], %lane;",
                  lambda: {"x": 5})  # fmt: skip
    yield program(
        "Trap",
        "mov.u32 %r1, 0; LOOP: add.u32 %r1, %r1, 1; bra LOOP;",
        threads=1,
        instruction_limit=2000,
    )
    yield program("Unsupported", "mov.u32 %r1, %clock;")
    yield program("Unsupported", "madc.hi.cc.u32 %r1, %r1, %r1, %r1; add.u32 %r1, %r1;")
    yield program("Unsupported", "bar.warp.sync 0x1f;".join(ONLY_EIGHT).replace("8;", "4;"))
    yield program("Unsupported", "setp.lt.u32 %p1, %lane, 3; @%p1 bra L;\nbarrier.sync 0;\n"
                  "L: mov.u32 %r1, 1;", threads=64)  # fmt: skip


ONLY_EIGHT = ("setp.ge.u32 %p1, %lane, 8;\n@%p1 bra L; ", "\nL: mov.u32 %r1, 1;")
"""What stands before and after a statement that the first eight lanes execute."""


# 2. Memory


def memory() -> Iterator[Case]:
    """What shared, global and distributed shared memory refuse."""
    x = {"x": np.arange(32, dtype=np.uint32)}
    unset = np.arange(32, dtype=np.uint32)
    first, generic = "ld.param.u64 %rd1, [x];\n", "cvta.shared.u64 %rd2, %rd2;"
    yield in_shared("Trap", "ld.shared.u32 %r2, [%r1+2];")
    yield in_shared("OutOfBounds", "st.shared.u32 [%r1+64], %r1;")
    yield in_shared("Uninitialised", "ld.shared.u32 %r2, [%r1];", threads=32)
    remote = "mapa.shared::cluster.u32 %r2, %r1, {};\n"
    yield in_shared("Trap", remote.format(1) + "ld.shared.u32 %r3, [%r2];", **PAIR)
    yield in_shared("Trap", remote.format(2) + "ld.shared::cluster.u32 %r3, [%r2];", **PAIR)
    yield program("Trap", first + "ld.global.u32 %r1, [%rd1+2];", lambda: x)
    yield program("OutOfBounds", first + "ld.global.u32 %r1, [%rd1+128];", lambda: x)
    yield program("OutOfBounds", "mov.u64 %rd1, -64;\nld.u32 %r1, [%rd1];")
    yield program("Uninitialised", first + "ld.global.u32 %r1, [%rd1+16];",
                  lambda: {"x": Tensor.of(unset, "x", initialised=False)})  # fmt: skip
    yield program("Unsupported", f"mov.u64 %rd2, smem; {generic} {first}"
                  "setp.lt.u32 %p1, %lane, 30; selp.b64 %rd1, %rd2, %rd1, %p1;\n"
                  "st.u32 [%rd1], %lane;", lambda: x, shared_bytes=4)  # fmt: skip
    copy = first + "cp.async.{}.shared.global [%r1], [%rd1{}], {};"
    for how, offset, size in (("cg", "", "8"), ("ca", "", "8, 9"), ("ca", "+4", "8")):
        yield in_shared("Trap", copy.format(how, offset, size), arguments=lambda: x)
    elsewhere = copy.replace("%r1", "%r2").format("ca", "", "8")
    yield in_shared("Trap", remote.format(1) + elsewhere, arguments=lambda: x, **PAIR)


# 3. Barriers


def barriers() -> Iterator[Case]:
    """What barriers of every kind refuse."""
    init = "mbarrier.init.shared.b64 [%r1], {};\n"
    for statements, kind in (
        ("mbarrier.arrive.shared.b64 _, [%r1];", "Trap"),
        ("mbarrier.init.shared.b64 [%r1+4], 1;", "Trap"),
        ("mbarrier.init.shared.b64 [%r1+64], 1;", "OutOfBounds"),
        (init.format(0), "ProtocolError"),
        (2 * init.format(1), "ProtocolError"),
        (init.format(3) + "mbarrier.arrive.shared.b64 _, [%r1], 4;", "ProtocolError"),
        (init.format(1) + "mbarrier.expect_tx.shared.b64 [%r1], 1048576;", "ProtocolError"),
        (init.format(1) + "mbarrier.expect_tx.shared.b64 [%r1], 32;", "ProtocolError"),
        (init.format(1) + "W: mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0;\n@!%p1 bra W;",
         "Deadlock"),
    ):  # fmt: skip
        yield in_shared(kind, statements)
    remote = "mapa.shared::cluster.u32 %r2, %r1, 1;\n"
    for statement in ("mbarrier.init.shared.b64 [%r2], 1;",
                      "mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 4;"):  # fmt: skip
        yield in_shared("Trap", init.format(1) + remote + statement, **PAIR)
    cancel = (
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128"
        " [%r2], [%r1];"
    )
    yield in_shared("Trap", remote + cancel, **PAIR)
    for number, count, kind in ((16, 32, "Trap"), (1, 48, "Trap"), ("%lane", 32, "Trap")):
        yield program(kind, f"bar.sync {number}, {count};", threads=64)
    yield program("Trap", "add.u32 %r1, %lane, 32;\nbar.sync 1, %r1;", threads=64)
    two = "setp.lt.u32 %p1, %t2, 32; @%p1 bra A;\nbar.arrive 1, {};\nbra B;\nA: bar.sync 1, 96;\nB:"
    yield program("ProtocolError", two.format(64) + "mov.u32 %r1, 1;", threads=96)
    more = "setp.ge.u32 %p1, %t2, 32; @%p1 bra A;\n{}\nA: mov.u32 %r1, 1;"
    yield program("Deadlock", more.format("bar.sync 3, 64;"), threads=64)
    # Warps come whole, and their number is looked at before: no kernel gets as far as this.
    yield Case("ProtocolError", lambda: NamedBarrier("1", lambda: None).arrive(64, 32))
    for statements in ("barrier.cluster.wait;", "barrier.cluster.arrive;\n" * 2):
        yield program("ProtocolError", statements)


# 4. Launches


def launches() -> Iterator[Case]:
    """What no device would launch."""

    def started(extent: Extent, directives: str = "") -> Case:
        text = module("", directives=directives)
        kind = "Unsupported" if "explicit" in directives else "Trap"
        return Case(kind, lambda: launch_kernel(text, extent, []))

    yield started(Extent(block=(1025, 1, 1)))
    yield started(Extent(grid=(20, 1, 1), cluster=(20, 1, 1)))
    yield started(Extent(grid=(3, 1, 1), cluster=(2, 1, 1)))
    yield started(Extent(dynamic_shared_bytes=232449))
    yield started(Extent(block=(64, 1, 1)), ".reqntid 32")
    yield started(Extent(), ".explicitcluster")


# 5. Bulk copies and their tensor maps


def _loaded(kind: str, change: Callable[[bytearray], None] | None = None, **options: Any) -> Case:
    """The load of a box of 4 rows of 16 bytes, by a map that ``change`` has changed."""
    corner, into = options.pop("corner", (0, 0)), options.pop("into", "%r1")
    what = options.pop("what", lambda array: {"x": array})

    def provoke() -> object:
        array = aligned((8, 16), options.pop("dtype", "uint8"))
        raw = bytearray(map_bytes(array, options.pop("box", (16, 4))))
        if change is not None:
            change(raw)
        body = load_box(corner, 64, into=into)
        return run(body, {"map": bytes(raw), **what(array)}, shared_bytes=256, **options)

    return Case(kind, provoke)


def _flags(clear: int, put: int) -> Callable[[bytearray], None]:
    def change(raw: bytearray) -> None:
        flags = int.from_bytes(raw[8:12], "little") & ~clear | put
        raw[8:12] = flags.to_bytes(4, "little")

    return change


def _stride(raw: bytearray) -> None:
    raw[52] = 1


def _far(raw: bytearray) -> None:
    raw[36:40] = (99).to_bytes(4, "little")


def atomics() -> Iterator[Case]:
    """What atomic operations and remote stores refuse."""
    other = "mapa.shared::cluster.u32 %r2, %r1, 1;\n"
    yield in_shared("Trap", other + "red.shared.add.u32 [%r2], 1;", **PAIR)
    local = ".local .b32 here; mov.b64 %rd1, here; cvta.local.u64 %rd1, %rd1;\n"
    yield program("Trap", local + "red.add.u32 [%rd1], 1;")
    yield program("OutOfBounds", local + "st.local.u32 [%rd1+4], 1;")
    yield program("Uninitialised", local + "ld.local.u32 %r1, [%rd1];")
    store = "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r2], 1, [%r1];"
    yield in_shared("Trap", other + store, **PAIR)
    copy = "mov.b64 %rd1, 4096; cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 8;"
    yield in_shared("Trap", copy)


def bulk_copies() -> Iterator[Case]:
    """What bulk tensor copies refuse."""
    for clear, put in (
        (0, 1 << 2), (0x70, 5 << 4), (0, 1 << 15), (0, 1 << 16), (0, 1 << 19), (0x780, 8 << 7),
        (0x780, 15 << 7),
    ):  # fmt: skip
        yield _loaded("Unsupported", _flags(clear, put))
    yield _loaded("Unsupported", _stride)
    yield _loaded("Unsupported", _flags(0x780, 7 << 7 | 1 << 16), box=(4, 4))
    yield Case("Trap", lambda: tensor_map.decode(map_bytes(aligned((8, 64), "uint8"), (64, 4), 32)))
    yield _loaded("OutOfBounds", _far, corner=(0, 6))
    yield _loaded(
        "OutOfBounds", corner=(0, 8), what=lambda a: {"x": Tensor.of(a, "x", strict=True)}
    )
    yield Case("OutOfBounds", _without_the_tensor)
    yield _loaded("Uninitialised", what=lambda a: {"x": Tensor.of(a, "x", initialised=False)})
    yield _loaded("Trap", into="%r1+64")
    yield _loaded("OutOfBounds", into="%r1+384")
    yield Case("Trap", lambda: tensor_map.shared_chunks(24, 0, 0))
    packed = tensor_map.TensorMap(0, "u4", 1, (8,), (1,), (8,), 0, packing=2)
    yield Case("Trap", lambda: packed.elements((3,)))
    yield Case("Unsupported", _reduction_of_bytes)
    yield Case("Unsupported", lambda: tensor_map._packed([3], 2))
    room = np.zeros(64, np.uint8)
    yield Case("OutOfBounds", lambda: tensor_map.read_shared(room, 0, 128, 0))
    yield Case("Uninitialised", _store_of_nothing)


def _without_the_tensor() -> None:
    array = np.zeros((8, 16), np.uint8)
    raw = bytearray(map_bytes(array, (16, 4)))
    raw[:8] = (4096).to_bytes(8, "little")
    run(load_box((0, 0), 64), {"map": bytes(raw)}, shared_bytes=256)


def _reduction_of_bytes() -> None:
    array = aligned((8, 64), "uint8")
    form = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"
    body = f"{SHARED}mov.u64 %rd1, map; {form} [%rd1, {{0, 0}}], [%r1];"
    run(body, {"map": map_bytes(array, (16, 4)), "x": array}, threads=1, shared_bytes=256)


def _store_of_nothing() -> None:
    y, x = aligned((2, 32), "uint32"), np.zeros(64, np.uint32)
    arguments = {"map": map_bytes(y, (32, 2)), "x": x, "y": y}
    run(store_box((0, 0), 60, wait=""), arguments, shared_bytes=256)


# 6. The tensor core and its memory

VERSION = 1 << 46
F16 = 1 << 4 | 64 >> 3 << 17 | 128 >> 4 << 24
"""Of .kind::f16: float32 accumulator, N 64, M 128."""


def multiplied(
    kind: str,
    *,
    a: int = VERSION,
    shape: int = F16,
    into: int = 0,
    form: str = "cta_group::1.kind::f16",
    words: str = "",
    **options: Any,
) -> Case:
    """One MMA of 64 columns, of descriptors and an accumulator's address as given."""
    group = form[form.index("::") + 2]
    alloc = f"tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r1], 64;\n"
    body = (
        f"{SHARED}{alloc}mov.b64 %rd1, {a}; mov.b64 %rd2, {VERSION}; mov.b32 %r5, {into};\n"
        f"mov.b32 %r6, {shape}; mov.b32 %r7, 1; setp.ne.u32 %p1, %r1, %r1;\n"
        f"setp.ne.u32 %p2, %lane, 0; @%p2 bra END; {options.pop('only', '')}\n"
        f"tcgen05.mma.{form} [%r5], %rd1, %rd2, %r6, {words}%p1;\nEND: mov.b32 %r9, 0;"
    )
    options = {"shared_bytes": 1024, "checks": Checks(initialisation=False), **options}
    return program(kind, body, **options)


def tensor_cores() -> Iterator[Case]:
    """What the tensor core refuses."""
    for bits in (1 << 14, -VERSION, 1 << 49, 1 << 52, 3 << 61):
        yield multiplied("Unsupported", a=VERSION + bits)
    yield multiplied("Unsupported", a=VERSION | 1 << 61)
    for bits in (1, 1 << 30, 1 << 6, 1 << 3, 2 << 4, 3 << 7):
        yield multiplied("Unsupported", shape=F16 | bits)
    yield multiplied("Unsupported", shape=1 << 4 | 5 << 7 | F16, form="cta_group::1.kind::f8f6f4")
    yield multiplied("Unsupported", into=16 << 16)
    yield multiplied("Unsupported", words="{%r7, %r7, %r7, %r7}, ")
    narrow = 1 << 4 | 1 << 16 | 8 >> 3 << 17 | 128 >> 4 << 24
    yield multiplied("Unsupported", shape=narrow, form="cta_group::1.kind::f8f6f4")
    yield multiplied("Trap", shape=1 << 4 | 8 << 17 | 6 << 24)
    low = 1 << 4 | 8 << 17 | 2 << 24
    yield multiplied("Unsupported", shape=low, form="ws.cta_group::1.kind::f16")
    yield multiplied("Trap", form="cta_group::2.kind::f16")
    odd = "mov.u32 %r8, %cluster_ctarank; setp.eq.u32 %p3, %r8, 0; @%p3 bra END;"
    yield multiplied("Trap", form="cta_group::2.kind::f16", only=odd, **PAIR)
    yield Case("Trap", lambda: tensor_core.accumulator_blocks(2, True, 64, 64))
    yield Case("Unsupported", lambda: tensor_core._operand_format("mxf4", 0, "A"))


def block_scales() -> Iterator[Case]:
    """What block-scaled MMAs refuse, and A in tensor memory."""
    return (Case(*refusal) for refusal in scaled_refusals())


def warpgroups() -> Iterator[Case]:
    """What products of warpgroups refuse."""
    return (Case(*refusal) for refusal in warpgroup_refusals())


def tensor_memories() -> Iterator[Case]:
    """What TMEM refuses."""
    alloc = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], {};\n"
    free = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 {}, {};\n"
    give_up = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n"
    load = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r5}}, [{}];\n"
    for statements, kind in (
        (alloc.format(48), "ProtocolError"),
        (alloc.format(32), "ProtocolError"),
        (alloc.format(32) + free.format(0, 64), "ProtocolError"),
        (give_up + alloc.format(32), "ProtocolError"),
        (2 * alloc.format(512), "Deadlock"),
        (load.format(32), "OutOfBounds"),
        (alloc.format(32) + "mov.u32 %r2, 0;\n" + load.format("%r2"), "Uninitialised"),
        (alloc.format(32) + "mov.u32 %r2, 2097152;\n" + load.format("%r2"), "Trap"),
        (alloc.format(32) + load.format("%lane"), "Trap"),
    ):
        yield in_shared(kind, statements, threads=32)
    yield Case("Unsupported", lambda: tensor_memory.register_count("16x32bx2", 1))
    yield Case("Trap", lambda: tensor_memory.register_count("32x32b", 3))


# 7. The PTX text


def texts() -> Iterator[Case]:
    """What the parser cannot read."""
    for text in (
        "\x01", ".version 8.8\n.address_size 32\n", ".version 8.8\nstrange {}\n",
        ".shared .q8 x[4];", ".visible .entry k() .strange\n{ ret; }", ".entry k(.param .q8 x) {}",
        ".entry k()\n{ ret; ) }", ".entry k()\n{ add.u32 %r1, (, 1; }", ".entry k() { A: A: ret; }",
        ".entry k()\n{ .reg .b32 %r<2>; mov.u32 %r1, 09; }", ".entry k()\n{ @%p1 ret; }",
        ".entry k()\n{ .reg .b32 %r<2>; mov.u32 %r1, x; }", ".entry k()\n{ ret;",
        ".entry k(.param .u32 x { }",
        ".entry k(.param .align x .u32 y) {}",
    ):  # fmt: skip
        yield Case("Unsupported", lambda text=text: launch_kernel(text, Extent(), []))


# 8. The host


def hosts() -> Iterator[Case]:
    """What the simulated runtime refuses."""
    call = Call({}, lambda launch: None, ["k"])
    value = (ctypes.c_int32 * 1)()
    yield Case("HostError", lambda: call.launch(None, 1, 0))
    yield Case("HostError", lambda: _host_object("ret i32 7").call([], {}, lambda launch: None))
    yield Case("Unsupported", lambda: call.device_get_attribute(value, 12345, 0))
    yield Case("Unsupported", lambda: call.kernel_get_attribute(value, 9, 1, 0))
    yield Case("Unsupported", lambda: read(configuration((7, (1,)))))
    yield Case(
        "Unsupported",
        lambda: _host_object("%1 = call i32 @_cudaMalloc(ptr %args)\nret i32 %1"),
    )


def _host_object(statements: str) -> HostProgram:
    """A host object whose function consists of these statements."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    text = (
        "declare i32 @_cudaMalloc(ptr)\ndefine i32 "
        '@"x__tvm_ffi_f"(ptr %self, ptr %args, i32 %count, ptr %result) {\n' + statements + "\n}"
    )
    return HostProgram.load(machine.emit_object(llvm.parse_assembly(text)))


# 9. Checks, and what is our own fault


def checks() -> Iterator[Case]:
    """A finding of each check that watches."""
    for check, body in FAULTS.items():
        if body is not None and check in Checks().__dict__ and check != "initialisation":
            text = module(f"{SHARED}{body}\nEND: mov.b32 %r9, 0;")
            extent = Extent(block=(128, 1, 1), dynamic_shared_bytes=64)
            yield Case(
                "DataRace" if check == "races" else "CheckFailed",
                lambda text=text, check=check, extent=extent: launch_kernel(
                    text, extent, [], checks=Checks.of(check)
                ),
            )


def bugs() -> Iterator[Case]:
    """An instruction whose function is broken."""
    yield Case("SimulatorBug", _broken)


def _broken() -> None:
    (entry,) = TABLE["trap"]

    def lost(*_: object) -> None:
        raise KeyError("lost")

    fields = {**{name: getattr(entry, name) for name in type(entry).__slots__}, "function": lost}
    TABLE["trap"] = [type(entry)(**fields)]
    try:
        launch_kernel(module("trap;"), Extent(), [], executor="interpreter")
    finally:
        TABLE["trap"] = [entry]


GROUPS = (
    instructions, memory, barriers, launches, atomics, bulk_copies, tensor_cores, block_scales,
    warpgroups, tensor_memories, texts, hosts, checks, bugs,
)  # fmt: skip
CASES = [case for group in GROUPS for case in group()]

HEAD = """# Errors

Every kind of error with the messages that it can bear, as small programs provoke them. Made by
`python -m tests.simulator.error_cases`; the programs stand in `tests/simulator/error_cases.py`.
"""


def page() -> str:
    """The page of all messages, by kind in the order of `simulator.errors`."""
    parts = [HEAD]
    for name, kind in vars(errors).items():
        messages = [case.message() for case in CASES if case.kind == name]
        if messages:
            parts.append(f"## {name}\n\n{' '.join(kind.__doc__.split())}\n")
            parts += [f"```\n{message}\n```\n" for message in messages]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
