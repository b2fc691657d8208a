"""Views of numpy and torch memory: pointer, element strides and the allocation below."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from simulator.host.tensor import Tensor


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float16, torch.float32, torch.int32,
              torch.int8, torch.uint8, torch.bool], ids=str
)  # fmt: skip
def test_torch_slice_keeps_its_allocation(dtype):
    whole = torch.zeros(3, 4, 10, dtype=dtype)
    item = whole.element_size()
    tensor = Tensor.of(whole[1:, :, 2:8], "view", strict=True, initialised=False)
    assert tensor.pointer == whole.data_ptr() + (40 + 2) * item
    assert (tensor.shape, tensor.strides) == ((2, 4, 6), (40, 10, 1))
    assert tensor.dtype == str(dtype).removeprefix("torch.")
    assert tensor.item_bytes == item
    assert (tensor.storage_pointer, tensor.storage_bytes) == (whole.data_ptr(), 120 * item)
    assert (tensor.strict, tensor.initialised) == (True, False)


def test_numpy_slice_keeps_its_allocation():
    whole = np.zeros((3, 4, 10), np.int32)
    tensor = Tensor.of(whole[1:, ::-1, 2:8], "view")
    assert tensor.pointer == whole.ctypes.data + (40 + 30 + 2) * 4
    assert (tensor.shape, tensor.strides) == ((2, 4, 6), (40, -10, 1))
    assert (tensor.dtype, tensor.item_bytes) == ("int32", 4)
    assert (tensor.storage_pointer, tensor.storage_bytes) == (whole.ctypes.data, 480)
    assert (tensor.strict, tensor.initialised) == (False, True)


def test_owner_is_kept_alive():
    tensor = Tensor.of(torch.arange(5), "ids")
    assert tensor.owner.tolist() == [0, 1, 2, 3, 4]


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match="tensor q: list is neither"):
        Tensor.of([1, 2], "q")


def test_memory_of_another_device_is_refused():
    with pytest.raises(ValueError, match="tensor q: device meta"):
        Tensor.of(torch.empty(3, device="meta"), "q")


def test_dtype_without_a_code_is_refused():
    with pytest.raises(ValueError, match="tensor q: dtype complex64"):
        Tensor.of(np.zeros(3, np.complex64), "q")


def test_stride_between_elements_is_refused():
    records = np.zeros(4, np.dtype([("a", np.int8), ("b", np.int32)]))
    with pytest.raises(ValueError, match=r"tensor q: strides .* not multiples of 4 bytes"):
        Tensor.of(records["b"], "q")
