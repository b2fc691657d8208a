"""wgmma against a Hopper GPU, bit for bit, where the machine has one: 1.1 million sums."""

from __future__ import annotations

import dataclasses

import pytest

from tests.simulator.isa.gpu import Gpu
from tests.simulator.isa.test_warpgroup import FORMS, IMAGE_BYTES, THREADS, Product

SEEDS = 4
ROUNDED_TWICE = 2.0**-10
"""The part of f16 sums of f16 operands that may differ, by one unit in the last place."""


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    device = Gpu.open()
    if device is None or device.target != "sm_90a":
        pytest.skip("no Hopper GPU on this machine")
    return device


WIDE = [dataclasses.replace(form, n=256) for form in FORMS if form.d == "f32"]


@pytest.mark.parametrize("form", [*FORMS, *WIDE], ids=lambda f: f"{f.mnemonic()[32:]}")
def test_products_on_gpu(gpu, form):
    for seed in range(SEEDS):
        product = Product(form, seed)
        given = {name: array.copy() for name, array in product.arrays.items()}
        gpu.launch(product.text(gpu.target), list(given.values()), THREADS, IMAGE_BYTES)
        product.run(accumulation="hopper")
        differ = given["d"].view("u1") != product.arrays["d"].view("u1")
        if form.d == "f16" and form.a.storage_bits == 16:
            assert differ.mean() <= ROUNDED_TWICE
        else:
            assert not differ.any(), f"seed {seed}: {differ.sum()} bytes of {differ.size} differ"
