"""The jobs of this repository, each one command: ``nox -l`` lists them, ``nox -s NAME`` runs one.

All sessions share one virtual environment, ``.nox/environment``: PyTorch and the CuTe DSL take
about 1.5 GB, and one copy is enough. The session ``environment`` fills it and puts it first on
PATH for the sessions after it, as activating it in a shell would. ``nox --no-venv -s NAME``
skips that and uses the interpreter on PATH with whatever it has installed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import nox
from nox.command import CommandFailed
from nox.virtualenv import PassthroughEnv

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["tests", "lint"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_external_run = True

REQUIREMENTS = ("pyproject.toml", "constraints.txt")
PEER = "tokenspeed-mla"
PEER_VERSIONS = ("2.0.4", "0.2.5")
PEERS = Path(".peers")


@nox.session
def environment(session: nox.Session) -> None:
    """Fill the one environment that all other sessions use (they call this by themselves)."""
    if isinstance(session.virtualenv, PassthroughEnv):
        session.log("--no-venv: using the packages of the interpreter on PATH")
        return
    stamp = Path(session.virtualenv.location) / "installed-for.txt"
    wanted = "".join(Path(name).read_text(encoding="utf-8") for name in REQUIREMENTS)
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        # torch alone and first: the constraint then picks the build before anything asks for it.
        session.install("-c", "constraints.txt", "torch")
        session.install("-c", "constraints.txt", "-e", ".[dev]")
        stamp.write_text(wanted, encoding="utf-8")
    os.environ["PATH"] = os.pathsep.join([session.bin, os.environ["PATH"]])


@nox.session(venv_backend="none", requires=["environment"])
def tests(session: nox.Session) -> None:
    """Test our own code; arguments after -- go to pytest (a path, -k WORD, -x)."""
    for complaint in missing_peers(session):
        session.warn(f"{complaint}; the tests that need it are skipped")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session(venv_backend="none", requires=["environment"])
def conformance(session: nox.Session) -> None:
    """Judge kernels: the main job. After --: --kernel, --engine, --profile, --replay."""
    if judges_peers(session.posargs):
        require_peers(session)
    command = ("python", "-m", "pytest", "-c", "pyproject.toml", "-p", "conformance.plugin")
    session.run(*command, "conformance/suite", *session.posargs)


@nox.session(venv_backend="none", requires=["environment"])
def dcp(session: nox.Session) -> None:
    """Judge context parallelism with real ranks. After --: --ranks N, --kernel, --cases."""
    parser = argparse.ArgumentParser(prog="nox -s dcp --", add_help=False)
    parser.add_argument("--ranks", default="3")
    given, rest = parser.parse_known_args(session.posargs)
    if any(PEER in word for word in rest):
        require_peers(session)
    launcher = ("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    session.run(*launcher, given.ranks, "-m", "conformance.distributed", *rest)


@nox.session(name="false-alarms", venv_backend="none", requires=["environment"])
def false_alarms(session: nox.Session) -> None:
    """Count how often our oracles refuse right answers. After --: --draws, --resume."""
    session.run("python", "-m", "tests.conformance.false_alarms", *session.posargs)


@nox.session(venv_backend="none", requires=["environment"])
def schedules(session: nox.Session) -> None:
    """Run our kernel under 1,000 schedules; --help after -- lists options."""
    session.run("python", "-m", "conformance.schedules", *session.posargs)


@nox.session(venv_backend="none", requires=["environment"])
def mutation(session: nox.Session) -> None:
    """Judge mutants of a kernel. After --: --kernel NAME --synchronisation; --help lists more."""
    if judges_peers(session.posargs):
        require_peers(session)
    session.run("python", "-m", "mutation", *session.posargs)


@nox.session(venv_backend="none", requires=["environment"])
def fuzz(session: nox.Session) -> None:
    """Search for cases that a kernel fails. After --: run, diff, schedule or --help."""
    if judges_peers(session.posargs) and "--kernel" in " ".join(session.posargs):
        require_peers(session)
    session.run("python", "-m", "fuzz", *session.posargs)


@nox.session(venv_backend="none", requires=["environment"])
def lint(session: nox.Session) -> None:
    """Check style (ruff), types of the host code (mypy) and who imports whom (import-linter)."""
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports")


@nox.session(venv_backend="none", requires=["environment"])
def bench(session: nox.Session) -> None:
    """Measure, print and record speeds; nothing is gated. Arguments after -- go to pytest."""
    require_peers(session)
    select = ("-o", "python_files=bench_*.py", "--benchmark-only")
    session.run("python", "-m", "pytest", "benchmarks", *select, *session.posargs)
    for more in ((), ("--growth", "docs/simulator/growth.svg")):
        session.run("python", "-m", "benchmarks.speed", *more)


@nox.session(venv_backend="none", requires=["environment"])
def report(session: nox.Session) -> None:
    """Judge a kernel and report on it. After --: --kernel NAME, --policy, --baseline RECORD.

    Runs the suite's smoke profile, looks at compilations and checks, then writes
    results/signoff/signoff.html, .md and .json. Fails where the kernel is not signed off.
    """
    parser = argparse.ArgumentParser(prog="nox -s report --", add_help=False)
    parser.add_argument("--kernel", default="optimized")
    parser.add_argument("--policy", default="smoke")
    given, rest = parser.parse_known_args(session.posargs)
    chosen = ("--kernel", given.kernel)
    if judges_peers(list(chosen)):
        require_peers(session)
    folder = Path("results") / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-report"
    suite = ("-c", "pyproject.toml", "-p", "conformance.plugin", "conformance/suite")
    # A failing kernel is to be reported, not to end the session: the report is what fails then.
    session.run(
        *("python", "-m", "pytest", *suite, *chosen),
        *("--profile", "smoke", "--results", str(folder)),
        success_codes=[0, 1],
    )
    session.run("python", "-m", "conformance.evidence", *chosen, "--results", str(folder))
    session.run(
        *("python", "-m", "reports", "signoff", *chosen, "--records", str(folder)),
        *("--policy", given.policy, *rest),
    )


@nox.session(venv_backend="none", requires=["environment"])
def side_by_side(session: nox.Session) -> None:
    """Count what our kernels and the published ones execute; writes docs/side_by_side.md."""
    require_peers(session)
    session.run(
        *("python", "benchmarks/side_by_side.py", "--write", "docs/side_by_side.md"),
        env={"PYTHONPATH": "."},
    )


@nox.session(venv_backend="none", requires=["environment"])
def peers(session: nox.Session) -> None:
    """Fetch the published kernels that we judge, each version into its folder under .peers/."""
    require_peers(session)


def judges_peers(posargs: list[str]) -> bool:
    """Return whether ``conformance`` with these arguments runs a published kernel.

    It does unless every ``--kernel`` names another one: a published one is among the defaults.
    """
    joined = [word.removeprefix("--kernel=") for word in posargs if word.startswith("--kernel=")]
    follows = [word for flag, word in pairwise(posargs) if flag == "--kernel"]
    chosen = joined + follows
    return not chosen or any(PEER in name for name in chosen)


def require_peers(session: nox.Session) -> None:
    """Make both published kernels present, or end the session and say which is not."""
    for complaint in missing_peers(session):
        session.error(
            f"{complaint}. Without a package index, copy the folder from a machine that has one, "
            "or judge another kernel: nox -s conformance -- --kernel PATH.py:FACTORY"
        )


def missing_peers(session: nox.Session) -> list[str]:
    """Fetch the published kernels that are not here yet; return a sentence for each failure."""
    complaints = []
    for version in PEER_VERSIONS:
        folder = PEERS / f"{PEER}-{version}"
        if not folder.is_dir() and not fetch_peer(session, f"{PEER}=={version}", folder):
            complaints.append(f"pip could not install {PEER}=={version} into {folder}")
    return complaints


def fetch_peer(session: nox.Session, requirement: str, folder: Path) -> bool:
    """Install ``requirement`` alone into ``folder``, which appears whole or not at all.

    Its dependencies are left out: the environment has those that decoding needs. Returns
    whether pip succeeded.
    """
    PEERS.mkdir(exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=PEERS))
    pip = ("python", "-m", "pip", "install", "--no-deps", "--target", str(partial), requirement)
    try:
        session.run(*pip)
        partial.rename(folder)
    except CommandFailed:
        return False
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return True
