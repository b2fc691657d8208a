"""Calls that products of warpgroups refuse, for the page of errors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from simulator.isa import warpgroup
from tests.simulator.isa.test_warpgroup import (
    BF16,
    IMAGE_BYTES,
    LATE,
    OVERWRITE,
    THREADS,
    WAITED,
    Form,
    Product,
)
from tests.simulator.ptx_text import run

_FENCE = "wgmma.fence.sync.aligned;"
_OWN_DESCRIPTOR = f"{_FENCE} cvt.u64.u32 %rd50, %lane; add.u64 %rd10, %rd10, %rd50;"
_OWN_SCALE_D = f"{_FENCE} setp.lt.u32 %p1, %lane, 3;"


def warpgroup_refusals() -> Iterator[tuple[str, Callable[[], object]]]:
    """The error's class by name, and what provokes it."""
    for bit in (14, 49):
        yield "Unsupported", functools.partial(warpgroup.descriptor, 1 << bit)
    for old, new in (
        (_FENCE, _OWN_DESCRIPTOR),
        (_FENCE, _OWN_SCALE_D),
        ("%p1, 1, 1", "%p1, 2, 1"),
    ):
        yield "Trap", functools.partial(_changed, Form(8, BF16, BF16), old, new)
    overwritten = OVERWRITE.format(wait="", start=0)
    yield "Trap", functools.partial(_changed, Form(64, BF16, BF16), WAITED, overwritten)


def _changed(form: Form, old: str, new: str) -> object:
    product = Product(form, seed=1)
    body = product.body().replace(old, new)
    options = {"threads": THREADS, "shared_bytes": IMAGE_BYTES, "policy": LATE}
    return run(body, product.arrays, instruction_limit=10**7, **options)
