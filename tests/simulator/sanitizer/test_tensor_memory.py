"""tensor_memory: allocation and deallocation of TMEM, each rule kept and broken."""

from __future__ import annotations

import pytest

from simulator.errors import OutOfBounds, ProtocolError
from simulator.policy import POLICIES, Policy
from tests.simulator.ptx_text import failure
from tests.simulator.sanitizer.faulty import findings, sentence

GROUP = "cta_group::1.sync.aligned"
ALLOC = f"tcgen05.alloc.{GROUP}.shared::cta.b32 [%r1], {{}};\nld.shared.u32 %r{{}}, [%r1];\n"
FREE = f"tcgen05.dealloc.{GROUP}.b32 %r{{}}, {{}};\n"
GIVE_UP = f"tcgen05.relinquish_alloc_permit.{GROUP};\n"
FIRST_WARP = "setp.ge.u32 %p1, %t2, 32; @%p1 bra {0};\n"


def found(body: str, **options) -> list[str]:
    options.setdefault("shared_bytes", 64)
    return findings("tensor_memory", "mov.u32 %r1, smem;\n" + body, **options)


def sentences(body: str, **options) -> list[str]:
    return [sentence(one) for one in found(body, **options)]


def test_one_warp_allocates_and_frees():
    body = ALLOC.format(128, 2) + ALLOC.format(64, 3) + GIVE_UP + FREE.format(3, 64)
    assert sentences(body + FREE.format(2, 128)) == []


def test_a_warp_frees_what_another_has_allocated():
    body = (
        FIRST_WARP.format("B") + ALLOC.format(32, 2) + "B: bar.sync 0;\n"
        + "@!%p1 bra END; ld.shared.u32 %r2, [%r1];\n" + FREE.format(2, 32) + "END: mov.b32 %r9, 0;"
    )  # fmt: skip
    (one,) = found(body, threads=64)
    assert sentence(one) == "TMEM is freed by another warp than the one that allocated it"
    assert "  deallocation by warp 1 of cta 0" in one
    assert "  after allocation by warp 0 of cta 0" in one
    assert sentences(body.replace("@!%p1 bra END", "@%p1 bra END"), threads=64) == []


def test_columns_do_not_grow():
    first = ALLOC.format(32, 2)
    assert sentences(first + ALLOC.format(64, 3) + FREE.format(2, 32) + FREE.format(3, 64)) == [
        "64 columns are allocated after 32: their number must not grow"
    ]
    again = first + FREE.format(2, 32)
    assert sentences(again + again) == []


def test_a_warp_that_is_not_whole():
    body = ALLOC.format(32, 2) + FREE.format(2, 32)
    assert (
        sentences("setp.lt.u32 %p1, %lane, 2; @%p1 ret;\n" + body)
        == ["a warp of which threads have exited allocates or frees TMEM"] * 2
    )
    assert sentences(body) == []


# Two CTAs

PAIR = (ALLOC.format(32, 2) + FREE.format(2, 32)).replace("::1", "::2")


@pytest.mark.parametrize("policy", POLICIES)
def test_both_ctas_of_a_pair_take_part(policy):
    assert sentences(PAIR, grid=2, cluster=2, policy=Policy(policy)) == []


@pytest.mark.parametrize("alone", [0, 1])
def test_one_cta_of_a_pair_alone(alone):
    body = f"mov.u32 %r5, %cluster_ctarank; setp.ne.u32 %p1, %r5, {alone}; @%p1 bra END;\n{PAIR}"
    (one,) = sentences(body + "END: mov.b32 %r9, 0;", grid=2, cluster=2)
    assert (
        one == "tcgen05.alloc or dealloc with .cta_group::2 that only one CTA of the pair executes"
    )


def test_all_instructions_name_one_group():
    body = ALLOC.format(32, 2) + FREE.format(2, 32)
    (one,) = found(body + GIVE_UP.replace("::1", "::2"))
    assert sentence(one) == "the tcgen05 instructions of a kernel name different CTA groups"
    assert "tcgen05.relinquish_alloc_permit.cta_group::2" in one
    assert "after instruction by the program" in one
    assert "tcgen05.alloc.cta_group::1" in one
    assert found(body + GIVE_UP) == []


# What needs no check: it is always an error


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (ALLOC.format(48, 2), ProtocolError, "48 columns; must be a power of two from 32 to 512"),
        (ALLOC.format(16, 2), ProtocolError, "16 columns"),
        (ALLOC.format(32, 2), ProtocolError, "ends with 32 tensor memory columns allocated"),
        (ALLOC.format(32, 2) + FREE.format(2, 64), ProtocolError, "at 0x0; allocated: 32"),
        (GIVE_UP + ALLOC.format(32, 2), ProtocolError, "relinquished its permit"),
        (
            ALLOC.format(32, 2) + "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r5}, [%r2+32];",
            OutOfBounds, "columns [32, 33)",
        ),
    ],
)  # fmt: skip
def test_misuse_that_is_always_an_error(body, kind, text):
    assert text in failure(kind, "mov.u32 %r1, smem;\n" + body, shared_bytes=64).message
