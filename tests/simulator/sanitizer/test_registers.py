"""registers: setmaxnreg by two warpgroups, as it must be and otherwise."""

from __future__ import annotations

import pytest

from simulator.checks import Checks
from simulator.launch import Extent, launch_kernel
from tests.simulator.ptx_text import module
from tests.simulator.sanitizer.faulty import sentence

CAPPED = ".maxnreg 128"


def found(first: str, second: str, *, directives: str = CAPPED, threads: int = 256) -> list[str]:
    """The findings of a kernel whose warps of rank below 4 run ``first``, the others ``second``."""
    body = f"setp.ge.u32 %p1, %t2, 128; @%p1 bra SECOND;\n{first}\nbra END;\nSECOND:\n{second}\n"
    text = module(body + "END: bar.sync 0;", directives=directives)
    checks = Checks(registers=True, on_finding="collect")
    result = launch_kernel(text, Extent(block=(threads, 1, 1)), [], checks=checks)
    assert {finding.check for finding in result.findings} <= {"registers"}
    return [str(finding) for finding in result.findings]


def sentences(*arguments: str, **options) -> list[str]:
    return [sentence(one) for one in found(*arguments, **options)]


DEC, INC = "setmaxnreg.dec.sync.aligned.u32 {};", "setmaxnreg.inc.sync.aligned.u32 {};"
ONE_WARP = "setp.ge.u32 %p2, %t2, 32; @%p2 bra OTHERS;\n{}\nOTHERS: mov.b32 %r9, 0;"


@pytest.mark.parametrize(
    ("directives", "given", "taken"),
    [
        (CAPPED, 40, 216),  # 128 registers a thread: 40 + 216 are twice that
        (".reqntid 256\n.minnctapersm 1", 248, 248),  # all of the SM is theirs
        (".reqntid 256\n.minnctapersm 2", 40, 216),
        ("", 40, 232),  # nobody knows; they fit into the SM
    ],
)
def test_one_warpgroup_gives_what_the_other_takes(directives, given, taken):
    assert sentences(DEC.format(given), INC.format(taken), directives=directives) == []
    assert sentences(DEC.format(given), "", directives=directives) == []


@pytest.mark.parametrize(
    ("directives", "given", "taken", "total", "pool"),
    [
        (CAPPED, 48, 216, 33792, 32768),
        (".reqntid 256\n.minnctapersm 2", 40, 224, 33792, 32768),
    ],
)
def test_more_than_there_is(directives, given, taken, total, pool):
    (one,) = found(DEC.format(given), INC.format(taken), directives=directives)
    assert sentence(one) == (
        f"the warps of a CTA ask for {total} registers and it has {pool}: one of them waits for "
        "good"
    )
    assert INC.format(taken) in one


def test_more_than_an_sm_has():
    (one,) = sentences(
        INC.format(240), INC.format(240), directives="", threads=512
    )  # 12 warps of the second branch
    assert "122880 registers and it has 65536" in one


def test_one_warp_of_a_warpgroup_alone():
    (one,) = found(ONE_WARP.format(DEC.format(40)), "")
    assert sentence(one) == "not all warps of a warpgroup execute this setmaxnreg"
    assert "setmaxnreg.dec by warp 0 of cta 0" in one


def test_each_warp_may_execute_its_own_copy_of_the_instruction():
    body = ONE_WARP.replace("mov.b32 %r9, 0;", "@!%p2 bra DONE; {}\nDONE: mov.b32 %r9, 0;")
    assert sentences(body.format(DEC.format(40), DEC.format(40)), "") == []
    (one,) = sentences(body.format(DEC.format(40), DEC.format(48)), "")
    assert one == (
        "warps of one warpgroup change their registers apart: one by setmaxnreg.dec 40, "
        "one by setmaxnreg.dec 48"
    )


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        (INC.format(96), "setmaxnreg.inc lowers the 128 registers of a thread to 96"),
        (DEC.format(136), "setmaxnreg.dec raises the 128 registers of a thread to 136"),
        (
            DEC.format(64) + "bar.sync 1, 128;\n" + DEC.format(72),
            "setmaxnreg.dec raises the 64 registers of a thread to 72",
        ),
    ],
)
def test_the_wrong_direction(statement, text):
    assert text in sentences(statement, "")
    assert sentences(DEC.format(64), INC.format(128)) == []


def test_a_second_change_before_all_have_made_the_first():
    ahead = DEC.format(64) + "\n{}\n" + DEC.format(40)
    assert sentences(ahead.format("bar.sync 1, 128;"), "") == []
    assert sentences(ahead.format(""), "") == [
        "a warp changes its registers again before another of its warpgroup has made the change "
        "before"
    ]
