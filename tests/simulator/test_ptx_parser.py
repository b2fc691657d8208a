"""The lexer and the parser: names and scopes, operands, directives; refusals name their line."""

from __future__ import annotations

import pytest

from simulator.errors import Unsupported
from simulator.ptx import nodes
from simulator.ptx.lexer import tokenise
from simulator.ptx.parser import parse
from tests.simulator.ptx_text import module

HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"


def kernel(body: str, *, params: str = "", before: str = "") -> nodes.Kernel:
    """The kernel whose body starts on line 6 of its text."""
    return parse(f"{HEADER}{before}\n.entry k({params}) {{\n{body}\n}}\n").kernels["k"]


def instructions(body: str, **options: str) -> list[nodes.Instruction]:
    return [i for i in kernel(body, **options).body if isinstance(i, nodes.Instruction)]


def operands(statement: str) -> tuple[nodes.Operand, ...]:
    """The operands of one statement over the registers %r0.., %rd0.. and %p0..."""
    declared = ".reg .b32 %r<10>; .reg .b64 %rd<10>; .reg .pred %p<10>;"
    return instructions(f"{declared} {statement}")[0].operands


def refusal(text: str) -> Unsupported:
    with pytest.raises(Unsupported) as caught:
        parse(text)
    return caught.value


# 1. Tokens


def test_tokens_keep_their_lines_across_comments_of_several_lines():
    tokens = tokenise("a // b\n/* c\n d */ e\n\n.loc 1 2 3, x\nf")
    assert [(t.text, t.line) for t in tokens if t.kind == "name"] == [("a", 1), ("e", 3), ("f", 6)]
    assert [(t.kind, t.line) for t in tokens if t.kind == "loc"] == [("loc", 5)]
    assert tokens[-1] == ("end", "", 6)


@pytest.mark.parametrize(
    "name", ["%tid.x", "ld.global.nc.L1::no_allocate.v4.b32", "$L__BB0_1", "_"]
)
def test_a_name_with_its_modifiers_is_one_token(name):
    assert [(t.kind, t.text) for t in tokenise(name)][:-1] == [("name", name)]


def test_a_strange_character_is_refused_with_its_line():
    error = refusal(HEADER + ".entry k() {\n  ret;\n  \x07\n}")
    assert error.ptx_line == 6


# 2. Numbers


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("17", 17), ("-17", -17), ("0x1F", 31), ("0X1fU", 31), ("-0x10", -16), ("4096U", 4096),
        ("017", 15), ("-010", -8), ("0", 0), ("0b101", 5), ("0xFFFFFFFFFFFFFFFF", 2**64 - 1),
    ],
)  # fmt: skip
def test_integers(text, value):
    assert operands(f"mov.b64 %rd0, {text};")[1] == nodes.Immediate(value)


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("0f3F800000", 0x3F800000), ("0Fbf800000", 0xBF800000),
        ("0d3FF0000000000000", 0x3FF0000000000000),
    ],
)  # fmt: skip
def test_floating_point_literals_are_their_bits(text, bits):
    assert operands(f"mov.b64 %rd0, {text};")[1] == nodes.Immediate(bits, is_float=True)


@pytest.mark.parametrize("text", ["089", "1.5", "1e5", "0f3F80"])
def test_other_numbers_are_refused(text):
    error = refusal(HEADER + ".entry k() {\n.reg .b32 %r<1>;\n mov.b32 %r0, " + text + ";\n}")
    assert error.ptx_line == 6


# 3. Scopes


def test_a_scope_hides_the_registers_and_labels_around_it():
    body = instructions("""
        .reg .pred P1; .reg .b32 %r<4>;
        mov.pred P1, 1;
        { .reg .pred P1; LAB: mov.pred P1, 1; @P1 bra LAB; mov.b32 %r1, 2; }
        { .reg .pred P1; LAB: @P1 bra LAB; }
        @P1 bra LAB;
        LAB: ret;
    """)
    outer, first, jump_1, _, jump_2, jump_3, _ = body
    names = [outer.operands[0], first.operands[0], jump_2.guard.register, jump_3.guard.register]
    assert len({register.name for register in names[:3]}) == 3
    assert jump_1.guard.register == first.operands[0]
    assert jump_3.guard.register == outer.operands[0]
    assert len({jump.operands[0].name for jump in (jump_1, jump_2, jump_3)}) == 3


def test_an_inner_scope_sees_the_registers_around_it():
    first, second = instructions(".reg .b32 %r<4>; mov.b32 %r1, 1; { { mov.b32 %r1, 2; } }")
    assert first.operands[0] == second.operands[0] == nodes.Register("%r1", "b32")


def test_a_scope_that_is_closed_is_forgotten():
    error = refusal(HEADER + ".entry k() {\n{ .reg .b32 x; }\nmov.b32 x, 1;\n}")
    assert error.ptx_line == 6
    assert "'x'" in error.message


def test_a_label_may_be_used_before_it_stands():
    body = kernel("bra END; END: ret;").body
    assert body[0].operands == (nodes.Label("END"),)
    assert body[1] == nodes.LabelMark("END", 6)


def test_a_label_that_stands_twice_is_refused():
    assert refusal(HEADER + ".entry k() {\nL: ret;\nL: ret;\n}").ptx_line == 6


@pytest.mark.parametrize(
    ("declaration", "inside", "outside"),
    [
        ("%r<3>", "%r0 %r2", "%r3 %r %r01"),
        ("r<12>", "r0 r11", "r12 r011"),
        ("%a1<2>", "%a10 %a11", "%a1 %a12"),
        ("x, y", "x y", "x0 z"),
    ],
)
def test_register_ranges(declaration, inside, outside):
    for name in inside.split():
        assert target(declaration, name) == nodes.Register(name, "b32")
    for name in outside.split():
        assert not isinstance(target(declaration, name), nodes.Register)


def target(declaration: str, name: str) -> nodes.Operand | None:
    """What ``name`` is after a declaration, None if it is nothing."""
    try:
        return instructions(f".reg .b32 {declaration}; mov.b32 {name}, 1;")[0].operands[0]
    except Unsupported:
        return None


# 4. Operands


def test_operand_forms():
    r = [nodes.Register(f"%r{i}", "b32") for i in range(4)]
    rd = nodes.Register("%rd1", "b64")
    p = nodes.Register("%p1", "pred")
    assert operands("shfl.sync.idx.b32 %r0|%p1, %r1, 0, 31, -1;") == (
        nodes.Pair(r[0], p), r[1], *map(nodes.Immediate, (0, 31, -1)),
    )  # fmt: skip
    assert operands("elect.sync _|%p1, -1;")[0] == nodes.Pair(nodes.Sink(), p)
    assert operands("mov.b64 {%r0, _}, %rd1;") == (nodes.Vector((r[0], nodes.Sink())), rd)
    assert operands("mov.u32 %r0, %tid.x;")[1] == nodes.Special("%tid.x")
    assert operands("membar.cta;") == ()


@pytest.mark.parametrize(
    ("text", "offset"),
    [("[%rd1]", 0), ("[%rd1+8]", 8), ("[%rd1+-8]", -8), ("[%rd1-8]", -8), ("[%rd1 + 0x10]", 16)],
)
def test_addresses_with_offsets(text, offset):
    expected = nodes.Address(nodes.Register("%rd1", "b64"), offset)
    assert operands(f"ld.global.b32 %r0, {text};")[1] == expected


def test_an_address_with_coordinates():
    address = operands("cp.async [%r0], [%rd1, {%r1, 7}], [%r2];")[1]
    coordinates = nodes.Vector((nodes.Register("%r1", "b32"), nodes.Immediate(7)))
    assert address == nodes.Address(nodes.Register("%rd1", "b64"), 0, coordinates)


def test_parameters_and_shared_variables_are_symbols():
    found = instructions(
        ".reg .b64 %rd<2>; ld.param.u64 %rd0, [x+8]; mov.u64 %rd1, smem;",
        params=".param .u64 x",
        before=".extern .shared .align 16 .b8 smem[];",
    )
    assert found[0].operands[1] == nodes.Address(nodes.Symbol("x"), 8)
    assert found[1].operands[1] == nodes.Symbol("smem")


def test_guards():
    plain, positive, negative = instructions(
        ".reg .pred %p<2>; bra L; @%p1 bra L; @!%p1 bra L; L: ret;"
    )[:3]
    p = nodes.Register("%p1", "pred")
    assert [plain.guard, positive.guard, negative.guard] == [
        None, nodes.Guard(p, False), nodes.Guard(p, True),
    ]  # fmt: skip


def test_text_of_an_instruction_is_the_statement():
    statement = "@!%p1 ld.global.v2.b32 {%r1, _}, [%rd1-4];"
    body = f".reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 %rd<2>; {{ {statement} }} ret;"
    found = instructions(body)
    assert found[0].text() == statement
    assert found[1].text() == "ret;"


# 5. Directives


def test_parameters_are_placed_by_their_alignment():
    found = kernel(
        "ret;", params=".param .u32 a, .param .u64 b, .param .align 64 .b8 c[65], .param .u8 d"
    )
    assert [(p.name, p.offset, p.size, p.alignment) for p in found.params] == [
        ("a", 0, 4, 4), ("b", 8, 8, 8), ("c", 64, 65, 64), ("d", 129, 1, 1),
    ]  # fmt: skip
    assert found.param_bytes == 130


def test_a_kernel_has_the_shared_variables_that_it_uses():
    before = (
        ".extern .shared .align 1024 .b8 dynamic[]; .shared .b32 one; .shared .u64 other[4][2];"
    )
    found = kernel(
        ".reg .b32 %r<4>; .shared .align 2 .u16 own[5];"
        "mov.u32 %r1, other; mov.u32 %r2, own; mov.u32 %r3, dynamic;",
        before=before,
    )
    assert found.shared == (
        nodes.Variable("dynamic", 1024, None),
        nodes.Variable("other", 8, 64),
        nodes.Variable("own", 2, 10),
    )


def test_loc_gives_the_source_line_of_what_follows():
    text = (
        HEADER + '.file 1 "kernel.py", 17, 4\n.entry k() .reqntid 64, 2, 1 .minnctapersm 1 {\n'
        "ret;\n.loc 1 42 7\nret;\n.loc 1 43 1, function_name $L__info, inlined_at 1 50 3\n"
        '.pragma "nounroll";\nret;\n}\n'
        ".section .debug_str { .b8 1, 2 \n }\n"
    )
    module_ = parse(text)
    found = module_.kernels["k"]
    assert [i.source for i in found.body] == [None, "kernel.py:42", "kernel.py:43"]
    assert [i.line for i in found.body] == [6, 8, 11]
    assert found.directives == {"reqntid": (64, 2, 1), "minnctapersm": (1,)}
    assert (module_.version, module_.target) == ("8.8", "sm_100a")


def test_the_file_of_a_source_line_may_be_declared_after_the_code():
    text = HEADER + '.entry k() {\n.loc 2 5 0\nret;\n}\n.file 1 "a.py"\n.file 2 "b.py"\n'
    assert parse(text).kernels["k"].body[0].source == "b.py:5"


def test_two_kernels_do_not_share_registers_or_labels():
    body = "{ .reg .b32 %r<2>; L: mov.b32 %r1, 1; bra L; }"
    kernels = parse(f"{HEADER}.entry a() {body}\n.visible .entry b() {body}\n").kernels
    assert list(kernels) == ["a", "b"]
    assert kernels["a"].body[1].line == 4
    assert kernels["b"].body[1].line == 5


# 6. Refusals


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        (".global .b32 x;", 4, ".global"),
        (".func f() { ret; }", 4, ".func"),
        (".entry k() {\n bra NOWHERE;\n}", 5, "NOWHERE"),
        (".entry k() {\n .const .b8 x[4];\n}", 5, ".const"),
        (".entry k() {\n @%p1 ret;\n}", 5, "%p1"),
        (".entry k() {\n ret\n}", 6, "'}'"),
        (".entry k() {\n ret;\n", 6, "ends"),
        (".entry k(.param .v4 x) { ret; }", 4, ".v4"),
        (".entry k() .noreturn { ret; }", 4, ".noreturn"),
        (".section .debug_str {", 4, "ends"),
        (".shared .b128x x;", 4, ".b128x"),
        (".entry k() {\n .reg .b32 %r<2>; mov.b32 %r1, \"a\";\n}", 5, "a"),
    ],
)  # fmt: skip
def test_what_is_outside_the_subset_is_refused_with_its_line(text, line, word):
    error = refusal(HEADER + text)
    assert error.ptx_line == line
    assert word in error.message


def test_an_address_size_of_32_is_refused():
    assert refusal(".version 8.8\n.address_size 32\n").ptx_line == 2


def test_the_texts_of_these_tests_parse():
    assert list(parse(module("bar.sync 0;", [".param .u64 out"])).kernels) == ["k"]
