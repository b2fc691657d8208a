"""Which wrong answers our oracles refuse, and which those of published tests.

python -m conformance.tolerance_table > docs/tolerance_table.md

Each published oracle is stated as the tolerance that its test applies to data of its own kind; no
code of it is here. All are given the same wrong answers (`wrong_answers`) of a
kernel that is right otherwise, and the right answer, which none may refuse.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance.compare import compare
from conformance.faithful import emulations
from conformance.kernel import Algorithm
from conformance.tolerance import bounds
from conformance.wrong_answers import NAMES, RIGHT, Answer, Answers, Data, answers
from reference.decode import decode

FP8, BF16 = "float8_e4m3fn", "bfloat16"
LENGTHS = (129, 640, 2048, 16384)
# That of our kernel in FP8; in BF16 the threshold changes nothing that is cast.
ALGORITHM = Algorithm(
    p_scale=4.0, rescale_threshold=6.0, tile_n=128, lse_base=2, split_rule="normalised"
)

INTRODUCTION = """\
Made by `python -m conformance.tolerance_table`, which states each oracle's tolerance: how many of
the wrong answers it refuses, and in the last column which ones pass at the longest length. Answers
are those of a kernel that follows our algorithm but for one fault: FP8 answers cast P to e4m3. Data
are a factor times N(0, 1), 32 heads, four tokens, with the softmax scale beside it. The published
tests compare with references of float32 accuracy; float64 stands in here. An oracle that refuses
the right answer too says nothing by refusing wrong ones."""

Judgement = Callable[[Answer], bool]  # whether an answer passes


@dataclass(frozen=True)
class Oracle:
    """An oracle by name, its data, and what it says of answers to one problem.

    ``judge`` returns the function from an answer to whether it passes.
    """

    name: str
    dtype: str
    tolerance: str
    data: Data
    judge: Callable[[Answers], Judgement]


def ours(given: Answers) -> Judgement:
    """Oracle A on out and lse, and oracle B on out."""
    exact = decode(given.problem, given.inputs)
    limit = bounds(given.problem, given.inputs, given.algorithm)
    near = emulations(given.problem, given.inputs, given.algorithm, num_splits=1)

    def passes(answer: Answer) -> bool:
        emulated = near.nearest(answer.out)
        return (
            compare(answer.out, exact.out, limit.out).passed
            and compare(answer.lse, exact.lse, limit.lse).passed
            and compare(answer.out, emulated.out, emulated.bound).passed
        )

    return passes


def exact_only(given: Answers) -> Judgement:
    """Oracle A alone: what holds for a kernel whose algorithm is not known."""
    exact = decode(given.problem, given.inputs)
    limit = bounds(given.problem, given.inputs, given.algorithm)
    return lambda answer: (
        compare(answer.out, exact.out, limit.out).passed
        and compare(answer.lse, exact.lse, limit.lse).passed
    )


def allclose(atol: float, rtol: float, *, lse: bool) -> Callable[[Answers], Judgement]:
    """|got - want| <= atol + rtol |want|, on out and perhaps on lse."""

    def judge(given: Answers) -> Judgement:
        exact = decode(given.problem, given.inputs)

        def close(got: Tensor, want: Tensor) -> bool:
            return torch.allclose(got.double(), want, atol=atol, rtol=rtol)

        return lambda answer: (
            close(answer.out, exact.out) and (not lse or close(answer.lse, exact.lse))
        )

    return judge


def largest_and_mean(largest: float, mean: float) -> Callable[[Answers], Judgement]:
    """The largest and the mean absolute difference, each of out and of lse."""

    def judge(given: Answers) -> Judgement:
        exact = decode(given.problem, given.inputs)

        def close(got: Tensor, want: Tensor) -> bool:
            error = (got.double() - want).abs()
            return float(error.max()) < largest and float(error.mean()) < mean

        return lambda answer: close(answer.out, exact.out) and close(answer.lse, exact.lse)

    return judge


def largest_over_largest(limit: float) -> Callable[[Answers], Judgement]:
    """The largest difference of out over its largest value, from the same kernel's right answer."""

    def judge(given: Answers) -> Judgement:
        right = given.by_name[RIGHT].out.double()
        return lambda answer: bool(
            (answer.out.double() - right).abs().max() < limit * right.abs().max()
        )

    return judge


def cosine(limit: float) -> Callable[[Answers], Judgement]:
    """1 - 2 x.y / (x.x + y.y) of the whole of out."""

    def judge(given: Answers) -> Judgement:
        want = decode(given.problem, given.inputs).out

        def passes(answer: Answer) -> bool:
            got = answer.out.double()
            likeness = 2.0 * (got * want).sum() / (got.square() + want.square()).sum()
            return bool(1.0 - likeness < limit)

        return passes

    return judge


NORMAL = Data()
SMALL = Data(magnitude=0.1, scale=512**-0.5)
ORACLES = tuple(
    Oracle(*row)
    for row in (
        ("**ours: A and B**", FP8, "each element's own bound", NORMAL, ours),
        ("ours: A alone", FP8, "each element's own bound", NORMAL, exact_only),
        ("**ours: A and B**", FP8, "each element's own bound", SMALL, ours),
        (
            "FlashInfer, cute-dsl", FP8, "atol = rtol = 0.1, out and lse", SMALL,
            allclose(0.1, 0.1, lse=True),
        ),
        (
            "FlashInfer, trtllm-gen", FP8, "atol = rtol = 0.1, out", NORMAL,
            allclose(0.1, 0.1, lse=False),
        ),
        (
            "CUTLASS, CuTe DSL example", FP8, "atol = 0.13, rtol = 1e-5, out and lse", NORMAL,
            allclose(0.13, 1e-5, lse=True),
        ),
        (
            "CUTLASS, example 77", FP8, "largest and mean < 0.1, out and lse", NORMAL,
            largest_and_mean(0.1, 0.1),
        ),
        (
            "TokenSpeed, DCP", FP8, "largest / largest < 0.06, out, against itself", NORMAL,
            largest_over_largest(0.06),
        ),
        ("vLLM", FP8, "cosine < 1e-4, out", NORMAL, cosine(1e-4)),
        ("**ours: A and B**", BF16, "each element's own bound", NORMAL, ours),
        ("ours: A alone", BF16, "each element's own bound", NORMAL, exact_only),
        (
            "FlashInfer, cute-dsl", BF16, "atol = rtol = 0.01, out",
            Data(scale=512**-0.5), allclose(0.01, 0.01, lse=False),
        ),
        (
            "CUTLASS, CuTe DSL example", BF16, "atol = 0.01, rtol = 1e-5, out and lse", NORMAL,
            allclose(0.01, 1e-5, lse=True),
        ),
        (
            "CUTLASS, example 77", BF16, "largest < 0.01, mean < 0.001, out and lse", NORMAL,
            largest_and_mean(0.01, 0.001),
        ),
    )
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What an oracle refuses at one length."""

    refused: tuple[str, ...]  # of the wrong answers
    refuses_right: bool

    @property
    def text(self) -> str:
        """How many it refuses, and whether it refuses the right answer too."""
        return str(len(self.refused)) + (" (and the right one)" if self.refuses_right else "")


def verdicts(seq_len: int, oracles: Sequence[Oracle] = ORACLES) -> Iterator[Verdict]:
    """Yield what each oracle says at a length; oracles with equal data share their answers."""
    made: dict[tuple[str, Data], Answers] = {}
    for oracle in oracles:
        key = (oracle.dtype, oracle.data)
        if key not in made:
            made[key] = answers(oracle.dtype, seq_len, ALGORITHM, oracle.data)
        passes = oracle.judge(made[key])
        by_name = made[key].by_name
        refused = tuple(name for name in NAMES if not passes(by_name[name]))
        yield Verdict(refused, not passes(by_name[RIGHT]))


def row(oracle: Oracle, found: Sequence[Verdict]) -> str:
    """Return an oracle's line of the table."""
    kind = "FP8" if oracle.dtype == FP8 else "BF16"
    data = f"{oracle.data.magnitude:g}, 1/sqrt({round(oracle.data.scale**-2)})"
    survivors = [name for name in NAMES if name not in found[-1].refused]
    cells = [oracle.name, kind, data, oracle.tolerance, *(one.text for one in found)]
    return f"| {' | '.join(cells)} | {', '.join(survivors)} |"


def table(lengths: Sequence[int] = LENGTHS) -> str:
    """Return the whole document."""
    columns = []
    for seq_len in lengths:
        sys.stderr.write(f"{seq_len} keys ...\n")
        columns.append(tuple(verdicts(seq_len)))
    rows = [row(*pair) for pair in zip(ORACLES, zip(*columns, strict=True), strict=True)]
    heads = " | ".join(f"K = {seq_len}" for seq_len in lengths)
    return "\n".join(
        (
            "# Wrong answers that oracles refuse",
            "",
            INTRODUCTION,
            "",
            f"The {len(NAMES)} wrong answers: {'; '.join(NAMES)}.",
            "",
            f"| oracle | input | factor, scale | tolerance | {heads} | passes, longest |",
            "|" + "---|" * (5 + len(lengths)),
            *rows,
            "",
        )
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(table())
