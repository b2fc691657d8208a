"""No false report: kernels that do what they should, watched by every preset."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RACES = "races: nothing orders two accesses to shared memory"
EXPLAINED = {
    "test_shared_cta_is_the_memory_of_the_own_cta": {  # nobody waits for the copy
        RACES, "races: nothing orders two accesses to an mbarrier",
    },
    "test_a_store_is_complete_when_its_group_is_waited_for": {RACES},  # it waits for too few
    "test_cp_async_groups_are_waited_for_in_order": {RACES},  # so does this one
    "test_a_missing_wait_that_eager_completion_hides": {RACES},
    "test_the_order_of_late_completion_replays_from_the_seed": {RACES},
    "test_one_warp_may_spin_on_memory_that_another_writes_after_a_peek": {RACES},
    "test_without_the_check_nothing_is_reported": {RACES},
    "test_counts_of_arrivals_and_the_state_that_comes_back": {
        "mbarriers: an arrival at an mbarrier whose phase before has ended without any wait having "
        "returned true",
    },
}  # fmt: skip
"""The tests whose kernels break a rule on purpose, or because they are about something else."""
FEWEST = 200


@pytest.mark.slow
def test_the_kernels_of_all_tests_are_reported_for_nothing_but_their_faults(tmp_path):
    report = tmp_path / "report.json"
    files = sorted(str(path) for path in (ROOT / "tests/simulator").glob("test_*.py"))
    files.remove(__file__)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.simulator.watched", *files]
    environment = {**os.environ, "WATCHED_REPORT": str(report), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    seen = json.loads(report.read_text(encoding="utf-8"))
    assert seen["kernels"] >= FEWEST
    assert {test: set(what) for test, what in seen["found"].items()} == EXPLAINED
