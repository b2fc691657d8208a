"""Decoding: table look-up by signature, blocks and their ends, refusals that name every line."""

from __future__ import annotations

import pytest

from simulator.decode import decode
from simulator.errors import Unsupported
from simulator.isa.table import Kind
from simulator.machine import cluster, warp
from simulator.machine.memory_map import PARAM_WINDOW, SHARED_BASE
from simulator.program import (
    Branch,
    Constant,
    Exit,
    FromAddress,
    FromRegister,
    FromSpecial,
    FromVector,
    Goto,
    Operation,
    Program,
    Wait,
)
from simulator.ptx.parser import parse
from tests.simulator.ptx_text import failure, run

REGISTERS = ".reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %rd<9>;"


def program(body: str, *, params: str = "", before: str = "") -> Program:
    """The decoded kernel; its body starts on line 5 of the text."""
    text = f".version 8.8\n{before}\n.entry k({params}) {{\n{REGISTERS}\n{body}\n}}\n"
    return decode(parse(text).kernels["k"])


def operation(statement: str, **options: str) -> Operation:
    (found,) = program(statement, **options).blocks[0].operations
    return found


def refusal(body: str) -> Unsupported:
    with pytest.raises(Unsupported) as caught:
        program(body)
    return caught.value


# 1. What the table lacks


def test_every_unknown_instruction_is_named_with_all_its_lines():
    error = refusal(
        "add.u32 %r1, %r2, %r3;\nfrobnicate.u32 %r1;\nadd.sat.u77 %r1, %r2, %r3;\n"
        + "frobnicate.u32 %r2;\n" * 5
    )
    assert "frobnicate.u32 at PTX line 6, 8, 9, 10, 11, 12" in error.message
    assert "add.sat.u77 at PTX line 7" in error.message
    assert "2 instruction(s)" in error.message
    assert error.kernel == "k"
    assert error.ptx_line == 6


@pytest.mark.parametrize(
    "statement",
    [
        "add.u32 %r1, %r2;",
        "add.u32 %r1, %r2, %r3, %r4;",
        "add.u32 %r1, %r2, [%r3];",
        "add.u32 %r1, %r2, {%r3, %r4};",
        "add.u32 %p1, %r2, %r3;",
        "add.u32 %r1, %r2, %p3;",
        "add.u32 5, %r2, %r3;",
        "add.u32 %r1, %r2, _;",
        "add.u64 %rd1, %rd2, %r3;",
        "add.u32 %h1, %r2, %r3;",
        "ld.global.v2.b32 {%r1, %r2, %r3}, [%rd1];",
        "ld.global.b32 %r1, [%r1];",
        "ld.global.b32 %r1, [%rd1, {%r1}];",
    ],
)
def test_operands_that_do_not_fit_are_refused_with_the_statement(statement):
    error = refusal(statement)
    assert f"operands of {statement} at PTX line 5" in error.message


def test_a_register_of_unknown_type_fits_nothing():
    assert "operands of mov.b32 x, 1;" in refusal(".reg .f19 x; mov.b32 x, 1;").message


# 2. Operands


def test_operands_carry_the_type_of_the_signature_and_of_the_declaration():
    found = operation("add.u16 %r1, %h2, -3;")
    assert [(t.storage, t.type) for t in found.targets] == [("b32", "u16")]
    assert found.sources == (FromRegister(1, "b16", "u16"), Constant(-3, "u16"))


def test_the_first_declaration_that_fits_is_taken():
    forms = [
        operation(f"mbarrier.arrive.shared::cta.b64 %rd1, [%r1]{more};") for more in ("", ", 3")
    ]
    assert [len(f.sources) for f in forms] == [1, 2]
    assert forms[0].entry.mnemonic == forms[1].entry.mnemonic


def test_vectors_pairs_sinks_and_addresses():
    load = operation("ld.global.v4.b32 {%r1, _, %r2, %r3}, [%rd1+-16];")
    assert [t.slot for t in load.targets] == [0, None, 1, 2]
    assert load.sources == (FromAddress(FromRegister(3, "b64", "b64"), -16, None),)
    assert [t.slot for t in operation("elect.sync _|%p1, -1;").targets] == [None, 0]
    store = operation("st.shared.v2.b32 [%r1], {%r2, 7};")
    assert store.sources[1] == FromVector((FromRegister(1, "b32", "b32"), Constant(7, "b32")))


def test_symbols_are_addresses():
    assert operation("mov.b64 %rd1, x;", params=".param .u32 w, .param .u64 x").sources == (
        Constant(PARAM_WINDOW + 8, "b64"),
    )
    shared = ".extern .shared .align 16 .b8 smem[];"
    assert operation("mov.b32 %r1, smem;", before=shared).sources == (FromSpecial("smem", "b32"),)


def test_static_shared_variables_lie_before_the_dynamic_one():
    found = program(
        ".shared .b8 one; .shared .align 8 .b8 two[12];"
        "mov.b32 %r1, smem; mov.b32 %r1, one; mov.b32 %r1, two;",
        before=".extern .shared .align 1024 .b8 smem[];",
    )
    assert found.shared_offsets == {
        "one": SHARED_BASE, "two": SHARED_BASE + 8, "smem": SHARED_BASE + 1024,
    }  # fmt: skip
    assert found.dynamic_shared_offset == SHARED_BASE + 1024


# 3. Blocks


def test_blocks_end_at_labels_branches_and_waits():
    found = program("""
        mov.b32 %r1, 0;
    LOOP: add.u32 %r1, %r1, 1;
        bar.sync 0;
        setp.lt.u32 %p1, %r1, 9;
        @%p1 bra LOOP;
        mov.b32 %r2, 0;
        ret;
    """)
    counts = [len(b.operations) for b in found.blocks]
    assert counts == [1, 1, 0, 1, 1]
    start, head, wait, test, end = (b.terminator for b in found.blocks)
    assert (start, head) == (Goto(1), Goto(2))
    assert isinstance(wait, Wait)
    assert wait.target == 3
    assert isinstance(test, Branch)
    assert (test.taken, test.otherwise) == (1, 4)
    assert end == Exit()
    assert found.blocks[3].reconverges == 4
    assert [b.line for b in found.blocks] == [6, 7, 8, 9, 11]


def test_a_body_that_does_not_end_in_ret_exits_all_the_same():
    assert program("mov.b32 %r1, 0;").blocks[-1].terminator == Exit()
    assert program("mov.b32 %r1, 0; @%p1 bra L; L:").blocks[-1].terminator == Exit()


def test_a_guarded_exit_is_a_branch_out():
    found = program("@!%p1 ret; mov.b32 %r1, 0; ret;")
    branch = found.blocks[0].terminator
    assert isinstance(branch, Branch)
    assert branch.predicate.negated
    assert (branch.taken, branch.otherwise) == (len(found.blocks), 1)


def test_a_guarded_wait_is_branched_around():
    found = program("mov.b32 %r1, 0; @%p1 bar.sync 0; mov.b32 %r1, 1;")
    branch, wait = found.blocks[0].terminator, found.blocks[1].terminator
    assert isinstance(branch, Branch)
    assert branch.predicate.negated
    assert (branch.taken, branch.otherwise) == (2, 1)
    assert isinstance(wait, Wait)
    assert wait.operation.guard is None
    assert wait.target == 2
    assert program("@%p1 bar.sync 0;").blocks[0].terminator.taken == 2


def test_a_side_that_leaves_the_kernel_does_not_keep_the_others_apart():
    found = program("""
        @%p1 bra ELSE;
        @%p2 bra END;
        mov.b32 %r1, 1;
        bra JOIN;
    ELSE:
        mov.b32 %r1, 2;
    JOIN:
        mov.b32 %r2, 3;
    END:
        ret;
    """)
    joins = [i for i, b in enumerate(found.blocks) if len(b.operations) == 1]
    assert found.blocks[0].reconverges == joins[-1]


def test_a_loop_that_is_left_only_by_branches_out_still_joins_the_arms_inside():
    found = program("""
    LOOP:
        @%p1 bra SKIP;
        mov.b32 %r1, 1;
    SKIP:
        @%p2 bra END;
        bra LOOP;
    END:
        ret;
    """)
    assert found.blocks[0].reconverges == 2


def test_uniform_branches_are_marked():
    ends = [b.terminator for b in program("@%p1 bra.uni L; @%p1 bra L; L: ret;").blocks]
    assert [e.uniform for e in ends if isinstance(e, Branch)] == [True, False]


def test_waits_are_the_last_of_their_kind_in_a_block():
    found = program("bar.sync 0; bar.sync 0; ret;")
    assert [type(b.terminator) for b in found.blocks] == [Wait, Wait, Exit]
    assert all(o.entry.kind is not Kind.WAIT for block in found.blocks for o in block.operations)


def test_every_special_register_that_is_known_has_a_value():
    names = [
        *(f"{name}.{axis}" for name in cluster._VECTORS for axis in "xyz"),
        *cluster._SCALARS,
        *warp._LANE_REGISTERS,
        *("%tid.x", "%tid.y", "%tid.z"),
    ]
    run("".join(f"mov.u32 %r{i}, {name};\n" for i, name in enumerate(names)))
    for unknown in ("%clock", "%ctaid.w", "%smid", "%cluster_ctarank.x"):
        error = failure(Unsupported, f"mov.u32 %r1, {unknown};")
        assert f"special register {unknown} at PTX line 13" in error.message
