"""Mutants of synchronisation: what is changed, that the text stays PTX, what the change does."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from conformance.kernel import UsageError, load_kernel
from mutation.ptx import Mutation, mutants
from simulator.checks import Checks
from simulator.errors import ProgramError
from simulator.launch import Extent, Tensor, launch_kernel
from tests.simulator.ptx_text import module

# Warp 0 stores, fences and arrives; warp 1 waits and reads; one line for each statement.
BODY = """mov.b32 %r3, smem;
setp.ne.u32 %p1, %t2, 0; @%p1 bra READY;
mbarrier.init.shared.b64 [%r3], 32;
READY: bar.sync 1, 64;
setp.ge.u32 %p0, %t2, 32; @%p0 bra READ;
st.shared.b32 [%r3+64], 5;
fence.proxy.async.shared::cta;
mbarrier.arrive.shared.b64 _, [%r3];
bra DONE;
READ:
{
.reg .pred P1;
LAB_WAIT:
mbarrier.try_wait.parity.shared.b64 P1, [%r3], 0, 10000000;
@P1 bra.uni OVER;
bra.uni LAB_WAIT;
OVER:
}
ld.shared.b32 %r1, [%r3+64];
ld.param.u64 %rd1, [out]; st.global.b32 [%rd1], %r1;
DONE: bar.sync 1, 64;"""
TEXT = module(BODY, [".param .u64 out"])


def launched(text: str, **options) -> int:
    out = np.zeros(1, np.uint32)
    launch_kernel(
        text, Extent(block=(64, 1, 1), dynamic_shared_bytes=128), [Tensor.of(out, "out")], **options
    )
    return int(out[0])


def test_each_statement_is_removed_and_altered_where_it_can_be():
    found = [mutant.id for mutant in mutants(TEXT)]
    assert found == [
        "init-1-count", "bar-1-remove", "bar-1-count", "fence-1-remove", "arrive-1-remove",
        "arrive-1-twice", "wait-1-remove", "wait-1-parity", "bar-2-remove", "bar-2-count",
    ]  # fmt: skip


def test_a_mutant_changes_its_line_alone_and_names_both_texts():
    lines = TEXT.split("\n")
    for mutant in mutants(TEXT):
        changed = Mutation(mutant.id)(TEXT).split("\n")
        different = [n for n, (a, b) in enumerate(zip(lines, changed, strict=True), 1) if a != b]
        assert different == [mutant.line]
        assert (lines[mutant.line - 1], changed[mutant.line - 1]) == (mutant.before, mutant.after)


def test_what_a_mutant_is_killed_by():
    """Each runs; the fence alone does nothing that the simulator's usual run shows."""
    assert launched(TEXT, checks=Checks(races=True)) == 5
    ends = Counter()
    for mutant in mutants(TEXT):
        try:
            value = launched(Mutation(mutant.id)(TEXT), checks=Checks(races=True))
        except ProgramError as error:
            ends[mutant.kind, type(error).__name__] += 1
        else:
            ends[mutant.kind, value] += 1
    assert ends["fence", 5] == 1
    assert ends["wait", "DataRace"] == 1
    assert ends["wait", "Deadlock"] == 1  # of the other parity: warp 0 has arrived before
    assert ends["init", "Deadlock"] == 1
    assert not [key for key in ends if key[0] in ("init", "arrive", "wait") and key[1] == 5]


@pytest.mark.parametrize(
    ("line", "ids", "after"),
    [
        (
            "mbarrier.arrive.expect_tx.shared.b64 _, [%r4], %r5;",
            ["expect_tx-1-remove", "expect_tx-1-bytes", "expect_tx-1-no_tx"],
            "mbarrier.arrive.shared.b64 _, [%r4];",
        ),
        (
            "@%p7 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+8];",
            ["commit-1-remove", "commit-1-twice"],
            " ".join(
                ["@%p7 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"
                 " [%r1+8];"] * 2
            ),
        ),
        ("griddepcontrol.wait;", ["pdl_wait-1-remove"], ""),
        ("tcgen05.wait::ld.sync.aligned;", ["tmem_wait-1-remove"], ""),
        ("barrier.cluster.arrive.relaxed;", ["cluster_arrive-1-remove"], ""),
        ("// mbarrier.arrive.shared.b64 _, [%r1];", [], None),
        ("tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, %p1;", [], None),
    ],
)  # fmt: skip
def test_forms_of_statements(line, ids, after):
    found = list(mutants(line))
    assert [mutant.id for mutant in found] == ids
    assert after is None or found[-1].after == after


def test_a_mutation_that_a_text_does_not_have_leaves_it_alone():
    assert Mutation("wait-9-remove")(TEXT) == TEXT


def test_a_mutant_is_a_kernel():
    kernel = load_kernel("mutant:optimized:wait-1-remove")
    assert kernel.name == "optimized"
    with pytest.raises(UsageError, match="takes no transform"):
        load_kernel("mutant:tests/conformance/fake_kernel.py:healthy:wait-1-remove")
