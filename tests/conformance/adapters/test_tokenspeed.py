"""The published kernels behind the protocol: what is replaced, asked for, compiled and launched."""

from __future__ import annotations

import json
import math
import re

import pytest
import torch
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.adapters import tokenspeed
from conformance.adapters.tokenspeed_versions import V0_2_5, V2_0_4
from conformance.adapters.tokenspeed_wrapper import PEERS, Device, Wrapper, replacements
from conformance.kernel import Compiled, RunOptions, UsageError
from reference.decode import decode
from reference.inputs import make_inputs
from reference.problem import DTYPES, PAGE_SIZES, Dcp, Dims, Mask, Problem, Recipe
from simulator.errors import OutOfBounds

FP8 = "float8_e4m3fn"
VERSIONS = (V2_0_4, V0_2_5)
FACTORIES = {
    (V2_0_4, FP8): tokenspeed.fp8_2_0_4,
    (V2_0_4, "bfloat16"): tokenspeed.bf16_2_0_4,
    (V2_0_4, "float16"): tokenspeed.fp16_2_0_4,
    (V0_2_5, FP8): tokenspeed.fp8_0_2_5,
    (V0_2_5, "bfloat16"): tokenspeed.bf16_0_2_5,
    (V0_2_5, "float16"): tokenspeed.fp16_0_2_5,
}

needs_peers = pytest.mark.skipif(
    not all((PEERS / f"tokenspeed-mla-{version.number}").is_dir() for version in VERSIONS),
    reason=f"tokenspeed-mla is not in {PEERS.name}/: nox -s peers installs it",
)


def problem(heads=128, tokens=1, seq_lens=(256, 200), **changes):
    given = {"dtype": FP8, "page_size": 64, "softmax_scale": 1 / math.sqrt(192), **changes}
    return Problem(Dims(heads, tokens), seq_lens=seq_lens, **given)


class StubStore:
    """Compiles nothing; remembers the keys."""

    def __init__(self):
        self.keys = []

    def get(self, key, make):
        self.keys.append(key)
        return Compiled(ptx="setp.lt", host_object=b"", entry="e")


@pytest.fixture(scope="module")
def fp8_2_0_4():
    """One adapter for all runs: it keeps the decoded program."""
    return tokenspeed.fp8_2_0_4()


@pytest.fixture
def launches(monkeypatch):
    """What reaches the simulator, which does nothing here."""
    seen = []

    def launch(program, arguments, **options):
        seen.append((program, arguments, options))
        return tokenspeed.simulation.Result(())

    monkeypatch.setattr(tokenspeed.simulation, "load", lambda ptx, host_object, entry: ptx)
    monkeypatch.setattr(tokenspeed.simulation, "launch", launch)
    return seen


# 1. What is replaced

EXPECTED_REPLACEMENTS = {
    ("torch.cuda", "get_device_capability"),
    ("tvm_ffi", "use_torch_stream"),
    ("tokenspeed_mla.mla_decode", "get_num_sm"),
    ("tokenspeed_mla.mla_decode", "get_max_active_clusters"),
    ("tokenspeed_mla.mla_decode", "_get_compiled_mla_kernel"),
}


@needs_peers
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.number)
def test_exactly_these_names_are_replaced_and_then_put_back(version):
    wrapper = Wrapper(version.number, PEERS)
    with wrapper._module() as module:
        listed = replacements(module, Device("sm_100a", 148), lambda *_, **__: None)
        assert {(owner.__name__, name) for owner, name, _ in listed} == EXPECTED_REPLACEMENTS
        owners = {
            **wrapper._package._modules,
            module.__name__: module,
            "torch": torch,
            "torch.cuda": torch.cuda,
            "tvm_ffi": tvm_ffi,
        }
        before = {name: dict(vars(owner)) for name, owner in owners.items()}
        with wrapper.without_gpu(Device("sm_100a", 148), lambda *_, **__: None) as decode:
            assert decode is before[module.__name__]["tokenspeed_mla_decode"]
            changed = {
                (owner, name)
                for owner, values in before.items()
                for name, value in vars(owners[owner]).items()
                if values.get(name) is not value
            }
        assert changed == EXPECTED_REPLACEMENTS
        assert {name: dict(vars(owner)) for name, owner in owners.items()} == before


@needs_peers
def test_on_a_gpu_nothing_is_replaced():
    wrapper = Wrapper(V2_0_4.number, PEERS)
    with wrapper._module() as module:
        before = dict(vars(module))
        with wrapper.untouched() as decode:
            assert decode is before["tokenspeed_mla_decode"]
            assert dict(vars(module)) == before


# 2. What the wrapper is asked and what it answers


@needs_peers
@pytest.mark.parametrize(
    ("version", "heads", "tokens", "seq_lens", "expected"),
    [
        (V0_2_5, 128, 1, (256, 200), (32, 2 * 128 * 32 * 513 * 4)),
        (V2_0_4, 128, 1, (256, 200), (2, 2 * 128 * 2 * 513 * 4)),
        (V0_2_5, 16, 4, (700,), (6, 64 * 6 * 513 * 4)),
        (V2_0_4, 16, 4, (700,), (6, 64 * 6 * 513 * 4)),
        (V0_2_5, 128, 1, (100,) * 100, (1, 0)),
        (V2_0_4, 128, 1, (100,), (1, 0)),
    ],
)
def test_plan_is_the_wrappers(version, heads, tokens, seq_lens, expected):
    plan = FACTORIES[version, FP8]().plan(problem(heads, tokens, seq_lens), 148)
    assert (plan.num_splits, plan.workspace_bytes) == expected


@needs_peers
def test_fewer_sms_give_fewer_splits():
    kernel = tokenspeed.fp8_0_2_5()
    splits = [kernel.plan(problem(), num_sms).num_splits for num_sms in (148, 20, 8, 1)]
    assert splits == [32, 5, 2, 1]


@needs_peers
@pytest.mark.parametrize("requested", [1, 2, 3, 4, 5, 6, 9])
def test_num_splits_is_met_short_of_empty_partitions(launches, requested):
    kernel = tokenspeed.fp8_2_0_4(store=StubStore())
    asked = problem(seq_lens=(6 * 128,))
    kernel.run(asked, make_inputs(asked, Recipe(), 0), RunOptions(num_splits=requested))
    ((_, arguments, _),) = launches
    assert arguments[8] == math.ceil(6 / math.ceil(6 / requested))


@needs_peers
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.number)
def test_specialisations_are_shared_where_nothing_compiled_differs(version):
    key = FACTORIES[version, FP8]().specialisation_key
    same = [problem(), problem(seq_lens=(131, 7)), problem(softmax_scale=0.5, output_scale=2.0)]
    different = [
        problem(page_size=32),
        problem(heads=64),
        problem(tokens=2),
        problem(mask=Mask(causal=False)),
        problem(enable_pdl=True),
        problem(is_var_seq=False),
        problem(dcp=Dcp(world=2, causal_seqs=(400, 300))),
        problem(seq_lens=(1,) * 100),
    ]
    assert len({key(p) for p in same}) == 1
    assert len({key(p) for p in [*same[:1], *different]}) == 1 + len(different)


@st.composite
def problems(draw):
    world = draw(st.sampled_from([1, 1, 2]))
    seq_lens = draw(st.lists(st.integers(0, 700), max_size=2).map(tuple))
    dcp = Dcp(
        world=world,
        rank=draw(st.integers(0, world - 1)),
        interleave_size=draw(st.sampled_from([1, 1, 4])),
        causal_seqs=seq_lens if world > 1 or draw(st.booleans()) else None,
    )
    return Problem(
        Dims(
            draw(st.sampled_from([1, 12, 16, 64, 100, 128])),
            draw(st.integers(1, 6)),
            kv_lora_rank=draw(st.sampled_from([512, 512, 512, 256])),
            qk_rope_head_dim=draw(st.sampled_from([64, 64, 64, 32])),
        ),
        draw(st.sampled_from(DTYPES)),
        draw(st.sampled_from(PAGE_SIZES)),
        seq_lens,
        0.1,
        mask=Mask(draw(st.booleans()), draw(st.sampled_from([-1, -1, 0, 3, 100]))),
        dcp=dcp,
    )


@needs_peers
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.number)
@settings(max_examples=100, deadline=None)
@given(asked=problems())
def test_supports_agrees_with_what_the_wrapper_refuses(version, asked):
    kernel = FACTORIES[version, asked.dtype]()
    # Version 0.2.5 has no argument to be told these by.
    if version is V0_2_5 and (asked.dcp.interleave_size != 1 or asked.mask.window_left != -1):
        assert not kernel.supports(asked).ok
        return
    try:
        kernel.plan(asked, 148)
        accepted = True
    except (ValueError, ZeroDivisionError):
        accepted = False
    assert kernel.supports(asked).ok == accepted, kernel.supports(asked).reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "bfloat16"}, "dtype bfloat16: .* takes float8_e4m3fn"),
        ({"lse_base": "e"}, "lse_base e"),
        ({"seq_lens": ()}, "batch_size 0"),
        ({"mask": Mask(window_left=1), "tokens": 4}, "window_left 1: .* seq_len_q - 1 = 3"),
    ],
    ids=str,
)
def test_refusal_names_argument_value_and_limit(changes, reason):
    kernel = tokenspeed.fp8_2_0_4()
    support = kernel.supports(problem(**changes))
    assert not support.ok
    with pytest.raises(UsageError, match=reason):
        kernel.run(problem(**changes), None, RunOptions())


# 3. What reaches the simulator


@needs_peers
@pytest.mark.parametrize("poison", [True, False])
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.number)
def test_simulator_gets_the_tensors_of_the_call(launches, version, poison):
    asked = problem(16, 4, (300, 40), output_scale=0.75)
    inputs = make_inputs(asked, Recipe(), 3)
    kernel = FACTORIES[version, FP8](store=StubStore())
    output = kernel.run(
        asked, inputs, RunOptions(num_sms=4, policy="random", policy_seed=7, poison=poison)
    )
    ((_, arguments, options),) = launches
    tensors = {t.name: t for t in arguments if isinstance(t, tokenspeed.simulation.Tensor)}
    assert set(tensors) == set(tokenspeed.ARGUMENTS) - {"split_kv"}
    assert tensors["query (latent)"].pointer == inputs.query.data_ptr()
    assert tensors["query (rope)"].pointer == inputs.query.data_ptr() + 512
    assert tensors["kv_cache (rope)"].pointer == inputs.kv_cache.data_ptr() + 512
    assert tensors["kv_cache (rope)"].strict
    assert tensors["block_tables"].pointer == inputs.block_tables.data_ptr()
    assert tensors["out"].pointer == output.out.data_ptr()
    assert tensors["lse"].pointer == output.lse.data_ptr()
    assert {name for name, t in tensors.items() if not t.initialised} == {"out", "workspace_buffer"}
    assert tensors["workspace_buffer"].storage_bytes == 2 * 64 * 2 * 513 * 4
    assert arguments[8] == 2
    assert arguments[11] is None
    assert arguments[12:14] == [pytest.approx(1 / math.sqrt(192)), 0.75]
    assert arguments[14:] == ([None] if version is V2_0_4 else [])
    assert (options["policy"].name, options["policy"].seed) == ("random", 7)
    assert options["checks"].initialisation
    assert bool(output.out.isnan().all()) is poison
    assert bool(tensors["workspace_buffer"].owner.eq(-1).all()) is poison


@needs_peers
def test_store_is_asked_with_everything_that_decides_the_compilation(launches):
    store = StubStore()
    asked = problem()
    for kernel in (tokenspeed.fp8_2_0_4(store=store), tokenspeed.fp8_0_2_5(store=store)):
        kernel.run(asked, make_inputs(asked, Recipe(), 0), RunOptions())
        kernel.compile(asked, "sm_103a")
    assert len({json.dumps(key, sort_keys=True) for key in store.keys}) == 4
    for key, version, arch in zip(
        store.keys, ["2.0.4"] * 2 + ["0.2.5"] * 2, ["sm_100a", "sm_103a"] * 2, strict=True
    ):
        assert (key["tokenspeed-mla"], key["arch"]) == (version, arch)
        assert key["arguments"]["num_heads"] == 128
        assert key["nvidia-cutlass-dsl"]


@needs_peers
def test_transform_changes_what_the_simulator_sees(launches):
    kernel = tokenspeed.fp8_2_0_4(
        name="le", store=StubStore(), transform=lambda ptx: ptx.replace("lt", "le")
    )
    asked = problem()
    kernel.run(asked, make_inputs(asked, Recipe(), 0), RunOptions())
    assert [program for program, _, _ in launches] == ["setp.le"]
    assert kernel.compile(asked, "sm_100a").ptx == "setp.le"
    with pytest.raises(UsageError, match="engine: 'cuda': le changes the PTX"):
        kernel.run(asked, None, RunOptions(engine="cuda"))


# 4. What is refused, and what goes wrong


@needs_peers
def test_block_table_that_ends_early_is_named(fp8_2_0_4):
    asked = problem(128, 1, (40, 150))
    assert fp8_2_0_4.limits.table_tails == ("tile",)
    with pytest.raises(OutOfBounds, match=r"block_tables \(int32\[2, 3\]\): index \[2, 0\]"):
        fp8_2_0_4.run(
            asked, make_inputs(asked, Recipe(table_tail="minimal"), 1), RunOptions(num_splits=2)
        )


@needs_peers
def test_page_outside_the_pool_is_named(fp8_2_0_4):
    asked = problem(128, 1, (40, 150))
    with pytest.raises(OutOfBounds, match=r"kv_cache \(latent\): coordinates"):
        fp8_2_0_4.run(
            asked, make_inputs(asked, Recipe(table_tail="wild"), 1), RunOptions(num_splits=2)
        )


def test_version_that_is_not_installed_is_named(tmp_path):
    kernel = tokenspeed.fp8_2_0_4(peers=tmp_path)
    with pytest.raises(UsageError, match=r"tokenspeed-mla 2\.0\.4 is not in .*run nox -s peers"):
        kernel.plan(problem(), 148)


def test_folder_with_another_version_is_refused(tmp_path):
    (tmp_path / "tokenspeed-mla-2.0.4" / "tokenspeed_mla-2.0.3.dist-info").mkdir(parents=True)
    with pytest.raises(UsageError, match="run nox -s peers"):
        tokenspeed.fp8_2_0_4(peers=tmp_path).plan(problem(), 148)


def test_splits_cannot_be_told_to_0_2_5():
    with pytest.raises(UsageError, match=r"num_splits: 2: tokenspeed-mla-0\.2\.5-fp8"):
        tokenspeed.fp8_0_2_5().run(problem(), None, RunOptions(num_splits=2))


def test_unknown_architecture_is_refused():
    with pytest.raises(UsageError, match="arch: 'sm_90a' is none of sm_100a, sm_103a"):
        tokenspeed.fp8_0_2_5().compile(problem(), "sm_90a")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_gpu_that_is_not_there_is_named():
    with pytest.raises(UsageError, match="'cuda' cannot run tokenspeed-mla-2"):
        tokenspeed.fp8_2_0_4().run(problem(), None, RunOptions(engine="cuda"))


# 5. A changed kernel

TAIL_MASK = re.compile(
    r"setp\.lt(?P<rest>\.s32\s+(?P<keep>%p\d+),[^\n]*\n(?:[^\n]*\n)?"
    r"\s*selp\.f32[^\n]*0fC9742400, (?P=keep);)"
)
LAST_TILES_SECOND_KEY = 65


def unmask_one_key_too_many(ptx):
    """In the last tile, let its second key pass where it is the first one past the end."""
    comparisons = list(TAIL_MASK.finditer(ptx))
    assert len(comparisons) == 128
    found = comparisons[LAST_TILES_SECOND_KEY]
    return ptx[: found.start()] + "setp.le" + found["rest"] + ptx[found.end() :]


@needs_peers
def test_one_changed_comparison_shows(fp8_2_0_4):
    asked = problem(128, 1, (129,))
    inputs = make_inputs(asked, Recipe(), 1)
    changed = tokenspeed.fp8_2_0_4(name="changed", transform=unmask_one_key_too_many)
    expected = decode(asked, inputs).lse
    error = {
        kernel.name: (kernel.run(asked, inputs, RunOptions(num_splits=2)).lse - expected)
        .abs()
        .max()
        for kernel in (fp8_2_0_4, changed)
    }
    assert error[fp8_2_0_4.name] < 1e-5
    assert error["changed"] > 1


# 6. From end to end, each version once, in one process


@needs_peers
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.number)
def test_kernel_agrees_with_the_reference(version, fp8_2_0_4):
    asked = problem(128, 1, (256, 131))
    inputs = make_inputs(asked, Recipe(), 1)
    given = [t.clone() for t in (inputs.query, inputs.kv_cache, inputs.block_tables)]
    if version is V2_0_4:
        output = fp8_2_0_4.run(asked, inputs, RunOptions(num_splits=2))
    else:
        output = tokenspeed.fp8_0_2_5().run(asked, inputs, RunOptions(num_sms=8))
    expected = decode(asked, inputs)
    error = output.out.double() - expected.out
    assert error.norm() / expected.out.norm() < 0.03
    assert (output.lse.double() - expected.lse).abs().max() < 1e-5
    for before, after in zip(
        given, (inputs.query, inputs.kv_cache, inputs.block_tables), strict=True
    ):
        assert torch.equal(before.view(torch.uint8), after.view(torch.uint8))
