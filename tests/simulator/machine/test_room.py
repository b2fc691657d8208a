"""Memory of the machine: what a launch took is given back when the launch is over."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from simulator.launch import Extent, launch_kernel
from simulator.machine.cluster import Cluster, Cta
from simulator.machine.room import room
from tests.simulator.ptx_text import module

KERNEL = """mov.u32 %r1, smem; setp.ne.u32 %p1, %t2, 0; @%p1 bra MADE;
    mbarrier.init.shared.b64 [%r1], 32; MADE: bar.sync 0;
    st.shared.b32 [%r1+8], %t2; mbarrier.arrive.shared.b64 %rd1, [%r1];"""


def rss_mib() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


@pytest.mark.parametrize(("shape", "value"), [(5, 0), (1 << 16, 0), ((128, 512), 255), (0, 3)])
def test_room_is_filled_and_can_be_written(shape: Any, value: int) -> None:
    array = room(shape, np.uint8, value)
    assert array.shape == np.zeros(shape).shape
    assert (array == value).all()
    array[...] = 7
    assert (array == 7).all()


def test_large_room_goes_back_to_the_system_at_once() -> None:
    before = rss_mib()
    array = room(64 << 20, np.uint8, 1)
    assert rss_mib() > before + 60
    del array
    assert rss_mib() < before + 4


@pytest.mark.parametrize("executor", ["interpreter", "native"])
def test_nothing_of_a_launch_waits_for_a_collection_of_cycles(
    executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[Any] = []
    begin = Cta.__init__

    def noted(self: Cta, *arguments: Any) -> None:
        begin(self, *arguments)
        alive.append(weakref.ref(self.shared))

    def launches() -> int:
        alive.clear()
        gc.collect()
        gc.disable()
        try:
            for _ in range(4):
                extent = Extent((6, 1, 1), (32, 1, 1), (2, 1, 1), 200_000)
                launch_kernel(module(KERNEL), extent, [], executor=executor)
            return sum(ref() is not None for ref in alive)
        finally:
            gc.enable()

    monkeypatch.setattr(Cta, "__init__", noted)
    assert launches() == 0
    monkeypatch.setattr(Cluster, "dismiss", lambda self: None)
    assert launches() > 0
