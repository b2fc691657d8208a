"""Context parallelism with real ranks: right kernels pass, a wrong or broken rank is named."""

import subprocess
import sys
from pathlib import Path

import pytest

from reports.records import Records, read_records

KERNELS = "tests/conformance/distributed_kernels.py"


def judged(kernel: str, results: Path) -> tuple[int, Records, str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ended = subprocess.run(
        [
            *launcher, "--nproc-per-node", "2", "-m", "conformance.distributed",
            "--kernel", f"{KERNELS}:{kernel}", "--cases", "6", "--results", str(results),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )  # fmt: skip
    (path,) = results.glob("*/records.jsonl")
    return ended.returncode, read_records(path), ended.stdout


@pytest.mark.parametrize(
    ("kernel", "verdict", "reason"),
    [
        ("healthy", "passed", ""),
        ("ignores_its_rank", "failed", "out"),
        ("breaks_on_rank_1", "failed", "rank 1: RuntimeError: no memory left"),
    ],
)
def test_ranks(kernel, verdict, reason, tmp_path):
    code, records, printed = judged(kernel, tmp_path)
    assert "2 ranks over gloo, 6 cases" in printed
    assert len(records.results) == 6
    assert (code == 0) == (verdict == "passed")
    found = {result.verdict for result in records.results}
    assert verdict in found
    assert verdict == "failed" or found == {"passed"}
    reasons = [result.reason or "" for result in records.results if result.verdict == verdict]
    assert all(reason in text for text in reasons)
