"""Checks by name and by preset, and what becomes of what they find."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.checks import CHECKS, PRESETS, Checks
from simulator.errors import CheckFailed, DataRace
from simulator.launch import Extent, Tensor, launch_kernel
from tests.simulator.ptx_text import module, store

RACY = module(
    "mov.b32 %r3, smem; st.shared.b32 [%r3], %t2; st.shared.b32 [%r3+4], %t2;" + store("%t2"),
    [".param .u64 out"],
)
RACE = (
    "races: nothing orders two accesses to shared memory\n"
    "  write by warp 1 of cta 0 (kernel k, PTX line 13: st.shared.b32 [%r3], %t2;)\n"
    "  after write by warp 0 of cta 0 (kernel k, PTX line 13: st.shared.b32 [%r3], %t2;)"
)


def launch(checks: Checks, text: str = RACY):
    out = np.zeros(64, np.uint32)
    extent = Extent(block=(64, 1, 1), dynamic_shared_bytes=64)
    return launch_kernel(text, extent, [Tensor.of(out, "out")], checks=checks)


def split(text: str) -> str:
    """The two stores on a line each."""
    return text.replace("%t2; st.shared", "%t2;\nst.shared")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_stands_for_its_checks(preset):
    assert Checks.of(preset) == Checks.of(*PRESETS[preset])
    assert set(PRESETS[preset]) <= set(CHECKS)


def test_all_has_every_check_that_can_be_switched():
    assert Checks.of("all") == Checks(initialisation=True, races=True, proxy=True)
    assert Checks.of("initcheck") == Checks()
    assert Checks.of("memcheck", "races") == Checks(initialisation=False, races=True)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"check 'race' is none of the checks bounds.*racecheck"):
        Checks.of("memcheck", "race")
    with pytest.raises(ValueError, match="on_finding 'stop' is none of finish, raise, collect"):
        Checks(on_finding="stop")


def test_findings_are_raised_at_the_end_or_at_the_first_or_collected():
    text = split(RACY)
    with pytest.raises(DataRace) as at_end:
        launch(Checks.of("racecheck"), text)
    assert len(at_end.value.findings) == 2
    with pytest.raises(DataRace) as at_first:
        launch(Checks.of("racecheck", on_finding="raise"), text)
    assert len(at_first.value.findings) == 1
    collected = launch(Checks.of("racecheck", on_finding="collect"), text)
    assert [str(f) for f in collected.findings] == [str(f) for f in at_end.value.findings]


def test_the_message_of_a_race():
    with pytest.raises(CheckFailed) as caught:
        launch(Checks.of("races"), split(RACY))
    assert str(caught.value.findings[0]) == RACE


def test_native_code_refuses_checks_that_watch():
    with pytest.raises(ValueError, match="races and proxy are found by executor 'interpreter'"):
        launch_kernel(RACY, Extent(), [0], checks=Checks.of("all"), executor="native")
