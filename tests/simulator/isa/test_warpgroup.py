"""wgmma against float64 products of operands laid out element by element, and its order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from simulator.checks import Checks
from simulator.errors import Trap, Unsupported
from simulator.isa import warpgroup
from simulator.numerics.formats import BF16, E4M3, E5M2, F16, TF32, Format, decode
from simulator.policy import Policy
from tests.simulator.machine.test_tensor_core import Operand, random_codes
from tests.simulator.ptx_text import aligned, failure, module, run

THREADS, ROWS = 128, 64
IMAGE_BYTES = 1 << 16
B_START = 1 << 14
SWIZZLE_CODES = {0: 0, 128: 1, 64: 2, 32: 3}
NAMES = {F16: "f16", BF16: "bf16", TF32: "tf32", E4M3: "e4m3", E5M2: "e5m2"}


@dataclass(frozen=True)
class Form:
    """One product: formats, layouts of A and B (A in registers: None), and what is done to them."""

    n: int
    a: Format
    b: Format
    span_a: int | None = 128
    span_b: int = 128
    mn_a: bool = False
    mn_b: bool = False
    d: str = "f32"
    added: int = 1
    sign_a: int = 1
    sign_b: int = 1

    @property
    def steps(self) -> int:
        """Instructions: as many as fill the widest swizzle along K."""
        return 4

    @property
    def depth(self) -> int:
        return 256 // self.a.storage_bits

    def mnemonic(self) -> str:
        shape = f"m64n{self.n}k{self.depth}"
        return f"wgmma.mma_async.sync.aligned.{shape}.{self.d}.{NAMES[self.a]}.{NAMES[self.b]}"


FORMS = [
    Form(8, BF16, BF16),
    Form(64, BF16, BF16, span_a=64, span_b=32),
    Form(256, F16, F16, mn_b=True),
    Form(128, BF16, BF16, mn_a=True, mn_b=True, sign_a=-1),
    Form(16, F16, F16, span_a=0, span_b=0),
    Form(24, F16, F16, span_a=0, span_b=0, mn_a=True, mn_b=True),
    Form(64, BF16, BF16, span_a=32, span_b=64, mn_a=True, mn_b=True, sign_b=-1),
    Form(256, BF16, BF16, span_a=None, mn_b=True),
    Form(40, F16, F16, span_a=None, added=0),
    Form(32, TF32, TF32),
    Form(32, TF32, TF32, span_a=None, span_b=64),
    Form(96, E4M3, E5M2, span_b=64),
    Form(64, E5M2, E4M3, span_a=None),
    Form(64, F16, F16, d="f16"),
    Form(16, E4M3, E4M3, span_a=None, d="f16"),
]


# 1. One product


def bits(layout) -> int:
    """A matrix descriptor, relative to the beginning of shared memory."""
    fields = layout.start >> 4 | layout.leading >> 4 << 16 | layout.stride >> 4 << 32
    return fields | SWIZZLE_CODES[layout.swizzle] << 62


def fragments(codes: np.ndarray, size: int) -> np.ndarray:
    """Registers [step, thread, 4] of A [64, k], as the figures number them."""
    per_word = 4 // size
    depth = 8 * per_word
    out = np.zeros((codes.shape[1] // depth, THREADS, 4), np.uint32)
    typed = codes.astype(f"u{size}")
    for step, thread, i in np.ndindex(*out.shape):
        row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (i % 2)
        first = step * depth + i // 2 * depth // 2 + thread % 4 * per_word
        out[step, thread, i] = typed[row, first : first + per_word].copy().view("u4")[0]
    return out


def held(matrix: np.ndarray) -> np.ndarray:
    """D [64, n] as elements [thread, n / 2]."""
    out = np.zeros((THREADS, matrix.shape[1] // 2), matrix.dtype)
    for thread, i in np.ndindex(*out.shape):
        row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (i // 2 % 2)
        out[thread, i] = matrix[row, i // 4 * 8 + thread % 4 * 2 + i % 2]
    return out


class Product:
    """Random operands of a form, the kernel that multiplies them, and the exact result."""

    def __init__(self, form: Form, seed: int) -> None:
        rng, self.form = np.random.default_rng(seed), form
        image, size = np.zeros(IMAGE_BYTES, np.uint8), form.a.storage_bits // 8
        self.b = Operand(
            rng, image, B_START, form.n, form.steps, fmt=form.b, span=form.span_b,
            mn_major=form.mn_b,
        )  # fmt: skip
        self.a = None
        words = np.zeros((form.steps, THREADS, 4), np.uint32)
        if form.span_a is None:
            codes = random_codes(rng, form.a, (ROWS, form.steps * form.depth))
            words, values = fragments(codes, size), decode(codes, form.a).astype(np.float64)
        else:
            self.a = Operand(
                rng, image, 0, ROWS, form.steps, fmt=form.a, span=form.span_a, mn_major=form.mn_a
            )
            values = self.a.values
        kind = np.float16 if form.d == "f16" else np.float32
        c = rng.standard_normal((ROWS, form.n)).astype(kind)
        self.arrays = {"image": aligned(IMAGE_BYTES, "u1"), "fragments": aligned(words.shape, "u4")}
        self.arrays["image"][...], self.arrays["fragments"][...] = image, words
        self.arrays["d"] = aligned((THREADS, form.n // 2), kind().dtype.str)
        self.arrays["d"][...] = held(c)
        wide = c.astype(np.float64) * form.added
        product = (values * form.sign_a) @ (self.b.values * form.sign_b).T
        self.exact = held(product + wide)
        self.size = held(np.abs(values) @ np.abs(self.b.values).T + np.abs(wide))

    def body(self) -> str:
        """The kernel: operands into shared memory, a product for each step, D out of registers."""
        count = self.form.n // (4 if self.form.d == "f16" else 2)
        lines = [f".reg .b32 %d<{count}>;", load_image(), ""]
        lines += [f"ld.param.u64 %rd1, [d]; mad.wide.u32 %rd1, %t2, {4 * count}, %rd1;"]
        lines += [f"ld.global.b32 %d{i}, [%rd1+{4 * i}];" for i in range(count)]
        lines += ["ld.param.u64 %rd2, [fragments]; mad.wide.u32 %rd2, %t2, 16, %rd2;"]
        for step in range(self.form.steps):
            a, b = [f"%r{10 + 4 * step + i}" for i in range(4)], 10 + 2 * step
            lines += [f"ld.global.v4.b32 {vector(a)}, [%rd2+{step * THREADS * 16}];"]
            lines += [
                f"mov.b64 %rd{b}, {bits(self.b.descriptor(step))}; add.u64 %rd{b}, %rd{b}, %rd9;"
            ]
            if self.a is not None:
                lines += [f"mov.b64 %rd{b + 1}, {bits(self.a.descriptor(step))};"]
                lines += [f"add.u64 %rd{b + 1}, %rd{b + 1}, %rd9;"]
        lines += [f"setp.ne.b32 %p1, {self.form.added}, 0; setp.eq.b32 %p2, 0, 0;"]
        lines += ["wgmma.fence.sync.aligned;"]
        lines += [self.multiply(step, count) for step in range(self.form.steps)]
        lines += ["wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"]
        lines += [f"st.global.b32 [%rd1+{4 * i}], %d{i};" for i in range(count)]
        return "\n".join(lines)

    def multiply(self, step: int, count: int) -> str:
        form, b = self.form, 10 + 2 * step
        a = f"%rd{b + 1}" if self.a else vector([f"%r{10 + 4 * step + i}" for i in range(4)])
        majors = [int(form.mn_a)] * (self.a is not None) + [int(form.mn_b)]
        tail = ", ".join(
            map(str, [form.sign_a, form.sign_b, *majors * (form.a.storage_bits == 16)])
        )
        d = vector([f"%d{i}" for i in range(count)])
        return f"{form.mnemonic()} {d}, {a}, %rd{b}, {'%p2' if step else '%p1'}, {tail};"

    def run(self, **options) -> np.ndarray:
        """D as elements [thread, n / 2], as float64."""
        run(
            self.body(), self.arrays, threads=THREADS, shared_bytes=IMAGE_BYTES,
            instruction_limit=10**7, **options,
        )  # fmt: skip
        return self.arrays["d"].astype(np.float64)

    def text(self, target: str) -> str:
        """The module of the kernel for a device."""
        return module(self.body(), [f".param .u64 {name}" for name in self.arrays], target=target)


def vector(names: list[str]) -> str:
    return "{" + ", ".join(names) + "}"


def load_image() -> str:
    """All of ``image`` into shared memory; its address, as in a descriptor, into %rd9."""
    return f"""
        mov.u32 %r1, smem; shr.u32 %r2, %r1, 4; cvt.u64.u32 %rd9, %r2;
        ld.param.u64 %rd1, [image]; mul.wide.u32 %rd2, %t2, 16; add.u64 %rd1, %rd1, %rd2;
        mad.lo.u32 %r1, %t2, 16, %r1; mov.u32 %r3, 0;
        MORE: ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd1];
        st.shared.v4.b32 [%r1], {{%r4, %r5, %r6, %r7}};
        add.u64 %rd1, %rd1, {16 * THREADS}; add.u32 %r1, %r1, {16 * THREADS};
        add.u32 %r3, %r3, {16 * THREADS}; setp.lt.u32 %p1, %r3, {IMAGE_BYTES}; @%p1 bra MORE;
        fence.proxy.async.shared::cta; bar.sync 0;"""


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f"{f.mnemonic()[32:]}-{FORMS.index(f)}")
def test_products(form):
    product = Product(form, seed=form.n)
    found = product.run()
    room, safe = 2.0**-21 * product.size, np.isfinite(product.exact)
    if form.d == "f16":
        safe = product.size < np.finfo(np.float16).max
        room = 2.0**-10 * np.abs(product.exact) + 2.0**-9 * product.size
    assert safe.mean() > 0.01
    assert (np.abs(found - product.exact) <= room)[safe].all()


@pytest.mark.parametrize(
    ("form", "accumulation", "cut"),
    [
        (Form(16, E4M3, E5M2), "hopper", True),
        (Form(16, E4M3, E5M2), "b200", False),
        (Form(16, F16, F16), "hopper", False),
    ],
)
def test_hopper_writes_few_bits_of_sums_of_8_bit_operands(form, accumulation, cut):
    product = Product(form, seed=6)
    product.run(accumulation=accumulation)
    low = product.arrays["d"].view(np.uint32) & np.uint32(0x3FF)
    assert bool((low == 0).all()) == cut


# 2. What is refused


def changed(form: Form, old: str, new: str, kind: type) -> str:
    """The message of the error that a changed kernel ends with."""
    product = Product(form, seed=1)
    assert old in product.body()
    return failure(
        kind, product.body().replace(old, new), product.arrays, threads=THREADS,
        shared_bytes=IMAGE_BYTES,
    ).message  # fmt: skip


@pytest.mark.parametrize(
    ("bit", "message"), [(49, "base offset 1"), (14, "bits 0x4000"), (52, "bits 0x10000000000000")]
)
def test_an_unknown_field_of_a_descriptor_is_refused(bit, message):
    with pytest.raises(Unsupported, match=message):
        warpgroup.descriptor(1 << bit)


def test_a_scale_of_two_is_refused():
    assert "a scale of 2" in changed(Form(8, BF16, BF16), "%p1, 1, 1", "%p1, 2, 1", Trap)


def test_a_lane_of_its_own_descriptor_is_refused():
    own = "wgmma.fence.sync.aligned; cvt.u64.u32 %rd50, %lane; add.u64 %rd10, %rd10, %rd50;"
    message = changed(Form(8, BF16, BF16), "wgmma.fence.sync.aligned;", own, Trap)
    assert "differs between lanes" in message


def test_two_mnemonics_that_ptx_lacks():
    for mnemonic in ("m64n12k16.f32.bf16.bf16", "m64n8k16.f32.bf16.f16"):
        message = changed(Form(8, BF16, BF16), "m64n8k16.f32.bf16.bf16", mnemonic, Unsupported)
        assert mnemonic in message


# 3. Order

OVERWRITE = """
    wgmma.commit_group.sync.aligned; {wait} mov.u32 %r90, smem; mad.lo.u32 %r90, %t2, 16, %r90;
    mov.b32 %r91, 1; st.shared.b32 [%r90+{start}], %r91; bar.sync 0;
    wgmma.wait_group.sync.aligned 0;"""
LATE = Policy("late")
WAITED = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"


@pytest.mark.parametrize("start", [0, B_START], ids="AB")
def test_operands_must_stay_until_the_wait(start):
    for wait in ("wgmma.wait_group.sync.aligned 0; bar.sync 0;", ""):
        product = Product(Form(64, BF16, BF16), seed=2)
        body = product.body().replace(WAITED, OVERWRITE.format(wait=wait, start=start))
        options = {"threads": THREADS, "shared_bytes": IMAGE_BYTES, "policy": LATE}
        if wait:
            run(body, product.arrays, instruction_limit=10**7, **options)
        else:
            error = failure(Trap, body, product.arrays, instruction_limit=10**7, **options)
            assert "has changed before it was complete" in error.message


def test_a_wait_for_the_older_group_leaves_the_newer():
    """Of two groups the first is waited for, and only its operands may be overwritten."""
    product = Product(Form(64, BF16, BF16, span_a=None, span_b=32), seed=3)
    first = product.multiply(1, 32)
    body = product.body().replace(first, f"wgmma.commit_group.sync.aligned; {first}")
    step = product.b.descriptor(1).start - product.b.descriptor(0).start
    for start, fails in ((B_START, False), (B_START + step, True)):
        wait = "wgmma.wait_group.sync.aligned 1; bar.sync 0;"
        text = body.replace(WAITED, OVERWRITE.format(wait=wait, start=start))
        options = {"threads": THREADS, "shared_bytes": IMAGE_BYTES, "instruction_limit": 10**7}
        arguments = (text, product.arrays)
        if fails:
            failure(Trap, *arguments, policy=LATE, **options)
        else:
            run(*arguments, policy=LATE, **options)


def test_operands_stored_without_a_fence_are_found():
    product = Product(Form(64, BF16, BF16), seed=4)
    options = {"threads": THREADS, "shared_bytes": IMAGE_BYTES, "instruction_limit": 10**7}
    options["checks"] = Checks(proxy=True, races=True, on_finding="collect")
    body, fence = product.body(), "fence.proxy.async.shared::cta;"
    assert not run(body, product.arrays, **options).findings
    found = run(body.replace(fence, ""), product.arrays, **options).findings
    assert found
    assert "wgmma" in str(found[0])


def test_an_overwrite_before_the_wait_is_a_race():
    for wait, races in (("wgmma.wait_group.sync.aligned 0; bar.sync 0;", False), ("", True)):
        product = Product(Form(64, BF16, BF16), seed=5)
        body = product.body().replace(WAITED, OVERWRITE.format(wait=wait, start=0))
        found = run(
            body, product.arrays, threads=THREADS, shared_bytes=IMAGE_BYTES,
            instruction_limit=10**7, checks=Checks(races=True, on_finding="collect"),
        ).findings  # fmt: skip
        assert bool(found) == races
