"""``coverage`` and ``profile`` on the example: its guard's other side, and its lines."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from simulator import artefact
from simulator.__main__ import main
from simulator.host.tensor import Tensor
from tests.simulator.commands.conftest import EXAMPLE

BODY = next(n for n, t in enumerate(EXAMPLE.read_text().splitlines(), 1) if "y[i] = a" in t)


def of_length(call: artefact.Call, length: int, folder: Path) -> Path:
    x, y = (np.ones(max(length, 1), np.float32)[:length] for _ in range(2))
    vectors = (Tensor.of(x, "x"), Tensor.of(y, "y"))
    artefact.save(replace(call, arguments=(2.5, *vectors)), folder)
    return folder


def test_calls_are_merged_and_what_is_left_is_named(example_call, tmp_path, capsys) -> None:
    full = of_length(example_call, 128, tmp_path / "full")
    part = of_length(example_call, 100, tmp_path / "part")
    assert main(["coverage", str(full), "--json", str(tmp_path / "full.json")]) == 0
    out = capsys.readouterr().out
    assert "never taken: PTX line" in out  # no thread lies beyond the end
    assert main(["coverage", str(full), str(part), "--json", str(tmp_path / "both.json")]) == 0
    alone, both = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("full", "both"))
    assert len(alone["kernels"]) == len(both["kernels"]) == 1
    assert alone["kernels"][0]["one_way"]
    assert both["kernels"][0]["one_way"] == both["kernels"][0]["uncovered"] == []
    assert both["kernels"][0]["edges_followed"] == both["kernels"][0]["edges"]
    assert both["source_lines_never_executed"] == []


def test_the_profile_names_the_line_that_works(saved: Path, capsys) -> None:
    assert main(["profile", str(saved), "--json"]) == 0
    (launch,) = json.loads(capsys.readouterr().out)["launches"]
    by_line = {name: count for name, count in launch["by_source"].items() if f":{BODY}" in name}
    assert sum(by_line.values()) > launch["warp_instructions"] / 4
    assert sum(launch["by_class"].values()) == launch["warp_instructions"]
    assert launch["bytes"]["global_written"] == 4000
    assert launch["bytes"]["global_read"] == 8000
    assert all(pipe["source"] for pipe in launch["estimated_cycles"]["pipes"])
    assert main(["profile", str(saved), "--lines", "1"]) == 0
    text = capsys.readouterr().out
    assert "no timing is simulated" in text
    assert "by source line, 1 of " in text
    assert main(["profile", str(saved), "--lines", "0"]) == 2
    assert "--lines: 0 is below 1" in capsys.readouterr().err
