"""``debug`` and ``trace`` by their command lines, on the example."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from simulator import artefact
from simulator.__main__ import main
from simulator.artefact import contents
from tests.simulator.commands.conftest import EXAMPLE

BODY = next(n for n, t in enumerate(EXAMPLE.read_text().splitlines(), 1) if "y[i] = a" in t)


def fma_line(saved: Path) -> int:
    text = artefact.read(saved).ptx.splitlines()
    return next(n for n, line in enumerate(text, 1) if "fma.rn.f32" in line)


def test_a_script_prints_what_the_registers_hold(saved: Path, capsys) -> None:
    where = ["--break", f"ptx:{fma_line(saved)}", "--cta", "2,0,0", "--warp", "1"]
    assert main(["debug", str(saved), *where, "--command", "operands"]) == 0
    out = capsys.readouterr().out
    assert "CTA (2, 0, 0), warp 1, all lanes" in out
    x = contents(artefact.read(saved).tensors[0])[2 * 128 + 32 :][:32]
    arrays = [np.array(numbers.split(), float) for numbers in re.findall(r"= \[([^\]]*)\]", out)]
    bits = [np.array(a, np.uint32).view(np.float32) for a in arrays if (a >= 0).all()]
    assert any(np.array_equal(held, x) for held in [*arrays, *bits])
    assert "the call has ended; 1 stops" in out


def test_a_source_line_and_several_stops(saved: Path, capsys) -> None:
    where = ["--break", f"scale.py:{BODY}", "--stops", "3"]
    assert (
        main(["debug", str(saved), *where, "--command", "nonsense", "--command", "tmem 0 1"]) == 0
    )
    out = capsys.readouterr().out
    assert out.count("error: 'nonsense' is none of where, operands") == 3
    assert "error: LANES: '0' is not A:B" in out
    assert "3 stops" in out


def test_a_prompt_takes_commands_until_it_is_left(saved: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("where\n\nhelp\ncontinue\nquit\n"))
    assert main(["debug", str(saved), "--break", f"scale.py:{BODY}"]) == 0
    out = capsys.readouterr().out
    assert out.count("CTA (0, 0, 0), warp 0") == 2
    assert "shared OFFSET TYPE SHAPE" in out
    assert "the call has ended" not in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--break", "scale.py:1"], "--break: scale.py:1 is the line of no instruction"),
        (["--break", "here"], "--break: 'here' is neither ptx:LINE nor FILE:LINE"),
        (["--break", "ptx:1", "--cta", "1"], "--cta: '1' is not X,Y,Z"),
        (["--break", "ptx:1", "--stops", "0"], "--stops: 0 is below 1"),
    ],
)
def test_wrong_use_is_named(saved: Path, options: list[str], message: str, capsys) -> None:
    assert main(["debug", str(saved), *options, "--command", "where"]) == 2
    assert message in capsys.readouterr().err


def test_trace_writes_both_files(saved: Path, tmp_path: Path, capsys) -> None:
    files = ["--json", str(tmp_path / "t.json"), "--svg", str(tmp_path / "t.svg")]
    assert main(["trace", str(saved), *files, "--clusters", "2"]) == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert [name[-9:] for name in processes] == ["(0, 0, 0)", "(1, 0, 0)"]
    assert (tmp_path / "t.svg").read_text().startswith("<svg")
    assert "4 warps" in capsys.readouterr().out
    assert main(["trace", str(saved), *files, "--clusters", "0"]) == 2
    assert "--clusters: 0 is below 1" in capsys.readouterr().err
