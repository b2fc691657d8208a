"""Plans: two published rules reproduced, and what any plan must satisfy."""

import csv
import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimized.plan import (
    CAPABILITIES,
    FP8,
    MAX_SPLITS,
    Call,
    Plan,
    plan,
    specialisation_key,
    supports,
    tiling,
    workspace_size,
)
from reference.folding import best_layout
from reference.problem import DTYPES, PAGE_SIZES, Dims, Mask, Problem

GOLDEN = Path(__file__).parents[1] / "data" / "seed_plan.csv"


def call(heads=128, tokens=1, batch=1, **changes) -> Call:
    given = {"dtype": FP8, "page_size": 64, "max_seq_len": 4096, **changes}
    return Call(Dims(heads, tokens), batch_size=batch, **given)


CALLS = st.builds(
    call,
    heads=st.integers(1, 128),
    tokens=st.integers(1, 9),
    batch=st.integers(0, 300),
    dtype=st.sampled_from(DTYPES),
    page_size=st.sampled_from(PAGE_SIZES),
    max_seq_len=st.integers(1, 200_000),
    window_left=st.integers(-1, 5000),
    is_var_seq=st.booleans(),
    token_major=st.booleans(),
)
WISHES = st.fixed_dictionaries(
    {
        "num_sms": st.integers(1, 200),
        "capability": st.sampled_from(CAPABILITIES),
        "rule": st.sampled_from(["seed", "normalised"]),
        "num_splits": st.none() | st.integers(1, MAX_SPLITS),
        "split_policy": st.sampled_from(["auto", "fixed"]),
    }
)


def for_any_call(test: Callable[..., None]) -> Callable[[], None]:
    return settings(deadline=None)(given(asked=CALLS, wishes=WISHES)(test))


# 1. The rule of tokenspeed-mla 0.2.5, in values that its own functions computed


def golden_rows() -> list[dict[str, str]]:
    with GOLDEN.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def planned(row: dict[str, str], rule: str) -> dict[str, str]:
    """The columns of ``row`` that a plan decides, decided here."""
    batch, tokens, heads, longest, num_sms = (
        int(row[name]) for name in ("batch", "seq_len_q", "num_heads", "max_seq_len", "num_sms")
    )
    major, minor = row["compute_capability"].split(".")
    asked = call(heads, tokens, batch, dtype=row["dtype"], max_seq_len=longest)
    chosen = plan(asked, num_sms, capability=(int(major), int(minor)), rule=rule)
    decided = {
        "tile_m": chosen.tiling.mma_tiler_qk[0],
        "tile_n_qk": chosen.tiling.mma_tiler_qk[1],
        "tile_n_pv": chosen.tiling.mma_tiler_pv[1],
        "fold": chosen.tiling.fold,
        "num_splits": chosen.num_splits,
        "workspace_bytes": chosen.workspace_bytes,
    }
    return row | {name: str(value) for name, value in decided.items()}


def test_rule_seed_gives_every_golden_plan() -> None:
    rows = golden_rows()
    assert len(rows) == 1500
    assert [planned(row, "seed") for row in rows] == rows


def test_golden_plans_tell_the_rules_apart() -> None:
    rows = golden_rows()
    differing = Counter(row["dtype"] for row in rows if planned(row, "normalised") != row)
    assert min(differing[FP8], differing["bfloat16"]) > 20  # splits and packing; packing alone


# 2. What every plan satisfies


@for_any_call
def test_rows_lie_on_tiles_as_the_reference_says(asked: Call, wishes: dict[str, Any]) -> None:
    chosen = plan(asked, **wishes)
    tiles, dims = chosen.tiling, asked.dims
    can_pack = wishes["rule"] != "seed" and asked.token_major
    layout = best_layout(dims.num_heads, dims.seq_len_q, tiles.tile_m, can_pack=can_pack)
    assert (tiles.heads_eff, tiles.seq_eff) == (layout.rows_per_tile, layout.num_tiles)
    assert tiles.heads_eff <= tiles.tile_m
    assert dims.seq_len_q % tiles.fold == 0
    small = asked.dtype == FP8 and layout.num_rows <= 64 and wishes["capability"] == (10, 0)
    assert tiles.tile_m == (64 if small else 128)
    assert tiles.cluster_shape == ((1, 1, 1) if small else (2, 1, 1))
    assert tiles.mma_tiler_pv == (tiles.tile_m, 256)


@for_any_call
def test_workspace_holds_every_row_that_a_tile_stores(asked: Call, wishes: dict[str, Any]) -> None:
    chosen = plan(asked, **wishes)
    tiles, rows = chosen.tiling, asked.dims.num_heads * asked.dims.seq_len_q
    if chosen.num_splits == 1:
        assert chosen.workspace_bytes == 0
        return
    stored = asked.batch_size * chosen.num_splits * rows
    assert tiles.seq_eff * tiles.heads_eff >= rows
    assert chosen.partial_rows >= stored
    assert chosen.partial_out_bytes == chosen.partial_rows * 512 * 4
    assert chosen.workspace_bytes == chosen.partial_rows * 513 * 4


def uncovered(chosen: Plan, num_tiles: int) -> set[int]:
    """Key tiles taken not just once, or not there; -1 if a split has more than one before it."""
    taken = Counter(
        tile for split in range(chosen.num_splits) for tile in chosen.key_tiles(split, num_tiles)
    )
    sizes = [len(chosen.key_tiles(split, num_tiles)) for split in range(chosen.num_splits)]
    late = {-1} if sizes != sorted(sizes, reverse=True) else set()
    return (
        late
        | {tile for tile in range(num_tiles) if taken[tile] != 1}
        | {tile for tile in taken if not 0 <= tile < num_tiles}
    )


@settings(deadline=None)
@given(asked=CALLS, wishes=WISHES, num_tiles=st.integers(0, 2000))
def test_splits_cover_every_key_tile_once(
    asked: Call, wishes: dict[str, Any], num_tiles: int
) -> None:
    assert uncovered(plan(asked, **wishes), num_tiles) == set()


class RoundedDown(Plan):
    """A plan whose splits are rounded down instead of up."""

    def key_tiles(self, split: int, num_tiles: int) -> range:
        each = num_tiles // self.num_splits
        return range(split * each, (split + 1) * each)


def test_uncovered_notices_a_tile_left_over() -> None:
    chosen = plan(call(), num_splits=3)
    broken = RoundedDown(chosen.call, chosen.tiling, 148, 3, chosen.chosen_by)
    assert uncovered(broken, 32) == {30, 31}


@for_any_call
def test_grids_count_work_and_rows(asked: Call, wishes: dict[str, Any]) -> None:
    chosen = plan(asked, **wishes)
    ctas = chosen.tiling.cluster_shape[0]
    work = asked.batch_size * chosen.tiling.seq_eff * chosen.num_splits
    assert chosen.num_work == work
    (x, y, z), clusters = chosen.split_grid, chosen.split_grid[0] // ctas
    assert (x % ctas, y, z) == (0, 1, 1)
    if asked.is_var_seq:
        assert clusters == work
    else:
        assert clusters == min(work, max(1, wishes["num_sms"] // ctas))
    rows = asked.batch_size * asked.dims.seq_len_q * asked.dims.num_heads
    assert chosen.combine_grid == (rows if chosen.num_splits > 1 else 0, 1, 1)
    assert x < 2**31


@for_any_call
def test_the_rule_for_fp8_leaves_no_split_of_the_longest_request_empty(
    asked: Call, wishes: dict[str, Any]
) -> None:
    wishes |= {"rule": "normalised", "num_splits": None, "split_policy": "auto"}
    chosen = plan(dataclasses.replace(asked, dtype=FP8, window_left=-1), **wishes)
    num_tiles = math.ceil(asked.max_seq_len / 128)
    assert all(chosen.key_tiles(split, num_tiles) for split in range(chosen.num_splits))


@settings(deadline=None)
@given(asked=CALLS, wishes=WISHES, other=CALLS, others=WISHES)
def test_fixed_splits_depend_on_rows_and_longest_request_alone(
    asked: Call, wishes: dict[str, Any], other: Call, others: dict[str, Any]
) -> None:
    same = {"dims": asked.dims, "max_seq_len": asked.max_seq_len}
    fixed: dict[str, Any] = {"num_splits": None, "split_policy": "fixed"}
    counts = {
        plan(
            dataclasses.replace(one, **same, batch_size=one.batch_size + 1), **had | fixed
        ).num_splits
        for one, had in ((asked, wishes), (other, others))
    }
    assert len(counts) <= 1  # none where both batches are empty
    assert counts <= set(range(1, 33))


def test_planned_splits_do_depend_on_the_batch() -> None:
    assert len({plan(call(batch=batch)).num_splits for batch in (1, 8, 64)}) == 3


@pytest.mark.parametrize(
    ("heads", "tokens", "longest", "splits"),
    [
        (128, 1, 128, 1),
        (128, 1, 1024, 1),
        (128, 1, 1025, 2),
        (128, 1, 32 * 1024, 32),
        (128, 1, 10**6, 32),
        (16, 4, 10**6, 32),
        (128, 4, 10**6, 8),
        (43, 3, 10**6, 16),  # 129 rows are two tiles
        (128, 64, 10**6, 1),
    ],
)
def test_fixed_splits_take_eight_tiles_each_until_there_are_enough(
    heads: int, tokens: int, longest: int, splits: int
) -> None:
    chosen = plan(call(heads, tokens, max_seq_len=longest), split_policy="fixed")
    assert (chosen.num_splits, chosen.chosen_by) == (splits, "fixed")


@for_any_call
def test_workspace_size_is_enough_whatever_the_query_s_strides(
    asked: Call, wishes: dict[str, Any]
) -> None:
    del wishes["rule"]
    needs = {
        plan(dataclasses.replace(asked, token_major=token_major), **wishes).workspace_bytes
        for token_major in (True, False)
    }
    assert workspace_size(asked, **wishes) == max(needs)


def test_workspace_size_reads_a_problem() -> None:
    problem = Problem(Dims(128, 1), FP8, 64, (700, 3), softmax_scale=1.0)
    assert workspace_size(problem, 148, 5) == 2 * 128 * 5 * 513 * 4
    assert workspace_size(problem, 148, 1) == 0


@pytest.mark.parametrize("tokens_strided", [True, False])
def test_96_heads_and_4_tokens_pack_into_3_tiles(tokens_strided: bool) -> None:
    tiles = plan(call(96, 4, token_major=not tokens_strided)).tiling
    assert (tiles.packed, tiles.seq_eff) == ((False, 4) if tokens_strided else (True, 3))
    assert not plan(call(96, 4), rule="seed").tiling.packed


def test_defaults_are_a_b200() -> None:
    assert tiling(call(16, 4)).tile_m == 64
    assert plan(call(16, 4)).num_sms == 148


def test_ties_keep_folding() -> None:
    assert not plan(call(32, 4)).tiling.packed


def test_an_empty_batch_needs_nothing() -> None:
    chosen = plan(call(batch=0))
    assert (chosen.num_splits, chosen.workspace_bytes, chosen.num_work) == (1, 0, 0)
    assert chosen.split_grid[0] == chosen.combine_grid[0] == 0


def test_a_window_bounds_the_keys_that_splits_are_planned_for() -> None:
    assert plan(call(max_seq_len=100_000, window_left=200)).num_splits == 2
    assert plan(call(max_seq_len=100_000, window_left=200), rule="seed").num_splits == 32


def test_reason_says_what_was_chosen_and_by_what() -> None:
    assert plan(call(16, 4, max_seq_len=700)).reason == (
        "tile_m 64 for float8_e4m3fn, 16 heads and 4 tokens, folded by 4; tiles a request: 1; "
        "splits: 6, by rule normalised"
    )
    assert "packed; tiles a request: 3" in plan(call(96, 4)).reason
    assert plan(call(), num_splits=7).reason.endswith("splits: 7, given")


# 3. What is compiled


def test_the_whole_matrix_needs_28_specialisations() -> None:
    keys = {
        specialisation_key(
            Problem(
                Dims(heads, tokens),
                dtype,
                page_size,
                (300, 0),
                0.1,
                mask=Mask(causal, window),
                is_var_seq=is_var_seq,
                enable_pdl=not causal,
            )
        )
        for heads in (1, 6, 12, 16, 24, 32, 48, 64, 96, 128)
        for tokens in (1, 2, 3, 4, 8)
        for dtype in DTYPES
        for page_size in PAGE_SIZES
        for causal, window, is_var_seq in itertools.product((True, False), (-1, 99), (True, False))
    }
    assert len(keys) == len(PAGE_SIZES) * (2 + 2)  # 16-bit: one tile height, FP8: two


def test_specialisation_key_tells_apart_what_must_be_compiled() -> None:
    base = call(16, 1)
    different = [
        base,
        call(16, 5),  # another tile height
        call(16, 1, dtype="float16"),
        call(16, 1, dtype="bfloat16"),
        call(16, 1, page_size=32),
    ]
    assert len({specialisation_key(one) for one in different}) == len(different)
    assert specialisation_key(base, (10, 3)).tile_m == 128


# 4. What is refused


@pytest.mark.parametrize(
    ("kind", "message", "wish"),
    [
        (ValueError, r"num_splits must be in \[1, 256\], got 0", {"num_splits": 0}),
        (ValueError, r"num_splits must be in \[1, 256\], got 257", {"num_splits": 257}),
        (TypeError, "num_splits must be an int, got 2.0", {"num_splits": 2.0}),
        (TypeError, "num_splits must be an int, got True", {"num_splits": True}),
        (ValueError, r"num_sms must be in \[1, 2147483647\], got 0", {"num_sms": 0}),
        (ValueError, r"rule must be one of \('seed', 'normalised'\), got 'best'", {"rule": "best"}),
        (ValueError, "split_policy must be one of .*, got 'none'", {"split_policy": "none"}),
        (
            ValueError,
            r"compute capability must be \(10, 0\) or \(10, 3\), got \(9, 0\)",
            {"capability": (9, 0)},
        ),
    ],
)
def test_plan_refuses(kind: type[Exception], message: str, wish: dict[str, Any]) -> None:
    with pytest.raises(kind, match=f"^{message}$"):
        plan(call(), **wish)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("dtype must be one of .*, got 'float32'", {"dtype": "float32"}),
        ("page_size must be one of .*, got 48", {"page_size": 48}),
        (r"batch_size must be in \[0, .*\], got -1", {"batch": -1}),
        (r"max_seq_len must be in \[1, .*\], got 0", {"max_seq_len": 0}),
        (r"window_left must be in \[-1, .*\], got -2", {"window_left": -2}),
    ],
)
def test_a_call_refuses(message: str, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        call(**change)


def test_a_call_refuses_a_number_for_a_bool() -> None:
    with pytest.raises(TypeError, match=r"^is_var_seq must be a bool, got 1$"):
        call(is_var_seq=1)


def test_supports_gives_the_reason() -> None:
    assert supports(call()).ok
    small = Problem(Dims(4, 1, 256, 64), FP8, 64, (5,), softmax_scale=1.0)
    assert (supports(small).ok, supports(small).reason) == (
        False,
        "kv_lora_rank must be 512, got 256",
    )
    narrow = Problem(Dims(4, 1, 512, 32), FP8, 64, (5,), softmax_scale=1.0)
    assert supports(narrow).reason == "qk_rope_head_dim must be 64, got 32"
    with pytest.raises(ValueError, match="kv_lora_rank must be 512, got 256"):
        plan(small)
