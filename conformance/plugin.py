"""The pytest plugin of the suite: its options, its fixtures, and what it prints.

python -m pytest -p conformance.plugin conformance/suite --kernel NAME --profile smoke
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest
import torch

from conformance import matrix
from conformance.alarm_rows import LONG_RUNS, RUNS
from conformance.judge import Subject
from conformance.kernel import DEFAULT_KERNELS, ENGINES, UsageError, known_kernels
from conformance.peer_rows import PROBLEMS_PER_SHAPE, SHAPES
from conformance.profiles import PROFILES
from conformance.properties import PROPERTY_NAMES, REFUSED_OR_RIGHT
from conformance.relations import RELATION_NAMES
from conformance.replay import find_case
from conformance.session import Screen, Session, make_subject, records_to_resume
from conformance.summary import summary
from reference.problem import Problem
from reports.records import Case

SESSION = pytest.StashKey[Session]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the suite's options, all in one group of ``pytest --help``."""
    group = parser.getgroup("conformance", "judging MLA decode kernels")
    group.addoption(
        "--kernel",
        action="append",
        metavar="NAME",
        help="kernel to judge, may be given again: a registered name "
        f"({', '.join(known_kernels())}), or path/file.py:factory, a function that returns an "
        "object with the members of conformance.kernel.Kernel. "
        f"Default: {', '.join(DEFAULT_KERNELS)}",
    )
    group.addoption(
        "--engine",
        choices=("auto", *ENGINES),
        default="auto",
        help="where it runs: on the CPU simulator, on this machine's GPU, or (auto, the default) "
        "on the GPU if the kernel is made for it, else on the simulator",
    )
    group.addoption(
        "--profile",
        choices=tuple(PROFILES),
        default="default",
        help="how much is run: smoke a minute or two, default within ten minutes, deep for hours, "
        f"matrix the whole range of the contract: {matrix.ROWS:,} problems, peers what the "
        f"published kernels take: {SHAPES * PROBLEMS_PER_SHAPE} problems for each, alarms "
        f"{RUNS + LONG_RUNS:,} problems of each dtype, to count false alarms. "
        "Each draws the same problems every time; --hypothesis-seed N draws others",
    )
    group.addoption(
        "--replay",
        metavar="CASE",
        help="run one recorded case again and nothing else: its id (found under the results folder "
        "or fuzz/cases/), a file with its JSON, or the JSON itself",
    )
    group.addoption(
        "--export",
        metavar="FOLDER",
        help="with --replay: save the call that the case makes to this new folder, for "
        "python -m simulator run, trace, profile, coverage and debug",
    )
    group.addoption(
        "--resume",
        metavar="FOLDER",
        help="go on with a session that was interrupted or killed: the folder of its records. "
        "What it finished is taken over into the new records and not run again",
    )
    group.addoption(
        "--results",
        metavar="FOLDER",
        default="results",
        help="where each session's records go, in a folder of its own; default: results",
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Find kernels, engines and the case to replay before anything is collected."""
    # The oracle's matrices are small: on a busy machine its threads would wait for each other.
    torch.set_num_threads(1)
    config = session.config
    try:
        config.stash[SESSION] = _session(config)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None and config.option.verbose <= 0:
        reporter.showfspath = False  # the progress line needs the line to itself


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is judged, where, and how its problems can be drawn again."""
    run = config.stash[SESSION]
    return [
        f"conformance: profile {run.profile.name}, --hypothesis-seed {run.seed}",
        *(
            f"  {s.name} on {s.engine.engine}, {s.engine.arch}: {s.engine.reason}"
            for s in run.subjects
        ),
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test its kernels, properties, known limits or replayed case."""
    names = metafunc.fixturenames
    subjects = metafunc.config.stash[SESSION].subjects
    if "limit" in names:
        pairs = [(subject, limit) for subject in subjects for limit in subject.limits]
        ids = [f"{subject.name}-{limit.id}" for subject, limit in pairs]
        metafunc.parametrize(("subject", "limit"), pairs, ids=ids)
    elif "subject" in names:
        metafunc.parametrize("subject", subjects, ids=[subject.name for subject in subjects])
    if "property_name" in names:
        metafunc.parametrize("property_name", PROPERTY_NAMES)
    if "relation_name" in names:
        metafunc.parametrize("relation_name", RELATION_NAMES)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the replay alone where a case is replayed, and everything else where none is."""
    replaying = config.stash[SESSION].replayed is not None
    replays = [item for item in items if "replayed" in getattr(item, "fixturenames", ())]
    kept = [item for item in items if (item in replays) == replaying]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def pytest_runtestloop(session: pytest.Session) -> None:
    """Take over what an earlier session finished, before the first test."""
    session.config.stash[SESSION].resume()


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Session:
    """The session: judges cases, and remembers what it judged."""
    return request.config.stash[SESSION]


@pytest.fixture
def export_to(request: pytest.FixtureRequest) -> Path | None:
    """The folder given with --export, None without one."""
    folder: str | None = request.config.option.export
    return None if folder is None else Path(folder)


@pytest.fixture
def replayed(run: Session) -> Case:
    """The case given with --replay."""
    assert run.replayed is not None
    return run.replayed


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport, config: pytest.Config
) -> tuple[str, str, str] | None:
    """Print no letter for a test: the progress line says more, and the table says all."""
    if config.option.verbose <= 0 and (report.when == "call" or report.skipped):
        return report.outcome, "", report.outcome.upper()
    return None


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(
    session: pytest.Session, exitstatus: int
) -> Generator[None, object, object]:
    """End the records; a bad result fails the session whichever test saw it."""
    run = session.config.stash.get(SESSION, None)
    if run is not None:
        run.close()
        if exitstatus == pytest.ExitCode.OK and any(result.is_bad for result in run.results):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
    return (yield)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Print the failures with their cases, the table, and where the records are."""
    run = config.stash.get(SESSION, None)
    if run is None or not run.results:
        return
    terminalreporter.section("conformance")
    interrupted = exitstatus == pytest.ExitCode.INTERRUPTED
    terminalreporter.write_line(summary(run.results, interrupted))
    terminalreporter.write_line(f"records: {run.records.path}")


def _session(config: pytest.Config) -> Session:
    """Return the session that the options ask for; UsageError where they cannot be met."""
    profile = PROFILES[config.option.profile]
    results_folder = Path(config.option.results)
    text = config.option.replay
    replayed = None if text is None else find_case(text, results_folder)
    names = config.option.kernel or DEFAULT_KERNELS
    engine = config.option.engine
    if replayed is not None:
        names = config.option.kernel or [replayed.kernel]
        engine = replayed.engine if engine == "auto" else engine
    subjects = tuple(make_subject(name, engine) for name in dict.fromkeys(names))
    if replayed is not None:
        _check_support(subjects, replayed)
    if config.option.export is not None:
        _check_export(config.option.export, subjects, replayed)
    seed = config.getoption("hypothesis_seed", None)
    resumed = config.option.resume
    return Session(
        subjects,
        profile,
        _screen(config),
        seed=profile.seed if seed is None else int(seed),
        results_folder=results_folder,
        replayed=replayed,
        resumed=None if resumed is None else records_to_resume(resumed),
    )


def _check_export(folder: str, subjects: tuple[Subject, ...], replayed: Case | None) -> None:
    """Refuse to save what is no single call of the simulator, or where something is already."""
    if replayed is None or len(subjects) > 1:
        raise UsageError(f"--export: {folder}: needs --replay CASE and one kernel")
    if subjects[0].engine.engine != "simulator":
        raise UsageError(f"--export: {folder}: engine {subjects[0].engine.engine}, not simulator")
    if Path(folder).exists():
        raise UsageError(f"--export: {folder} is there already; a call is saved to a new folder")


def _check_support(subjects: tuple[Subject, ...], case: Case) -> None:
    """Refuse to replay a case on a kernel that does not take its problem, if it is to."""
    if case.property == REFUSED_OR_RIGHT:
        return
    problem = Problem.from_json(case.problem)
    for subject in subjects:
        support = subject.kernel.supports(problem)
        if not support.ok:
            raise UsageError(f"--replay: {subject.name} does not take this: {support.reason}")


def _screen(config: pytest.Config) -> Screen:
    """Return standard output itself, also while pytest captures it."""
    capture = config.pluginmanager.getplugin("capturemanager")

    def write(text: str) -> None:
        with capture.global_and_fixture_disabled():
            sys.stdout.write(text)
            sys.stdout.flush()

    with capture.global_and_fixture_disabled():
        return Screen(write, sys.stdout.isatty())
