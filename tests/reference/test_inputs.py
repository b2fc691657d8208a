"""The same problem, recipe and seed give the same bits everywhere, laid out as the recipe says."""

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings

from reference import inputs as inputs_module
from reference import masks, paging
from reference.inputs import Inputs, make_inputs, to_dtype
from reference.problem import DTYPES, INT32_MAX, Dcp, Dims, Mask, Problem, Recipe
from reference.randomness import normal_deviates, random_bits
from tests.reference import tiny

ROOT = Path(__file__).parents[2]
PROBLEM = Problem(
    dims=Dims(num_heads=4, seq_len_q=3),
    dtype="float8_e4m3fn",
    page_size=16,
    seq_lens=(3, 130, 0, 33),
    softmax_scale=0.1,
    mask=Mask(window_left=20),
    dcp=Dcp(2, 1, 4, (10, 200, 7, 70)),
)
NAMES = [field.name for field in dataclasses.fields(Inputs)]

# Replaying a recorded case needs these bits on every machine, today and later.
GOLDEN = {
    "float16": "073d491555fd2b72",
    "bfloat16": "ebd132d7aab02b52",
    "float8_e4m3fn": "a18f838af26cfed2",
}


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def digest(inputs: Inputs) -> str:
    tensors = [getattr(inputs, name) for name in NAMES]
    parts = [b"" if t is None else str(tuple(t.shape)).encode() + raw(t) for t in tensors]
    return hashlib.sha256(b"|".join(parts)).hexdigest()[:16]


def assert_same(one: Inputs, other: Inputs, names: list[str] = NAMES) -> None:
    for name in names:
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None), name
        if a is not None:
            assert a.shape == b.shape, name
            assert raw(a) == raw(b), name


def stored_keys(problem: Problem, inputs: Inputs, request: int) -> torch.Tensor:
    seq_len = problem.seq_lens[request]
    return paging.gather(inputs.kv_cache, inputs.block_tables[request], seq_len)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_the_recorded_ones(dtype: str) -> None:
    problem = dataclasses.replace(PROBLEM, dtype=dtype)
    assert digest(make_inputs(problem, Recipe(magnitude=3.0), 12345)) == GOLDEN[dtype]


@settings(max_examples=30, deadline=None)
@given(problem=tiny.problems(), recipe=tiny.RECIPES, seed=tiny.SEEDS)
def test_json_gives_the_identical_tensors(problem: Problem, recipe: Recipe, seed: int) -> None:
    data = json.loads(json.dumps({"problem": problem.to_json(), "recipe": recipe.to_json()}))
    again = make_inputs(Problem.from_json(data["problem"]), Recipe.from_json(data["recipe"]), seed)
    assert_same(make_inputs(problem, recipe, seed), again)


def test_bits_do_not_depend_on_threads_process_or_vector_unit() -> None:
    script = (
        "import json, sys, torch\n"
        "torch.set_num_threads(int(sys.argv[1]))\n"
        "from reference.problem import Problem, Recipe\n"
        "from reference.inputs import make_inputs\n"
        "inputs = make_inputs(Problem.from_json(json.loads(sys.argv[2])), Recipe(), 7)\n"
        "sys.stdout.buffer.write(inputs.kv_cache.view(torch.uint8).numpy().tobytes())\n"
    )
    expected = raw(make_inputs(PROBLEM, Recipe(), 7).kv_cache)
    for threads, capability in (("1", "default"), ("3", "avx2")):
        result = subprocess.run(
            [sys.executable, "-c", script, threads, json.dumps(PROBLEM.to_json())],
            cwd=ROOT,
            env=os.environ | {"ATEN_CPU_CAPABILITY": capability},
            capture_output=True,
            check=True,
        )
        assert result.stdout == expected


def test_seeds_and_names_give_different_bits() -> None:
    digests = {digest(make_inputs(PROBLEM, Recipe(), seed)) for seed in range(20)}
    assert len(digests) == 20
    bits = random_bits(1, "query/0", (64,), torch.uint16)
    stream = hashlib.shake_256(b"1/query/0").digest(128)
    assert bits.tolist() == [stream[2 * k] + 256 * stream[2 * k + 1] for k in range(64)]
    assert not torch.equal(bits, random_bits(1, "keys/0", (64,), torch.uint16))
    assert random_bits(1, "query/0", (0, 3), torch.uint16).shape == (0, 3)


def test_no_tensor_shifts_when_another_one_changes() -> None:
    plain = make_inputs(PROBLEM, Recipe(), 5)
    longer = dataclasses.replace(PROBLEM, seq_lens=(77, 130, 0, 33))
    assert_same(plain, make_inputs(longer, Recipe(), 5), ["query"])
    more_heads = dataclasses.replace(PROBLEM, dims=Dims(9, 3))
    assert_same(plain, make_inputs(more_heads, Recipe(), 5), ["kv_cache", "block_tables"])
    for change in ({"page_size": 64}, {"seq_lens": (77, 130, 0, 33)}):
        problem = dataclasses.replace(PROBLEM, **change)
        other = make_inputs(problem, Recipe(page_order="reversed", spare_pages=9), 5)
        seen = masks.visible_keys(PROBLEM, 1).any(dim=0)
        before, after = stored_keys(PROBLEM, plain, 1), stored_keys(problem, other, 1)
        assert seen.any()
        assert torch.equal(before[seen], after[seen])


def test_normal_values() -> None:
    deviates = normal_deviates(3, "x", (1000, 1000)).double()
    assert abs(deviates.mean().item()) < 0.005
    assert deviates.var().item() == pytest.approx(1.0, abs=0.01)
    assert (deviates**4).mean().item() == pytest.approx(3.0, abs=0.05)
    assert 4.0 < deviates.abs().max() < 4.4
    rows = deviates[:, :-1] * deviates[:, 1:]
    assert abs(rows.mean().item()) < 0.005


@pytest.mark.parametrize("dtype", DTYPES)
def test_magnitude_is_a_factor(dtype: str) -> None:
    problem = dataclasses.replace(PROBLEM, dtype=dtype)
    one = make_inputs(problem, Recipe(), 5).query.double()
    four = make_inputs(problem, Recipe(magnitude=4.0), 5).query.double()
    normal = one.abs() > 2**-6  # a value of e4m3's subnormals has fewer bits than 4 times it
    assert torch.equal(4 * one[normal], four[normal])
    assert one.std().item() == pytest.approx(1.0, abs=0.05)
    assert (make_inputs(problem, Recipe(magnitude=0.0), 5).query.double() == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_saturates_and_is_to_nearest_even(dtype: str) -> None:
    kind = getattr(torch, dtype)
    largest, step = torch.finfo(kind).max, torch.finfo(kind).eps
    values = torch.tensor(
        [3.3e38, -3.3e38, 1 + step / 2, 1 + 1.5 * step, torch.nan, torch.inf, -torch.inf]
    )
    got = to_dtype(values, dtype).double()
    saturated = [min(3.3e38, largest), -min(3.3e38, largest)]
    assert got[:2].tolist() == pytest.approx(saturated, rel=step)
    assert got[:2].isfinite().all()
    assert got[2:4].tolist() == [1.0, 1 + 2 * step]
    assert got[4].isnan()
    if dtype == "float8_e4m3fn":
        assert got[5:].isnan().all()
    else:
        assert got[5:].tolist() == [torch.inf, -torch.inf]


def test_large_e4m3_values_do_not_become_nan() -> None:
    inputs = make_inputs(PROBLEM, Recipe(magnitude=1000.0), 5)
    assert not inputs.query.float().isnan().any()
    assert not inputs.kv_cache.float().isnan().any()
    assert inputs.query.float().abs().max() == 448


@settings(max_examples=100, deadline=None)
@given(problem=tiny.problems(), recipe=tiny.RECIPES, seed=tiny.SEEDS)
def test_pool_holds_each_request_in_pages_of_its_own(
    problem: Problem, recipe: Recipe, seed: int
) -> None:
    inputs = make_inputs(problem, recipe, seed)
    needed = [paging.pages_needed(seq_len, problem.page_size) for seq_len in problem.seq_lens]
    owned = [inputs.block_tables[b, :count].tolist() for b, count in enumerate(needed)]
    pages = [page for request in owned for page in request]
    num_pages = max(1, sum(needed) + recipe.spare_pages)
    assert inputs.kv_cache.shape == (num_pages, problem.page_size, problem.dims.qk_head_dim)
    assert len(set(pages)) == len(pages)
    assert all(0 <= page < num_pages for page in pages)
    if recipe.page_order == "identity":
        assert pages == list(range(len(pages)))
    if recipe.page_order == "reversed":
        assert pages == [num_pages - 1 - index for index in range(len(pages))]
    assert inputs.seq_lens.tolist() == list(problem.seq_lens)
    causal_seqs = problem.dcp.causal_seqs
    assert (inputs.causal_seqs is None) == (causal_seqs is None)
    assert causal_seqs is None or inputs.causal_seqs.tolist() == list(causal_seqs)
    for name in ("block_tables", "seq_lens"):
        assert getattr(inputs, name).dtype == torch.int32
    for name in NAMES:
        assert getattr(inputs, name) is None or getattr(inputs, name).is_contiguous()


@settings(max_examples=100, deadline=None)
@given(problem=tiny.problems(), recipe=tiny.RECIPES, seed=tiny.SEEDS)
def test_slots_are_poisoned_exactly_where_no_token_sees(
    problem: Problem, recipe: Recipe, seed: int
) -> None:
    seen = torch.zeros(make_inputs(problem, recipe, seed).kv_cache.shape[:2], dtype=torch.bool)
    inputs = make_inputs(problem, dataclasses.replace(recipe, poison=True), seed)
    for request, seq_len in enumerate(problem.seq_lens):
        for key in range(seq_len):
            page = inputs.block_tables[request, key // problem.page_size]
            tokens = range(problem.dims.seq_len_q)
            seen[page, key % problem.page_size] = any(
                masks.visible(problem, request, token, key) for token in tokens
            )
    assert torch.equal((~inputs.kv_cache.float().isfinite()).all(dim=2), ~seen)
    assert torch.equal((~inputs.kv_cache.float().isfinite()).any(dim=2), ~seen)
    plain = make_inputs(problem, dataclasses.replace(recipe, poison=False), seed)
    unseen = plain.kv_cache.float()[~seen].abs()
    assert ((unseen >= 224) & (unseen <= 448)).all()
    assert torch.equal(plain.kv_cache.float()[seen], inputs.kv_cache.float()[seen])


def test_page_orders_differ() -> None:
    orders = {
        order: make_inputs(PROBLEM, Recipe(page_order=order), 5).block_tables[1, :9].tolist()
        for order in ("random", "identity", "reversed")
    }
    assert orders["identity"] == list(range(1, 10))
    assert orders["reversed"] == list(range(14, 5, -1))
    assert sorted(orders["random"]) != orders["random"] != orders["reversed"]


@pytest.mark.parametrize("page_size", [2, 16, 128])
def test_table_tails(page_size: int) -> None:
    problem = dataclasses.replace(PROBLEM, page_size=page_size)
    needed = [paging.pages_needed(seq_len, page_size) for seq_len in problem.seq_lens]
    for tail in ("minimal", "tile", "wild"):
        inputs = make_inputs(problem, Recipe(table_tail=tail), 5)
        num_pages = len(inputs.kv_cache)
        width = needed[1] if tail == "minimal" else 256 // page_size
        assert inputs.block_tables.shape == (4, width)
        owned = {page for b, n in enumerate(needed) for page in inputs.block_tables[b, :n].tolist()}
        rest = {page for b, n in enumerate(needed) for page in inputs.block_tables[b, n:].tolist()}
        if tail == "wild":
            assert rest <= {-1, num_pages, INT32_MAX, -INT32_MAX - 1}
        else:
            assert rest <= set(range(num_pages)) - owned
        assert len(rest) > 1


def test_tail_without_spare_pages_names_pages_of_the_pool() -> None:
    inputs = make_inputs(PROBLEM, Recipe(spare_pages=0), 5)
    assert set(inputs.block_tables.flatten().tolist()) <= set(range(len(inputs.kv_cache)))


@pytest.mark.parametrize("seq_lens", [(), (0,), (0, 0)])
def test_nothing_to_store_still_has_a_pool_and_a_table(seq_lens: tuple[int, ...]) -> None:
    problem = Problem(Dims(1, 1), "float16", 8, seq_lens, softmax_scale=1.0)
    inputs = make_inputs(problem, Recipe(table_tail="minimal", spare_pages=0), 5)
    assert inputs.kv_cache.shape == (1, 8, 576)
    assert inputs.block_tables.tolist() == [[0]] * len(seq_lens)
    assert inputs.query.shape == (len(seq_lens), 1, 1, 576)


def test_unknown_recipe_is_refused() -> None:
    with pytest.raises(ValueError, match=r"recipe.values must be one of .*'normal'.*, got 'magic'"):
        make_inputs(PROBLEM, Recipe(values="magic"), 1)


def test_a_value_generator_is_one_entry_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def ones(problem: Problem, recipe: Recipe, seed: int, request: int) -> tuple:
        dims = problem.dims
        query = torch.ones(dims.seq_len_q, dims.num_heads, dims.qk_head_dim)
        return query, torch.full((problem.seq_lens[request], dims.qk_head_dim), 2.0 + request)

    monkeypatch.setattr(inputs_module, "VALUES", {"ones": ones})
    problem = dataclasses.replace(PROBLEM, mask=Mask(), dcp=Dcp())
    inputs = make_inputs(problem, Recipe(values="ones"), 1)
    assert (inputs.query.float() == 1).all()
    for request in range(4):
        assert (stored_keys(problem, inputs, request) == 2 + request).all()


def test_to_moves_every_tensor() -> None:
    inputs = make_inputs(PROBLEM, Recipe(), 1)
    moved = inputs.to("meta")
    assert {getattr(moved, name).device.type for name in NAMES} == {"meta"}
    alone = dataclasses.replace(PROBLEM, dcp=Dcp())
    assert make_inputs(alone, Recipe(), 1).to("meta").causal_seqs is None
    assert_same(inputs, inputs.to("cpu"))
