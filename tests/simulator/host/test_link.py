"""A real exported host object runs here: what it launches, what it refuses, what it needs."""

from __future__ import annotations

import gc
import struct
import threading
import weakref

import llvmlite.binding as llvm
import pytest

from simulator.errors import HostError, Unsupported
from simulator.host.link import HostProgram
from simulator.host.tensor import Tensor

SCALE_SIZES = (16, 16, 4)
FILL_SIZES = (16, 4)


@pytest.fixture
def scale(scale_object):
    return HostProgram.load(scale_object.object_bytes)


@pytest.fixture
def fill(fill_object):
    return HostProgram.load(fill_object.object_bytes)


def scale_arguments(vector, length=100):
    src, dst = (Tensor.of(vector(length), name) for name in ("src", "dst"))
    return [src, dst, 2.5]


def launches_of(program, kernel, sizes, arguments):
    launches = []
    program.call(arguments, {kernel: sizes}, launches.append)
    return launches


def test_launch_has_the_extent_and_the_parameters_of_the_call(scale, scale_object, vector):
    src, dst, factor = scale_arguments(vector)
    (launch,) = launches_of(scale, scale_object.kernel, SCALE_SIZES, [src, dst, factor])
    assert launch.kernel == scale_object.kernel
    assert (launch.grid, launch.block, launch.cluster) == ((4, 1, 1), (32, 1, 1), (1, 1, 1))
    assert launch.dynamic_shared_bytes == 0
    assert not launch.programmatic_serialization
    assert not launch.cooperative
    assert struct.unpack("<Qi", launch.params[0][:12]) == (src.pointer, 100)
    assert struct.unpack("<Qi", launch.params[1][:12]) == (dst.pointer, 100)
    assert struct.unpack("<f", launch.params[2]) == (2.5,)


def test_cluster_dimensions_are_read_from_the_launch_attributes(fill, fill_object, vector):
    arguments = [Tensor.of(vector(128, "int32"), "dst"), -7]
    (launch,) = launches_of(fill, fill_object.kernel, FILL_SIZES, arguments)
    assert (launch.grid, launch.block, launch.cluster) == ((2, 2, 3), (64, 1, 1), (1, 2, 1))
    assert struct.unpack("<i", launch.params[1]) == (-7,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: {0: Tensor.of(v(100, "int32"), "src")}, "argument #0.*expected dtype=float32"),
        (lambda v: {1: Tensor.of(v(50), "dst")}, "dst.shape\\[0\\].*expected to match src"),
        (lambda v: {1: Tensor.of(v(101)[1:], "dst")}, "Misaligned.*alignment=16 bytes"),
        (lambda v: {0: None}, "argument #0.*expected Tensor"),
    ],
    ids=["dtype", "shape", "alignment", "missing"],
)
def test_refusal_carries_the_host_functions_own_message(
    scale, scale_object, vector, change, message
):
    arguments = scale_arguments(vector)
    for position, value in change(vector).items():
        arguments[position] = value
    with pytest.raises(HostError, match=message):
        launches_of(scale, scale_object.kernel, SCALE_SIZES, arguments)
    assert launches_of(scale, scale_object.kernel, SCALE_SIZES, scale_arguments(vector))


def test_argument_of_a_foreign_type_is_refused(scale, scale_object, vector):
    arguments = [*scale_arguments(vector)[:2], "2.5"]
    with pytest.raises(TypeError, match="argument 2 of type str"):
        launches_of(scale, scale_object.kernel, SCALE_SIZES, arguments)


def test_kernel_that_the_ptx_lacks_is_refused(scale, scale_object, vector):
    with pytest.raises(HostError, match=f"{scale_object.kernel}.*not in the PTX.*another"):
        launches_of(scale, "another", SCALE_SIZES, scale_arguments(vector))


@pytest.mark.parametrize("error", [KeyError("stop"), KeyboardInterrupt()], ids=repr)
def test_exception_of_a_launch_reaches_the_caller(scale, scale_object, vector, error):
    def fail(_launch):
        raise error

    with pytest.raises(type(error)) as caught:
        scale.call(scale_arguments(vector), {scale_object.kernel: SCALE_SIZES}, fail)
    assert caught.value is error
    assert launches_of(scale, scale_object.kernel, SCALE_SIZES, scale_arguments(vector))


def test_objects_with_the_same_symbols_do_not_disturb_each_other(
    scale, scale_object, fill, fill_object, vector
):
    again = HostProgram.load(scale_object.object_bytes)
    fill_arguments = [Tensor.of(vector(64, "int32"), "dst"), 1]
    for length in (32, 33):
        for program in (scale, again):
            (launch,) = launches_of(
                program, scale_object.kernel, SCALE_SIZES, scale_arguments(vector, length)
            )
            assert (launch.kernel, launch.grid[0]) == (scale_object.kernel, length - 31)
        (launch,) = launches_of(fill, fill_object.kernel, FILL_SIZES, fill_arguments)
        assert launch.kernel == fill_object.kernel


def test_call_from_within_a_launch_nests(scale, scale_object, fill, fill_object, vector):
    inner, outer = [], []

    def nest(launch):
        arguments = [Tensor.of(vector(64, "int32"), "dst"), 1]
        inner.extend(launches_of(fill, fill_object.kernel, FILL_SIZES, arguments))
        outer.append(launch)

    scale.call(scale_arguments(vector), {scale_object.kernel: SCALE_SIZES}, nest)
    assert [launch.kernel for launch in inner + outer] == [fill_object.kernel, scale_object.kernel]


def test_calls_from_two_threads_take_turns(scale, scale_object, vector):
    inside, overlaps = [], []
    first_is_in, release = threading.Event(), threading.Event()

    def slow(launch):
        inside.append(launch)
        overlaps.append(len(inside))
        first_is_in.set()
        release.wait(10)
        inside.pop()

    def call():
        scale.call(scale_arguments(vector), {scale_object.kernel: SCALE_SIZES}, slow)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert first_is_in.wait(10)
    threads[1].join(0.2)
    release.set()
    for thread in threads:
        thread.join(10)
    assert overlaps == [1, 1]


def test_program_is_freed_and_leaves_others_working(scale_object, fill, fill_object, vector):
    program = HostProgram.load(scale_object.object_bytes)
    launches_of(program, scale_object.kernel, SCALE_SIZES, scale_arguments(vector))
    gone = weakref.ref(program)
    del program
    gc.collect()
    assert gone() is None
    arguments = [Tensor.of(vector(64, "int32"), "dst"), 1]
    assert launches_of(fill, fill_object.kernel, FILL_SIZES, arguments)


def test_entry_is_found_by_name_or_alone(scale_object):
    found = HostProgram.load(scale_object.object_bytes).entry
    assert found.startswith("ours___tvm_ffi_")
    assert HostProgram.load(scale_object.object_bytes, found).entry == found
    with pytest.raises(
        ValueError, match=r"entry nowhere: the host object exports.*ours___tvm_ffi_"
    ):
        HostProgram.load(scale_object.object_bytes, "nowhere")


def assemble(llvm_ir: str) -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    return machine.emit_object(llvm.parse_assembly(llvm_ir))


def test_unknown_runtime_symbol_is_named_before_anything_runs():
    needs_more = assemble(
        """
        declare i32 @_cudaMalloc(ptr, i64)
        declare i32 @_cudaGetDevice(ptr)
        define i32 @"x__tvm_ffi_f"(ptr %self, ptr %args, i32 %count, ptr %result) {
          %1 = call i32 @_cudaGetDevice(ptr %args)
          %2 = call i32 @_cudaMalloc(ptr %args, i64 16)
          ret i32 %2
        }
        """
    )
    with pytest.raises(Unsupported, match=r"^the host object needs _cudaMalloc$"):
        HostProgram.load(needs_more)


def test_unknown_device_attribute_is_named():
    asks = assemble(
        """
        declare i32 @_cudaDeviceGetAttribute(ptr, i32, i32)
        define i32 @"x__tvm_ffi_f"(ptr %self, ptr %args, i32 %count, ptr %result) {
          %value = alloca i32
          %1 = call i32 @_cudaDeviceGetAttribute(ptr %value, i32 12345, i32 0)
          ret i32 %1
        }
        """
    )
    with pytest.raises(Unsupported, match="device attribute 12345"):
        HostProgram.load(asks).call([], {}, lambda launch: None)


def test_failure_without_a_message_is_still_an_error():
    fails = assemble(
        """
        define i32 @"x__tvm_ffi_f"(ptr %self, ptr %args, i32 %count, ptr %result) {
          ret i32 -1
        }
        """
    )
    with pytest.raises(HostError, match="returned -1 without a reason"):
        HostProgram.load(fails).call([], {}, lambda launch: None)


@pytest.mark.parametrize("cut", [0, 10, 64, -1000], ids=str)
def test_what_is_not_a_whole_object_is_refused(scale_object, cut):
    with pytest.raises(ValueError, match="not a complete ELF object"):
        HostProgram.load(scale_object.object_bytes[:cut])
