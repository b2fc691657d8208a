"""What an observer is told does not depend on the executor: the same events in the same order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.codegen import image
from simulator.events import Observer
from simulator.launch import Extent, Tensor, launch_kernel
from simulator.policy import POLICIES, Policy
from tests.simulator.codegen.test_random_programs import THREADS, WORDS, Writer
from tests.simulator.ptx_text import module

DATA = np.zeros((2 * THREADS, WORDS), np.uint32)
EVENTS = [name for name in vars(Observer) if not name.startswith("_")]


class Recorder(Observer):
    """Writes down every event, of whatever kind, but for ``turn``, with who acts and where."""

    def __init__(self, log: list[tuple[Any, ...]]) -> None:
        self._log = log
        self._names: dict[int, int] = {}
        self._kept: list[object] = []
        self._warp: Any = None

    def turn(self, warp: Any) -> None:
        self._warp = warp

    def note(self, name: str, arguments: tuple[Any, ...]) -> None:
        where = None if self._warp is None else str(self._warp.cta.cluster.site(self._warp))
        self._log.append((name, where, *map(self._plain, arguments)))

    def _plain(self, value: Any) -> Any:
        """Arrays by their contents, objects by the order in which they appear."""
        if isinstance(value, np.ndarray):
            return value.tolist()
        if value is None or isinstance(value, (int, str, bool)):
            return value
        if id(value) not in self._names:
            self._names[id(value)] = len(self._names)
            self._kept.append(value)
        return type(value).__name__, self._names[id(value)]


def _noting(name: str) -> Any:
    def event(self: Recorder, *arguments: Any) -> None:
        self.note(name, arguments)

    return event


for _name in EVENTS:
    if _name != "turn":
        setattr(Recorder, _name, _noting(_name))


def told(text: str, executor: Any, policy: Policy, grid: int, shared: int) -> list[tuple[Any, ...]]:
    data = DATA  # the same addresses for both executors
    data[...] = np.random.default_rng(3).integers(0, 1 << 32, data.shape, dtype=np.uint32)
    log: list[tuple[Any, ...]] = []
    extent = Extent((grid, 1, 1), (THREADS, 1, 1), (2, 1, 1), shared)
    launch_kernel(text, extent, [Tensor.of(data, "data")], executor=executor, policy=policy,
                  watch=lambda: Recorder(log))  # fmt: skip
    return log


MANY = """
    mov.u32 %r1, smem; mul.wide.u32 %rd2, %idx, 16; ld.param.u64 %rd1, [data];
    add.s64 %rd1, %rd1, %rd2; shl.b32 %r2, %t2, 2; add.u32 %r3, %r1, %r2;
    setp.ne.u32 %p1, %t2, 0; @%p1 bra MADE; mbarrier.init.shared.b64 [%r1+1024], 96;
    fence.mbarrier_init.release.cluster;
MADE: barrier.cluster.arrive; barrier.cluster.wait;
    cp.async.ca.shared.global [%r3], [%rd1], 4;
    cp.async.mbarrier.arrive.noinc.shared.b64 [%r1+1024];
WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r1+1024], 0; @!%p2 bra WAIT;
    ld.shared.b32 %r4, [%r3]; fence.proxy.async; st.global.b32 [%rd1], %r4;
    bar.sync 1; shfl.sync.bfly.b32 %r4, %r4, 1, 31, -1; st.shared.b32 [%r3], %r4;
    cp.async.commit_group; cp.async.wait_group 0;
    setp.lt.u32 %p3, %lane, 9; @%p3 exit;
    bar.sync 2;
"""


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_both_executors_tell_the_same(policy: str) -> None:
    text = module(MANY, [".param .u64 data"])
    expected = told(text, "interpreter", Policy(policy, 5), 2, 2048)
    kinds = {event[0] for event in expected}
    wanted = {"shared_access", "acquire", "release", "opened", "issue", "begin", "fenced", "asked"}
    assert wanted <= kinds
    assert told(text, "native", Policy(policy, 5), 2, 2048) == expected


@pytest.mark.parametrize("seed", range(3))
def test_of_random_programs_too(seed: int) -> None:
    text = Writer(seed).program(10)
    policy = Policy(sorted(POLICIES)[seed % len(POLICIES)], seed)
    expected = told(text, "interpreter", policy, 2, 16 * THREADS)
    assert len(expected) > 20
    assert told(text, "native", policy, 2, 16 * THREADS) == expected


def test_native_code_that_tells_nothing_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "tells", lambda entry: entry.mnemonic != "ld.shared.b32")
    text = module(MANY, [".param .u64 data"])
    expected = told(text, "interpreter", Policy(), 2, 2048)
    assert told(text, "native", Policy(), 2, 2048) != expected
