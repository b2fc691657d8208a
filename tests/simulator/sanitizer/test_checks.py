"""Checks by name and by preset, and what becomes of what they find."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.checks import CHECKS, PRESETS, Checks
from simulator.errors import CheckFailed, DataRace, SimulationError, Trap
from simulator.launch import Extent, Tensor, launch_kernel
from simulator.policy import Policy
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
    switched = {name: True for name in CHECKS if name not in ("bounds", "deadlock")}
    assert Checks.of("all") == Checks(**switched)
    assert Checks.of("initcheck") == Checks()
    assert Checks.of("bounds", "races") == Checks(initialisation=False, races=True)


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


# Presets

TMEM = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], {};\n"
FREE = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 {}, {};\n"
OBJECT = "setp.eq.u32 %p1, %t2, 0; @%p1 mbarrier.init.shared.b64 [%r1+8], 1;\n"
FAULTS = {
    "bounds": "ld.shared.u32 %r2, [%r1+4096];",
    "initialisation": "ld.shared.u32 %r2, [%r1];",
    "races": "st.shared.b32 [%r1], 1;",
    "global_races": None,  # tests/simulator/sanitizer/test_global_race.py: it takes a tensor
    "proxy": None,  # tests/simulator/sanitizer/test_proxy.py: it takes a tensor map
    "grid_order": None,  # tests/simulator/sanitizer/test_grid_order.py: it takes such a launch
    "mbarriers": OBJECT + "bar.sync 0; @%p1 st.shared.u32 [%r1+8], 1;",
    "publication": OBJECT + "mbarrier.test_wait.parity.shared.b64 %p2, [%r1+8], 1;",
    "named_barriers": "bar.arrive 1, 128; bar.arrive 1, 128;",
    "registers": "setp.lt.u32 %p1, %t2, 32; @%p1 bra END; setmaxnreg.dec.sync.aligned.u32 40;",
    "tensor_memory": "setp.ge.u32 %p1, %t2, 32; @%p1 bra END;\n"
    + TMEM.format(32) + TMEM.format(64) + FREE.format(0, 32) + FREE.format(32, 64),
    "tensor_order": "setp.ge.u32 %p1, %t2, 32; @%p1 bra END;\n"
    + TMEM.format(32)
    + "tcgen05.st.sync.aligned.32x32b.x1.b32 [0], {%t2}; tcgen05.wait::st.sync.aligned;\n"
    + "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r3}, [0];\n" + FREE.format(0, 32),
    "deadlock": "setp.lt.u32 %p1, %t2, 32; @%p1 bra END; bar.sync 1, 128;",
}  # fmt: skip
"""For each check a kernel of four warps in which it alone has something to say."""
ERRORS = {"bounds": "OutOfBounds", "initialisation": "Uninitialised", "deadlock": "Deadlock"}


def told(fault: str, checks: Checks) -> set[str]:
    """The checks that complain of the kernel with a fault."""
    body = f"mov.u32 %r1, smem;\n{FAULTS[fault]}\nEND: mov.b32 %r9, 0;"
    extent = Extent(block=(128, 1, 1), dynamic_shared_bytes=64)
    try:
        launch_kernel(module(body), extent, [], checks=checks, policy=Policy("run_to_block"))
    except CheckFailed as error:
        return {finding.check for finding in error.findings}
    except SimulationError as error:
        return {check for check, kind in ERRORS.items() if kind == type(error).__name__}
    return set()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("fault", [name for name, body in FAULTS.items() if body is not None])
def test_a_preset_finds_the_faults_of_its_checks_and_no_others(fault, preset):
    always = {"bounds", "deadlock"}
    expected = {fault} & (always | set(PRESETS[preset]))
    assert told(fault, Checks.of(preset)) == expected


def test_there_is_a_faulty_kernel_for_each_check():
    assert set(FAULTS) == set(CHECKS)


def test_an_error_tells_what_had_been_found_before():
    body = f"mov.u32 %r1, smem;\n{FAULTS['mbarriers']}\n@%p1 trap;"
    with pytest.raises(Trap) as caught:
        launch_kernel(
            module(body), Extent(dynamic_shared_bytes=64), [], checks=Checks.of("synccheck")
        )
    (note,) = caught.value.__notes__
    assert note.startswith("the checks had found before:\nmbarriers: an access other than by")
