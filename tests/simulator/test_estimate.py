"""Classes of instructions, and cycles by hand from the counts of a small kernel."""

import pytest

from simulator.estimate import PIPES, SMS, estimate
from simulator.isa import families
from simulator.profile import CLASSES, Line, Profile, instruction_class
from simulator.traffic import SharedAccess

EXAMPLES = {
    "add.rn.f32x2": "fp32", "fma.rn.f32": "fp32", "mul.rn.bf16x2": "half", "add.f64": "fp64",
    "add.s32": "integer", "lop3.b32": "integer", "max.f32": "integer", "setp.lt.f32": "integer",
    "cvt.rn.satfinite.e4m3x2.f32": "conversion", "ex2.approx.ftz.f32": "special",
    "rcp.rn.f32": "fp32", "mov.b64": "move", "and.pred": "predicate", "bra.uni": "control",
    "ld.param.b32": "parameter", "ld.global.nc.b32": "global", "ld.v4.b32": "global",
    "st.shared.v4.b32": "shared", "ldmatrix.sync.aligned.m8n8.x4.shared.b16": "shared",
    "tcgen05.ld.sync.aligned.32x32b.x32.b32": "tmem", "tcgen05.wait::ld.sync.aligned":
    "synchronisation", "tcgen05.mma.cta_group::2.kind::f8f6f4": "mma", "cp.async.wait_group":
    "synchronisation", "cp.async.cg.shared.global": "cp.async",
    "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes": "tma",
    "tcgen05.commit.cta_group::2.mbarrier::arrive::one.b64": "synchronisation",
    "mbarrier.try_wait.parity.shared.b64": "synchronisation", "shfl.sync.bfly.b32": "warp",
}  # fmt: skip


@pytest.mark.parametrize(("mnemonic", "kind"), EXAMPLES.items())
def test_an_instruction_has_its_class(mnemonic: str, kind: str) -> None:
    assert instruction_class(mnemonic) == kind


def test_every_instruction_of_the_table_has_a_class() -> None:
    assert {instruction_class(mnemonic) for mnemonic in families.TABLE} <= CLASSES.keys()


def line(mnemonic: str, executed: int) -> Line:
    return Line(1, mnemonic, None, mnemonic, executed)


def cycles(profile: Profile, ctas: int = 1) -> dict[str, float]:
    return {entry.pipe.name: entry.cycles for entry in estimate(profile, ctas)}


def test_cycles_are_work_over_throughput() -> None:
    lines = (line("fma.rn.f32x2", 400), line("ex2.approx.ftz.f32", 10), line("add.s32", 20))
    shared = {7: SharedAccess(False, 3, 384, 3, 96, 32.0)}
    moved = {"shared_read_by_tensor_core": 1280, "shared_read": 384, "global_read": 10**9}
    found = cycles(Profile(lines, moved, {}, shared, {"f8f6f4": 163840}))
    assert found == {
        "32-bit floating point": 400 * 64 / 128,
        "special functions": 10 * 32 / 16,
        "32-bit integer and logic": 20 * 32 / 64,
        "shared memory": 96 + 10,
        "tensor core, kind::f8f6f4": 10.0,
        "issue slots": 430 / 4,
    }


def test_work_spreads_over_no_more_sms_than_there_are_ctas_or_sms() -> None:
    profile = Profile((line("add.s32", 148 * 2),), {}, {})
    one, many, more = (cycles(profile, n)["32-bit integer and logic"] for n in (1, 148, 9999))
    assert one == 148
    assert many == more == one / SMS


def test_every_figure_names_its_source() -> None:
    assert all(len(pipe.source) > 20 for pipe in PIPES.values())
