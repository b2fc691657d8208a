"""``python -m simulator run``: what it prints, what it saves, and how it refuses."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulator import artefact
from simulator.__main__ import main
from simulator.artefact import contents
from simulator.host.tensor import Tensor
from simulator.launch import launch, load
from tests.simulator.commands.conftest import EXAMPLE


def test_the_outcome_is_that_of_a_launch(saved: Path, tmp_path: Path, capsys) -> None:
    call = artefact.read(saved)
    a, x, y = call.arguments
    expected = (np.float64(a) * contents(x) + contents(y)).astype(np.float32)
    outputs = tmp_path / "outputs"
    assert main(["run", str(saved), "--save-outputs", str(outputs)]) == 0
    assert [path.name for path in outputs.iterdir()] == ["y.npy"]
    np.testing.assert_array_equal(np.load(outputs / "y.npy"), expected)
    out = capsys.readouterr().out
    assert "outcome   passed" in out
    assert "grid (8, 1, 1), block (128, 1, 1), cluster (1, 1, 1)" in out
    assert "output    y float32[1000] sha256" in out
    assert np.load(saved / "memory-0.npy").tobytes() == contents(x).tobytes()  # as it was saved


def test_two_runs_print_the_same_but_for_the_time(saved: Path, capsys) -> None:
    texts = []
    for seed in ("1", "1"):
        assert main(["run", str(saved), "--policy", "random", "--seed", seed]) == 0
        texts.append(re.sub("(?m)^time .*$", "", capsys.readouterr().out))
    assert texts[0] == texts[1]
    assert "policy random, seed 1" in texts[0]


@pytest.mark.parametrize("engine", ["native", "interpreter"])
def test_json_has_the_same_facts(saved: Path, engine: str, capsys) -> None:
    assert main(["run", str(saved), "--json", "--engine", engine, "--checks", "initcheck"]) == 0
    facts = json.loads(capsys.readouterr().out)
    call = artefact.read(saved)
    result = launch(load(call.ptx, call.host_object), call.arguments)
    assert facts["launches"][0]["warp_instructions"] == result.warp_instructions
    assert facts["checks"] == ["bounds", "initialisation", "deadlock"]
    assert facts["engine"] == engine


def short(call: artefact.Call) -> artefact.Call:
    """x claims to be longer than its memory."""
    factor, _, y = call.arguments
    held = np.ones(100, np.float32)
    x = Tensor("x", held.ctypes.data, (1000,), (1,), "float32", held.ctypes.data, 400, held)
    return replace(call, arguments=(factor, x, y))


def unwritten(call: artefact.Call) -> artefact.Call:
    factor, x, y = call.arguments
    return replace(call, arguments=(factor, replace(x, initialised=False), y))


@pytest.mark.parametrize(
    ("change", "what", "where"),
    [
        (short, "OutOfBounds: index [100]", "warp 3, lanes 4-31"),
        (unwritten, "Uninitialised: index [0]", "warp 0, lanes 0-31"),
    ],
)
def test_a_wrong_program_is_told_as_when_it_was_saved(
    example_call, tmp_path: Path, capsys, change, what: str, where: str
) -> None:
    artefact.save(change(example_call), tmp_path / "wrong")
    assert main(["run", str(tmp_path / "wrong")]) == 1
    out = capsys.readouterr().out
    kind, index = what.split(": ")
    assert f"outcome   {kind}" in out
    assert f"x (float32[1000]): {index}" in out
    assert re.search(rf"source \S*scale.py:\d+, cta \(0,0,0\), {where}", out)


REFUSALS = [
    (["--policy", "nope"], "policy 'nope' is not one of fair"),
    (["--policy", "pct:0"], "policy 'pct:0': at most 2 numbers from 1"),
    (["--checks", "memcheck,x"], "check 'x' is none of the checks bounds"),
]


@pytest.mark.parametrize(("options", "message"), REFUSALS)
def test_wrong_use_names_argument_value_and_limit(saved, options, message, capsys) -> None:
    assert main(["run", str(saved), *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("nowhere", "FOLDER: nowhere holds no call.json"),
        ("nowhere.py:call", "CALL: there is no file nowhere.py"),
        (f"{EXAMPLE}:nothing", "has no function 'nothing'"),
        (f"{EXAMPLE}:compile_scale", "returned a tuple, not a Call"),
    ],
)
def test_what_is_no_call_is_refused(call: str, message: str, capsys, recwarn) -> None:
    assert main(["run", call]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error


def test_a_python_function_is_a_call(capsys, recwarn) -> None:
    assert main(["run", f"{EXAMPLE}:call"]) == 0
    assert "outcome   passed" in capsys.readouterr().out


def test_a_launch_saves_its_call_before_it_runs(example_call, tmp_path: Path) -> None:
    program = load(example_call.ptx, example_call.host_object)
    _, _, y = example_call.arguments
    before = contents(y)
    launch(program, example_call.arguments, save_to=tmp_path / "saved")
    after = contents(y)
    assert (before != after).any()
    np.testing.assert_array_equal(contents(artefact.read(tmp_path / "saved").tensors[1]), before)
    np.frombuffer(y.owner.numpy().data, np.float32)[:] = before


def test_help_says_what_there_is() -> None:
    command = [sys.executable, "-m", "simulator", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "run a compiled cute dsl kernel" in " ".join(text.split()).lower()
    assert "CALL" in text or "COMMAND" in text
