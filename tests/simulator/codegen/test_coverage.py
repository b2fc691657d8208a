"""Which table entries have native code: what kernels repeat must, and everything else may not."""

from __future__ import annotations

import pytest

from simulator.codegen.families import translation
from simulator.isa.families import TABLE
from simulator.isa.table import Entry, Kind

REPEATED = [
    "add.f32",
    "add.rn.f32x2",
    "add.s32",
    "add.s64",
    "and.b16",
    "and.b32",
    "and.pred",
    "cvt.rn.bf16x2.f32",
    "cvt.rn.f16x2.f32",
    "cvt.rn.satfinite.e4m3x2.f32",
    "cvt.s64.s32",
    "cvt.u16.u32",
    "cvt.u32.u16",
    "cvt.u32.u64",
    "cvt.u64.u32",
    "cvta.param.u64",
    "cvta.shared.u64",
    "cvta.to.shared::cluster.u64",
    "div.s32",
    "ex2.approx.ftz.f32",
    "fma.rn.f32",
    "fma.rn.f32x2",
    "lg2.approx.ftz.f32",
    "mad.lo.s32",
    "mad.lo.s64",
    "mapa.shared::cluster.u32",
    "max.NaN.f32",
    "max.f32",
    "max.s32",
    "min.s32",
    "min.u32",
    "mov.b16",
    "mov.b32",
    "mov.b64",
    "mov.pred",
    "mov.u32",
    "mul.f32",
    "mul.hi.u32",
    "mul.lo.s32",
    "mul.lo.s64",
    "mul.rn.f32x2",
    "mul.wide.s32",
    "mul.wide.u32",
    "neg.s32",
    "not.pred",
    "or.b32",
    "or.b64",
    "or.pred",
    "rcp.approx.ftz.f32",
    "rcp.rn.f32",
    "selp.b32",
    "selp.f32",
    "setp.eq.b32",
    "setp.ge.s32",
    "setp.gt.s32",
    "setp.gt.u32",
    "setp.le.f32",
    "setp.le.s32",
    "setp.lt.s32",
    "setp.lt.u32",
    "setp.ne.b16",
    "setp.ne.b32",
    "setp.neu.f32",
    "shl.b32",
    "shl.b64",
    "shr.s32",
    "shr.u32",
    "sub.f32",
    "sub.s32",
    "xor.b32",
    "barrier.cluster.arrive.relaxed",
    "barrier.cluster.wait",
    "bar.sync",
    "bfe.s32",
    "cp.async.mbarrier.arrive.noinc.shared.b64",
    "elect.sync",
    "fence.mbarrier_init.release.cluster",
    "fence.proxy.async.shared::cta",
    "griddepcontrol.launch_dependents",
    "griddepcontrol.wait",
    "ld.global.b32",
    "ld.global.v2.b64",
    "ld.param.b32",
    "ld.param.b64",
    "ld.param.b8",
    "ld.param.v2.b32",
    "ld.param.v2.b8",
    "ld.param.v4.b32",
    "ld.shared.b32",
    "ld.shared.v2.b32",
    "ld.shared.v4.b32",
    "mbarrier.arrive.expect_tx.shared.b64",
    "mbarrier.arrive.shared.b64",
    "mbarrier.arrive.shared::cluster.b64",
    "mbarrier.init.shared.b64",
    "mbarrier.init.shared::cta.b64",
    "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64",
    "mbarrier.try_wait.parity.shared.b64",
    "prefetch.tensormap",
    "setmaxnreg.dec.sync.aligned.u32",
    "shfl.sync.bfly.b32",
    "shfl.sync.idx.b32",
    "st.global.L1::no_allocate.v4.b64",
    "st.global.b16",
    "st.global.b32",
    "st.global.v2.b32",
    "st.shared.b32",
    "st.shared.v4.b32",
    "tcgen05.ld.sync.aligned.32x32b.x16.b32",
    "tcgen05.ld.sync.aligned.32x32b.x32.b32",
    "tcgen05.ld.sync.aligned.32x32b.x4.b32",
    "tcgen05.st.sync.aligned.32x32b.x16.b32",
    "tcgen05.st.sync.aligned.32x32b.x32.b32",
    "tcgen05.st.sync.aligned.32x32b.x4.b32",
    "tcgen05.wait::ld.sync.aligned",
    "tcgen05.wait::st.sync.aligned",
    "vote.sync.all.pred",
    "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
    ".cta_group::2",
    "cp.async.ca.shared.global",
    "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64",
    "tcgen05.mma.cta_group::2.kind::f16",
    "tcgen05.mma.cta_group::2.kind::f8f6f4",
    "tcgen05.mma.ws.cta_group::1.kind::f8f6f4",
]
"""What the split-KV and combine kernels of tokenspeed-mla 2.0.4 use, less set-up."""


@pytest.mark.parametrize("mnemonic", REPEATED)
def test_what_kernels_repeat_is_native(mnemonic: str) -> None:
    entries = [entry for entry in TABLE[mnemonic] if not _has_a_in_tmem(entry)]
    assert entries
    assert all(translation(entry) for entry in entries)


def _has_a_in_tmem(entry: Entry) -> bool:
    """Whether this is an MMA whose operand A lies in TMEM, which those kernels do not use."""
    return entry.mnemonic.startswith("tcgen05.mma") and entry.operands[1].form == "address"


def test_most_of_the_table_needs_no_translation() -> None:
    """Some of each kind is native and some is not; control flow is the driver's."""
    counts = {kind: [0, 0] for kind in Kind}
    for entries in TABLE.values():
        for entry in entries:
            counts[entry.kind][translation(entry) is not None] += 1
    assert counts[Kind.BRANCH][1] == counts[Kind.EXIT][1] == 0
    assert all(counts[kind][1] > 20 for kind in (Kind.PURE, Kind.EFFECT, Kind.WAIT))
