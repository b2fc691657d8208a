"""Plans equal to what the published wrappers decide, called with tensors that hold no numbers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from conformance.adapters.tokenspeed_wrapper import CAPABILITIES, PEERS, Device, Wrapper
from optimized.plan import plan
from optimized.validate import Arguments, validate

ARGUMENTS = 1000  # a rule and a device
SMS = (132, 148, 160)
ENOUGH = 2**50  # bytes of workspace, on a device without memory


@dataclass(frozen=True)
class Decided:
    """What a wrapper or a plan decides of a call."""

    tile_m: int
    fold: int
    packed: bool
    num_splits: int
    workspace_bytes: int


def drawn(random_: random.Random, windows: bool) -> dict[str, Any]:
    """Arguments of a call, as both take them."""
    dtype = random_.choice([torch.float16, torch.bfloat16, torch.float8_e4m3fn])
    heads, tokens = random_.randint(1, 128), random_.randint(1, 9)
    if random_.random() < 0.5:  # the sizes that models have
        heads = random_.choice([6, 8, 12, 16, 24, 32, 48, 64, 96, 128])
    batch = random_.choice([1, 2, 3, 5, 16, 37, 74, 150, 300])
    gap = random_.choice([0, 0, 1])  # heads of another tensor between two tokens
    page_size = random_.choice([2, 4, 8, 16, 32, 64, 128])
    query = torch.empty(batch, tokens, heads + gap, 576, dtype=dtype, device="meta")
    arguments = {
        "query": query[:, :, :heads],
        "kv_cache": torch.empty(1, page_size, 576, dtype=dtype, device="meta"),
        "workspace_buffer": torch.empty(ENOUGH, dtype=torch.int8, device="meta"),
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "block_tables": torch.empty(batch, 1, dtype=torch.int32, device="meta"),
        "seq_lens": torch.empty(batch, dtype=torch.int32, device="meta"),
        "max_seq_len": random_.choice([1, 128, 129, random_.randint(1, 100_000)]),
        "softmax_scale": 1.0,
        "is_var_seq": random_.random() < 0.5,
    }
    if windows and random_.random() < 0.5:
        arguments["window_left"] = random_.choice([tokens - 1, random_.randint(tokens, 9000)])
    return arguments


def wrapper_decisions(
    version: str, device: Device, cases: list[dict[str, Any]]
) -> Iterator[Decided]:
    """What the wrapper of ``version`` decides in each case."""
    key: dict[str, Any] = {}
    launched: list[Any] = []

    def get_kernel(_compile_kernel: Any, **asked: Any) -> Any:
        key.update(asked)
        return lambda *arguments: launched.extend(arguments)

    with Wrapper(version, PEERS).without_gpu(device, get_kernel) as decode:
        tilers = decode.__globals__["select_mla_decode_tilers"]
        for case in cases:
            launched.clear()
            decode(**case)
            is_fp8 = case["query"].dtype == torch.float8_e4m3fn
            (tile_m, _), _ = tilers(
                key["num_heads"],
                key["seq_len_q"],
                is_fp8=is_fp8,
                compute_capability=key["compute_capability"],
            )
            workspace, splits = launched[7:9]
            yield Decided(
                tile_m,
                key["fold_sq_factor"],
                key.get("pack_q", False),
                splits.value,
                0 if workspace is None else workspace.nbytes,
            )


def our_decision(rule: str, device: Device, case: dict[str, Any]) -> Decided:
    capability = CAPABILITIES[device.arch]
    call = validate(Arguments(**case), device.num_sms, capability).call
    chosen = plan(call, device.num_sms, capability=capability, rule=rule)
    tiles = chosen.tiling
    return Decided(
        tiles.tile_m, tiles.fold, tiles.packed, chosen.num_splits, chosen.workspace_bytes
    )


@pytest.mark.parametrize("num_sms", SMS)
@pytest.mark.parametrize("arch", CAPABILITIES)
@pytest.mark.parametrize(("version", "rule"), [("2.0.4", "normalised"), ("0.2.5", "seed")])
def test_plan_equals_the_published_wrapper_s(
    version: str, rule: str, arch: str, num_sms: int
) -> None:
    if not (PEERS / f"tokenspeed-mla-{version}").is_dir():
        pytest.skip(f"tokenspeed-mla {version} is not in {PEERS.name}/: nox -s peers installs it")
    source = random.Random(f"{version} {arch} {num_sms}")
    cases = [drawn(source, windows=version == "2.0.4") for _ in range(ARGUMENTS)]
    device = Device(arch, num_sms)
    theirs = list(wrapper_decisions(version, device, cases))
    ours = [our_decision(rule, device, case) for case in cases]
    wrong = [
        (ours, theirs, case)
        for ours, theirs, case in zip(ours, theirs, cases, strict=True)
        if ours != theirs
    ]
    assert wrong == []
    # What the cases must contain to say anything.
    packed = Counter(decided.packed for decided in theirs)
    assert packed[True] > 50 or version == "0.2.5"
    assert len({decided.num_splits for decided in theirs}) > 10
    assert {decided.tile_m for decided in theirs} == ({64, 128} if arch == "sm_100a" else {128})
