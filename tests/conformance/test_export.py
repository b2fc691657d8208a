"""A case of the suite as a saved call: the call gives the case's result, also where it fails."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conformance.adapters.optimized import Optimized
from conformance.export import export, main
from conformance.judge import run_options
from conformance.kernel import UsageError
from conformance.properties import COMPLETES
from conformance.strategies import Choice
from reference.inputs import make_inputs
from reference.problem import Dims, Problem, Recipe
from tests.conformance import cases
from tests.conformance.fake_kernel import FakeKernel

pytestmark = pytest.mark.filterwarnings("ignore")  # the DSL's own, when it compiles
PROBLEM = Problem(Dims(16, 2), "float16", 64, (130, 7), softmax_scale=0.07)
DRAWN = (PROBLEM, Recipe(), Choice(3, 1, policy="random", policy_seed=4))


def simulator(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process that can import the simulator alone."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'cutlass', 'conformance')));"
        "from simulator.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


def test_the_saved_call_gives_the_result_of_the_case(tmp_path: Path) -> None:
    subject = cases.subject(Optimized())
    case = subject.case(COMPLETES, DRAWN)
    assert export(subject, case, tmp_path / "call") == "it ran to its end"
    output = subject.kernel.run(PROBLEM, make_inputs(*DRAWN[:2], 3), run_options(case))
    done = simulator("run", str(tmp_path / "call"), "--save-outputs", str(tmp_path / "outputs"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "policy random, seed 4" in done.stdout
    np.testing.assert_array_equal(np.load(tmp_path / "outputs" / "out.npy"), output.out.numpy())
    np.testing.assert_array_equal(np.load(tmp_path / "outputs" / "lse.npy"), output.lse.numpy())


def test_a_case_that_fails_is_saved_and_fails_again(tmp_path: Path) -> None:
    broken = Optimized(transform=lambda ptx: ptx.replace("fence.proxy.async.shared::cta;", ""))
    drawn = (PROBLEM, Recipe(), replace(DRAWN[2], checks=("racecheck",)))
    subject = cases.subject(broken)
    ended = export(subject, subject.case(COMPLETES, drawn), tmp_path / "call")
    assert ended.startswith("CheckFailed: proxy:")
    done = simulator("run", str(tmp_path / "call"))
    assert done.returncode == 1
    assert "proxy: " in done.stdout


def test_a_kernel_that_makes_no_call_cannot_be_saved(tmp_path: Path) -> None:
    subject = cases.subject(FakeKernel())
    with pytest.raises(UsageError, match="saves no calls: it ran to its end"):
        export(subject, subject.case(COMPLETES, DRAWN), tmp_path / "call")


def test_wrong_use_of_the_command_names_argument_and_limit(tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path / "call"), "--kernel", "optimized", "--number", "999"])
    assert "--number: 999 is outside [1, " in capsys.readouterr().err


@pytest.mark.parametrize(("keys", "overlaps"), [(1024, True), (64, False)])
def test_a_pipeline_of_many_tiles_loads_while_it_multiplies(
    tmp_path: Path, keys: int, overlaps: bool
) -> None:
    """The K tiles of our kernel are loaded ahead; with one tile there is nothing to load ahead."""
    problem = replace(PROBLEM, page_size=128, seq_lens=(keys,))
    subject = cases.subject(Optimized())
    drawn = (problem, Recipe(), Choice(3, 1, num_splits=1))
    export(subject, subject.case(COMPLETES, drawn), tmp_path / "call")
    done = simulator("trace", str(tmp_path / "call"), "--json", str(tmp_path / "trace.json"))
    assert done.returncode == 0, done.stderr
    pairs: dict[str, list[dict]] = {}
    for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]:
        if event["ph"] in "be":
            pairs.setdefault(event["id"], []).append(event)
    in_flight: dict[str, set[int]] = {"load": set(), "mma": set()}
    for begin, end in pairs.values():
        in_flight.setdefault(begin["cat"], set()).update(range(begin["ts"], end["ts"]))
    assert in_flight["load"]
    assert in_flight["mma"]
    assert bool(in_flight["load"] & in_flight["mma"]) == overlaps
