"""Problems on which a refusal is a false alarm: as many as are promised, each another one."""

from collections import Counter

from conformance.alarm_rows import LONG, LONG_RUNS, RUNS, rows
from conformance.kernel import Limits
from reference.problem import DTYPES
from tests.conformance.fake_kernel import FakeKernel


def test_each_dtype_has_its_share_of_distinct_problems():
    drawn = [(row["dtype"], problem) for _, row, problem in rows(FakeKernel(dtypes=DTYPES))]
    assert Counter(dtype for dtype, _ in drawn) == dict.fromkeys(DTYPES, RUNS + LONG_RUNS)
    assert len({problem for _, problem in drawn}) == len(drawn)
    for dtype in DTYPES:
        longest = [max(problem.seq_lens, default=0) for name, problem in drawn if name == dtype]
        assert longest.count(LONG) == LONG_RUNS
        assert max(keys for keys in longest if keys != LONG) == 2048


def test_rows_stay_within_the_kernels_limits():
    limits = Limits(poison=False, table_tails=("tile",))
    careful = FakeKernel(dtypes=("bfloat16",), limits=limits)
    drawn = list(rows(careful))
    assert {row["dtype"] for _, row, _ in drawn} == {"bfloat16"}
    assert not any(row["poison"] for _, row, _ in drawn)
    assert {row["table_tail"] for _, row, _ in drawn} == {"tile"}
    assert list(rows(careful)) == drawn
