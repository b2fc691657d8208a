"""Our kernels on the simulator, each element against its bound of the float64 oracle."""

import pytest

from conformance.kernel import RunOptions
from reference.problem import Dcp, Mask
from simulator.policy import POLICIES
from tests.optimized.judging import judge, problem

FP8, BF16, FP16 = "float8_e4m3fn", "bfloat16", "float16"
pytestmark = pytest.mark.filterwarnings("ignore")  # the DSL's own, when it compiles


@pytest.mark.parametrize(("dtype", "heads"), [(FP8, 128), (FP8, 16), (BF16, 128)])
def test_lengths_around_tile_and_page_boundaries(dtype: str, heads: int) -> None:
    """Two tokens, five lengths from none to three tiles, every unseen slot NaN."""
    judge(problem(dtype, heads, 2, (0, 1, 65, 128, 300)), RunOptions(num_splits=1))


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize(("dtype", "heads"), [(FP8, 128), (FP8, 16)])
def test_every_schedule_gives_the_answer(policy: str, dtype: str, heads: int) -> None:
    """No order that the barriers allow is wrong: one warp as far as it gets, one step each, ..."""
    options = RunOptions(num_splits=1, policy=policy, policy_seed=3)
    judge(problem(dtype, heads, 1, (300,)), options)


def test_splits_are_merged() -> None:
    """Splits beyond the tiles, an empty request, and a request of one key."""
    judge(problem(FP8, 16, 2, (0, 1, 300)), RunOptions(num_splits=5))


def test_a_persistent_cluster_serves_several_pieces_of_work() -> None:
    """Two clusters take eight pieces, one of them empty; the LSE is in base e."""
    case = problem(FP8, 96, 2, (130, 0), is_var_seq=False, lse_base="e", enable_pdl=True)
    judge(case, RunOptions(num_splits=2, num_sms=4))


@pytest.mark.parametrize(("dtype", "heads"), [(FP8, 128), (FP8, 16), (BF16, 16)])
@pytest.mark.parametrize("window", [0, 70])
def test_windows_leave_poison_behind(dtype: str, heads: int, window: int) -> None:
    """Keys left of every window are NaN, in the first tile too, and with one page for both ends."""
    case = problem(dtype, heads, 3, (300, 4, 77), mask=Mask(causal=True, window_left=window))
    judge(case, RunOptions(num_splits=2))


@pytest.mark.parametrize(("dtype", "heads"), [(FP8, 16), (BF16, 16)])
@pytest.mark.parametrize("interleave", [1, 4])
def test_ranks_of_a_context_see_their_share(dtype: str, heads: int, interleave: int) -> None:
    """The second of two ranks; the cache holds more keys than its share, and less."""
    share = Dcp(world=2, rank=1, interleave_size=interleave, causal_seqs=(201, 14, 150))
    judge(problem(dtype, heads, 3, (140, 4, 70), dcp=share), RunOptions(num_splits=1))


def test_a_scale_of_zero_weighs_all_visible_keys_alike() -> None:
    """Masked scores stay -inf: times zero they would be NaN."""
    judge(problem(FP8, 16, 2, (150,), softmax_scale=0.0))
