"""Launch configurations built by hand: what is read, and what is refused."""

from __future__ import annotations

import ctypes

import pytest

from simulator.errors import Unsupported
from simulator.host import abi
from simulator.host.capture import read_launch


def configuration(*attributes):
    array = (abi.LaunchAttribute * len(attributes))()
    for slot, (number, words) in zip(array, attributes, strict=True):
        slot.id = number
        slot.value[: len(words)] = words
    return abi.LaunchConfig(
        grid=(4, 5, 6),
        block=(128, 2, 1),
        dynamic_shared_bytes=1000,
        attributes=array if attributes else None,
        num_attributes=len(attributes),
    )


def read(config, *params):
    buffers = [ctypes.create_string_buffer(data, len(data)) for data in params]
    pointers = (ctypes.c_void_p * len(params))(*map(ctypes.addressof, buffers))
    sizes = [len(data) for data in params]
    return read_launch(config, "k", ctypes.addressof(pointers), sizes)


def test_structures_have_the_sizes_of_the_c_headers():
    sizes = {
        abi.DLTensor: 48,
        abi.AnyView: 16,
        abi.LaunchAttribute: 72,
        abi.LaunchConfig: 56,
    }
    assert {structure: ctypes.sizeof(structure) for structure in sizes} == sizes


def test_extent_and_copies_of_the_parameters():
    launch = read(configuration(), b"\1\2\3\4", b"", b"\5" * 64)
    assert (launch.grid, launch.block, launch.cluster) == ((4, 5, 6), (128, 2, 1), (1, 1, 1))
    assert launch.dynamic_shared_bytes == 1000
    assert launch.params == (b"\1\2\3\4", b"", b"\5" * 64)


def test_attributes_that_change_what_runs_are_read():
    launch = read(configuration((4, (2, 1, 3)), (6, (1,)), (2, (1,)), (8, (9,))))
    assert launch.cluster == (2, 1, 3)
    assert launch.programmatic_serialization
    assert launch.cooperative


def test_attributes_switched_off_are_off():
    launch = read(configuration((6, (0,)), (2, (0,))))
    assert not launch.programmatic_serialization
    assert not launch.cooperative


@pytest.mark.parametrize("number", [7, 11, 999])
def test_unknown_attribute_is_refused(number):
    with pytest.raises(Unsupported, match=f"launch of k: CUDA launch attribute {number}"):
        read(configuration((number, (1,))))
