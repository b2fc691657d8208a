"""Mutants by rules: each is one line, of the kind it says, and changes what the line does."""

from __future__ import annotations

from collections import Counter

import pytest

from mutation.operators import TextMutation, change, digest, mutants, sample
from mutation.ptx import Mutation

TEXT = """\
.visible .entry kernel()
{
\tld.param.b32 \t%r1, [kernel_param_0];
\tsetp.lt.s32 \t%p1, %r1, 7;
\t@%p1 bra \t$L__BB0_2;
\tadd.s32 \t%r2, %r1, -1;
\tfma.rn.f32 \t%r3, %r2, 0f40000000, %r1;
\tcvt.rn.bf16x2.f32 %r4, %r3, %r2;
\tshfl.sync.bfly.b32 \t%r5, %r4, 16, 31, -1;
\tst.global.v4.b32 [%rd1+16], {%r2, %r3, %r4, %r5};
\tbar.sync \t%r1, 64;
$L__BB0_2:
\tret;
}
"""


def changed(line: int) -> dict[str, str]:
    """The changes of a line: kind and number -> the line, its blanks as one space."""
    return {
        mutant.id.split("-", 2)[2]: " ".join(mutant.after.split())
        for mutant in mutants(TEXT)
        if mutant.line == line
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (1, {}),
        (3, {"parameter-0": "mov.b32 %r1, 0;"}),
        (4, {"compare-0": "setp.le.s32 %p1, %r1, 7;", "constant-0": "setp.lt.s32 %p1, %r1, 8;"}),
        (5, {"guard-negate": "@!%p1 bra $L__BB0_2;"}),
        (
            6,
            {
                "constant-0": "add.s32 %r2, %r1, 0;",
                "operation-0": "sub.s32 %r2, %r1, -1;",
                "pass-0": "mov.b32 %r2, %r1;",
            },
        ),
        (
            7,
            {
                "constant-0": "fma.rn.f32 %r3, %r2, 0f40800000, %r1;",
                "convert-0": "fma.rz.f32 %r3, %r2, 0f40000000, %r1;",
                "order-0": "fma.rn.f32 %r3, %r2, %r1, 0f40000000;",
                "pass-0": "mov.b32 %r3, %r1;",
            },
        ),
        (
            8,
            {
                "order-0": "cvt.rn.bf16x2.f32 %r4, %r2, %r3;",
                "convert-0": "cvt.rz.bf16x2.f32 %r4, %r3, %r2;",
            },
        ),
        (
            9,
            {
                "constant-0": "shfl.sync.bfly.b32 %r5, %r4, 17, 31, -1;",
                "constant-1": "shfl.sync.bfly.b32 %r5, %r4, 16, 32, -1;",
                "constant-2": "shfl.sync.bfly.b32 %r5, %r4, 16, 31, 0;",
                "shuffle-0": "shfl.sync.down.b32 %r5, %r4, 16, 31, -1;",
                "shuffle-1": "mov.b32 %r5, %r4;",
            },
        ),
        (
            10,
            {
                "address-0": "st.global.v4.b32 [%rd1+32], {%r2, %r3, %r4, %r5};",
                "drop-remove": "",
            },
        ),
        (12, {}),
        (13, {}),
    ],
)
def test_what_becomes_of_a_line(line, expected):
    assert changed(line) == expected


def test_synchronisation_is_among_them():
    assert {"bar-1-remove", "bar-1-count"} <= set(changed(11))


def test_a_mutation_changes_its_line_and_no_other():
    for mutant in mutants(TEXT):
        before, after = TEXT.split("\n"), TextMutation(mutant.id)(TEXT).split("\n")
        unlike = [at for at, pair in enumerate(zip(before, after, strict=True)) if len({*pair}) > 1]
        assert unlike == [mutant.line - 1]
        assert before[mutant.line - 1] == mutant.before


def test_another_compilation_stays_as_it_is():
    first = next(mutants(TEXT))
    other = TEXT.replace("kernel", "other")
    assert TextMutation(first.id)(other) == other


def test_where_the_sources_lie_does_not_matter():
    here, there = (f'.file 1 "/{folder}/kernel.py"\n' + TEXT for folder in ("here", "there"))
    assert digest(here) == digest(there) != digest(here.replace("bar.sync", "bar.arrive"))


def test_an_id_that_the_text_does_not_have_is_refused():
    with pytest.raises(ValueError, match="has no such statement"):
        TextMutation(f"{digest(TEXT)}-L4-nothing-0")(TEXT)


def test_an_id_names_its_rules():
    assert change(f"{digest(TEXT)}-L4-compare-0") == TextMutation(f"{digest(TEXT)}-L4-compare-0")
    assert change("bar-1-remove") == Mutation("bar-1-remove")


def test_a_sample_has_as_many_of_each_kind():
    many = list(mutants(TEXT * 3))
    found = sample(many, 12, seed=5)
    counts = Counter(mutant.kind for mutant in found)
    assert len({mutant.id for mutant in found}) == 12
    assert max(counts.values()) - min(counts.values()) <= 1
    assert found == sample(many, 12, seed=5) != sample(many, 12, seed=6)
    assert len(sample(many, 10**6, seed=5)) == len(many)
