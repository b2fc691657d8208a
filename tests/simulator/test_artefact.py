"""A saved call is the call: the same arguments, memory and results; what is damaged is named."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from simulator import artefact
from simulator.artefact import ArtefactError, Call, contents
from simulator.checks import Checks
from simulator.host.tensor import Tensor
from simulator.policy import Policy

RANDOM = np.random.default_rng(5)


def call() -> Call:
    """Every kind of argument: two views of one allocation, none, scalars, and nothing at all."""
    pool = RANDOM.standard_normal((8, 16)).astype(np.float32)
    views = [Tensor.of(pool[2:, ::2], "part", strict=True), Tensor.of(pool[::-1], "reversed")]
    eight_bits = RANDOM.integers(0, 256, 40, np.uint8)
    typed = Tensor(
        "fp8", eight_bits.ctypes.data + 3, (4, 5), (9, 1), "float8_e4m3fn",
        eight_bits.ctypes.data, 40, owner=eight_bits, initialised=False,
    )  # fmt: skip
    nothing = Tensor("workspace", 0, (0,), (1,), "int8", 0, 0, owner=None)
    values = (None, True, -7, 0.1, float("inf"))
    policy, checks = Policy("pct:4:99", 3), Checks.of("all", on_finding="collect")
    return Call("ptx é", b"\x7fELF", (*views, typed, nothing, *values), "entry", policy, checks)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    artefact.save(call(), tmp_path / "new" / "saved")
    return tmp_path / "new" / "saved"


def test_what_is_read_is_what_was_saved(tmp_path: Path) -> None:
    saved = call()
    artefact.save(saved, tmp_path / "saved")
    found = artefact.read(tmp_path / "saved")
    assert (found.ptx, found.host_object, found.entry) == (saved.ptx, b"\x7fELF", "entry")
    assert (found.policy, found.checks) == (saved.policy, saved.checks)
    assert found.arguments[4:] == saved.arguments[4:]
    assert [type(a) for a in found.arguments] == [type(a) for a in saved.arguments]
    for one, other in zip(saved.tensors, found.tensors, strict=True):
        for field in ("name", "shape", "strides", "dtype", "strict", "initialised"):
            assert getattr(one, field) == getattr(other, field)
        assert contents(one).tobytes() == contents(other).tobytes()
        assert (one.pointer - other.pointer) % artefact.ALIGNMENT == 0
    part, reversed_pool = found.tensors[:2]
    assert part.storage_pointer == reversed_pool.storage_pointer
    assert part.pointer - reversed_pool.pointer == (2 - 7) * 16 * 4


def test_saving_leaves_nothing_beside_and_overwrites_nothing(folder: Path) -> None:
    assert [path.name for path in folder.parent.iterdir()] == ["saved"]
    with pytest.raises(ArtefactError, match=r"folder: .*saved is there already"):
        artefact.save(call(), folder)


def edit(folder: Path, **changes: object) -> None:
    path = folder / artefact.CALL_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


DAMAGES = [
    (lambda folder: shutil.rmtree(folder), r"FOLDER: .*saved holds no call.json"),
    (lambda folder: edit(folder, format_version=9), "format_version 9 must be 1"),
    (lambda folder: edit(folder, policy={"name": "no"}), "policy 'no' is not one of fair"),
    (lambda folder: edit(folder, arguments=[{"kind": "x"}]), "kind 'x' is none of absent"),
    (lambda folder: edit(folder, arguments=[{"kind": "int"}]), "has no 'value'"),
    (lambda folder: edit(folder, memory=[]), "tensor part: memory 0 of 0"),
    (lambda folder: (folder / artefact.PTX_FILE).unlink(), "kernel.ptx"),
    (
        lambda folder: np.save(folder / "memory-0.npy", np.zeros(9, np.float32)),
        r"memory-0.npy holds float32\[9\], not uint8\[512\]",
    ),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_what_is_damaged_is_named(folder: Path, damage, message: str) -> None:
    damage(folder)
    with pytest.raises(ArtefactError, match=message):
        artefact.read(folder)
