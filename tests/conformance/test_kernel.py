"""Finding kernels and engines: what is asked for is found, what cannot be had is said clearly."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from conformance import kernel as kernels
from conformance.kernel import (
    DEFAULT_KERNELS,
    POISON_BYTE,
    REPOSITORY_KERNELS,
    RunOptions,
    UsageError,
    choose_engine,
    known_kernels,
    load_kernel,
    poisoned,
)

FAKE = Path(__file__).with_name("fake_kernel.py")


def test_a_file_and_a_factory_give_a_kernel() -> None:
    kernel = load_kernel(f"{FAKE}:healthy")
    assert kernel.name == "fake"
    assert load_kernel(f"{FAKE}:zero_output").run is not None


def test_an_entry_point_gives_a_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "somebodys_package.py").write_text(FAKE.read_text())
    folder = tmp_path / "somebodys_package-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys-package\nVersion: 1.0")
    (folder / "entry_points.txt").write_text(
        "[mla_testbed.kernels]\nsomebodys-kernel = somebodys_package:healthy\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert known_kernels()["somebodys-kernel"] == "somebodys_package:healthy"
    assert load_kernel("somebodys-kernel").name == "fake"


def test_the_default_is_registered() -> None:
    assert set(DEFAULT_KERNELS) <= set(REPOSITORY_KERNELS)


REFUSED = [
    ("mutant:", "'mutant:': a mutant is mutant:ID or mutant:KERNEL:ID"),
    ("mutant:12", "'mutant:12' is none of the"),
    ("some-kernel@1a2b3c", "'some-kernel@1a2b3c': kernels of another git revision cannot be"),
    ("no/such/file.py:make", "there is no file no/such/file.py"),
    (f"{FAKE}:no_such", "fake_kernel.py has no function 'no_such'"),
    (f"{FAKE}:not_a_kernel", "its not_a_kernel() lacks algorithm, arches, compile, limits, name"),
]


@pytest.mark.parametrize(("name", "message"), REFUSED)
def test_what_is_no_kernel_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^--kernel: .*{re.escape(message)}"):
        load_kernel(name)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"did you mean tokenspeed-mla-2\.0\.4-fp8") as caught:
        load_kernel("tokenspeed_mla-2.0.4-fp8")
    for known in known_kernels():
        assert known in str(caught.value)
    with pytest.raises(UsageError, match=r"'xyz' is unknown\. Known kernels: "):
        load_kernel("xyz")


ENGINES = [
    ("auto", None, "simulator", "sm_100a"),
    ("auto", "sm_90a", "simulator", "sm_100a"),
    ("auto", "sm_100a", "cuda", "sm_100a"),
    ("simulator", "sm_100a", "simulator", "sm_100a"),
    ("cuda", "sm_100a", "cuda", "sm_100a"),
]


@pytest.mark.parametrize(("requested", "device", "engine", "arch"), ENGINES)
def test_the_engine_follows_from_the_request_and_the_device(
    requested: str, device: str | None, engine: str, arch: str
) -> None:
    choice = choose_engine(load_kernel(f"{FAKE}:healthy"), requested, device)
    assert (choice.engine, choice.arch) == (engine, arch)
    assert choice.reason


@pytest.mark.parametrize(
    ("device", "has"), [(None, "no CUDA device"), ("sm_90a", "an sm_90a device")]
)
def test_an_engine_that_the_machine_lacks_is_refused(device: str | None, has: str) -> None:
    with pytest.raises(UsageError, match=f"it needs one of sm_100a, and this machine has {has}"):
        choose_engine(load_kernel(f"{FAKE}:healthy"), "cuda", device)
    with pytest.raises(UsageError, match="'cpu' is none of auto, simulator, cuda"):
        choose_engine(load_kernel(f"{FAKE}:healthy"), "cpu", device)


def test_the_devices_target_is_read_from_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert kernels.device_arch() is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, arch in {(10, 0): "sm_100a", (8, 9): "sm_89"}.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda value=capability: value)
        assert kernels.device_arch() == arch


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RunOptions(engine="gpu"), "engine: 'gpu' is none of simulator, cuda"),
        (lambda: RunOptions(policy="lucky"), "policy 'lucky' is not one of fair, "),
        (lambda: RunOptions(executor="quick"), "executor: 'quick' is none of auto, interpreter, "),
        (lambda: RunOptions(accumulation="b100"), "accumulation: 'b100' is none of b200, hopper, "),
        (lambda: RunOptions(checks=("bound",)), "checks: 'bound' is none of bounds, "),
        (lambda: RunOptions(num_sms=0), "num_sms: 0 is below 1"),
        (lambda: RunOptions(num_splits=257), "num_splits: 257 is outside [1, 256]"),
        (lambda: RunOptions(num_splits=0), "num_splits: 0 is outside [1, 256]"),
    ],
)
def test_run_options_out_of_their_limits_are_refused(
    make: Callable[[], RunOptions], message: str
) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        make()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_poison_reads_as_nan_and_is_no_nan_that_arithmetic_makes(dtype: torch.dtype) -> None:
    tensor = poisoned(torch.zeros(2, 3, dtype=dtype))
    assert tensor.isnan().all()
    made = torch.full((1,), float("inf"), dtype=dtype) * 0
    assert made.isnan().all()
    assert not (made.view(torch.uint8) == POISON_BYTE).all()
