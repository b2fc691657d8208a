"""Runs a kernel under one check alone, for tests that have it with and without a fault."""

from __future__ import annotations

from simulator.checks import Checks
from tests.simulator.ptx_text import run


def findings(check: str, body: str, *arguments, **options) -> list[str]:
    """What ``check`` finds, as text; options are those of ``run``."""
    checks = Checks(initialisation=False, **{check: True}, on_finding="collect")
    result = run(body, *arguments, checks=checks, **options)
    assert {finding.check for finding in result.findings} <= {check}
    return [str(finding) for finding in result.findings]


def sentence(finding: str) -> str:
    """What a finding says, without its accesses."""
    return finding.splitlines()[0].partition(": ")[2]
