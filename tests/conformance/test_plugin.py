"""The suite as somebody runs it: options, verdicts, exit codes, replay, interruption."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import strategies as st

from conformance import judge, search, session
from conformance.kernel import Kernel
from conformance.properties import PROPERTY_NAMES
from conformance.relations import GPU_RELATIONS
from conformance.strategies import Choice, Drawn
from reference.problem import Recipe
from reports.records import read_records
from tests.conformance import cases

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
# Of seven problems; three of them have a relation each, and one more is refused. Some relations
# need a GPU.
SKIPPED = len(GPU_RELATIONS)
RESULTS = 7 * len(PROPERTY_NAMES) + 3 + len(GPU_RELATIONS) + 1
Run = Callable[..., pytest.RunResult]


def few_problems(profile: str, kernel: Kernel) -> Sequence[Drawn]:
    lengths = ((5,), (33, 2), (8,))
    return [(cases.problem(*keys), Recipe(), Choice(seed=7, num_sms=148)) for keys in lengths]


def random_problems(kernel: Kernel, profile: str) -> st.SearchStrategy[Drawn]:
    return st.builds(
        lambda keys, seed: (cases.problem(keys), Recipe(), Choice(seed=seed, num_sms=148)),
        st.integers(1, 20),
        st.integers(0, 1000),
    )


def one_refusal(kernel: Kernel) -> tuple[Drawn, ...]:
    problem = cases.problem(3, dtype="float16")
    return () if kernel.supports(problem).ok else ((problem, Recipe(), Choice(5, num_sms=148)),)


@pytest.fixture
def run_suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the suite in this process, over few problems; records go to ``results``."""
    # A session in this process that is given a seed would leave it to every later test.
    monkeypatch.setattr("hypothesis.core.global_force_seed", None)
    monkeypatch.setattr(session, "covering_array", few_problems)
    monkeypatch.setattr(search, "problems", random_problems)
    monkeypatch.setattr(session, "refusals", one_refusal)

    def run(*arguments: str, kernel: str | None = "healthy") -> pytest.RunResult:
        chosen = () if kernel is None else ("--kernel", f"{cases.FAKE}:{kernel}")
        return pytester.runpytest_inprocess(
            *("-c", str(ROOT / "pyproject.toml"), "-p", "conformance.plugin"),
            *("-p", "no:cacheprovider", str(ROOT / "conformance" / "suite")),
            *("--results", "results", "--profile", "smoke", *chosen, *arguments),
            no_reraise_ctrlc=True,
        )

    return run


def text_of(result: pytest.RunResult) -> str:
    return "\n".join(result.outlines + result.errlines)


def replay_of(text: str) -> list[str]:
    """The arguments of the replay command in a text."""
    match = re.search(r"replay: nox -s conformance -- (.*)", text)
    assert match is not None, text
    return match[1].split()


def failure_in(text: str, kernel: str, property_name: str) -> str:
    """The text from where it tells of this failure."""
    return text[text.index(f"FAILED {cases.FAKE}:{kernel} (simulator) {property_name}") :]


def test_a_right_kernel_passes_and_the_table_says_so(run_suite: Run) -> None:
    result = run_suite()
    text = text_of(result)
    assert result.ret == pytest.ExitCode.OK, text
    assert "profile smoke, --hypothesis-seed 1" in text
    assert re.search(r"fake_kernel.py:healthy on simulator, sm_100a: ", text)
    assert re.search(r"matches_float64 +7 +0\.\d+ +7 passed", text)
    assert re.search(rf"\d distinct problems, {RESULTS - SKIPPED} passed, {SKIPPED} skipped", text)


def test_every_case_is_recorded(run_suite: Run) -> None:
    text = text_of(run_suite())
    (path,) = Path("results").glob("*-conformance/records.jsonl")
    assert f"records: {path}" in text
    records = read_records(path)
    assert len(records.results) == RESULTS
    assert records.summary is not None
    assert records.header.tool == "conformance"


def test_a_killed_session_is_resumed_where_it_stopped(
    run_suite: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reports.records._git_state", lambda folder: ("a" * 40, False))
    run_suite()
    (path,) = Path("results").glob("*-conformance/records.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    finished = 3
    path.write_text("".join(lines[: 1 + len(PROPERTY_NAMES) * finished + 2]) + lines[-2][:40])
    runs: list[object] = []
    attempt = judge._attempt
    monkeypatch.setattr(judge, "_attempt", lambda *a: (runs.append(a), attempt(*a))[1])
    text = text_of(run_suite("--resume", str(path.parent)))
    assert re.search(rf"\d distinct problems, {RESULTS - SKIPPED} passed, {SKIPPED} skipped", text)
    others = 3 + len(GPU_RELATIONS) + 1  # of the relations and the refusal
    assert len(runs) == 7 - finished + others
    path.unlink()
    (resumed,) = Path("results").glob("*-conformance*/records.jsonl")
    assert len(read_records(resumed).results) == RESULTS


def test_only_the_same_unchanged_sources_go_on(
    run_suite: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reports.records._git_state", lambda folder: ("a" * 40, False))
    run_suite()
    (folder,) = Path("results").glob("*-conformance")
    for state in (("b" * 40, False), ("a" * 40, True)):
        monkeypatch.setattr("reports.records._git_state", lambda folder, state=state: state)
        result = run_suite("--resume", str(folder))
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert "goes on only with the sources it began with" in text_of(result)
    result = run_suite("--resume", "nowhere")
    assert "--resume: [Errno 2] No such file or directory: 'nowhere'" in text_of(result)


@pytest.mark.parametrize(
    ("kernel", "property_name"),
    [
        ("zero_output", "matches_float64"),
        ("key_fewer", "matches_float64"),
        ("natural_lse", "matches_float64"),
        ("unwritten_head", "every_element_written"),
        ("modified_input", "inputs_unchanged"),
        ("raises", "completes"),
    ],
)
def test_a_wrong_kernel_fails_with_a_minimal_case_that_replays(
    run_suite: Run, kernel: str, property_name: str
) -> None:
    result = run_suite(kernel=kernel)
    text = text_of(result)
    assert result.ret == pytest.ExitCode.TESTS_FAILED, text
    failure = failure_in(text, kernel, property_name)
    case = json.loads(re.search("case: +(.*)", failure)[1])  # type: ignore[index]
    assert case["problem"]["seq_lens"] == [1]

    again = run_suite(*replay_of(failure), kernel=None)
    assert again.ret == pytest.ExitCode.TESTS_FAILED
    assert replay_of(failure_in(text_of(again), kernel, property_name)) == replay_of(failure)
    assert re.search(rf"{property_name} +1 .*1 failed", text_of(again))


def test_a_case_is_replayed_from_its_json_on_another_kernel(run_suite: Run) -> None:
    result = run_suite("--replay", json.dumps(cases.case(3).to_json()))
    assert result.ret == pytest.ExitCode.OK
    assert re.search(r"fake_kernel.py:healthy .*matches_float64 +1 .*1 passed", text_of(result))


def test_two_kernels_are_judged_side_by_side(run_suite: Run) -> None:
    result = run_suite("--kernel", f"{cases.FAKE}:natural_lse")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert re.search(r"healthy +simulator +matches_float64 .* 7 passed", text_of(result))
    assert re.search(r"natural_lse +simulator +matches_float64 .* \d+ failed", text_of(result))


def test_the_seed_repeats_and_changes_the_problems(run_suite: Run) -> None:
    def ran(*arguments: str) -> list[str]:
        records = re.search("records: (.*)", text_of(run_suite(*arguments)))
        assert records is not None
        return [result.case.id for result in read_records(records[1]).results]

    assert ran() == ran("--hypothesis-seed", "1")
    assert ran() != ran("--hypothesis-seed", "2")


def test_an_interrupted_session_says_what_ran(run_suite: Run) -> None:
    result = run_suite(kernel="interrupted")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    text = text_of(result)
    assert (
        f"interrupted, what ran so far: 2 distinct problems, {2 * len(PROPERTY_NAMES)} passed"
        in text
    )
    assert re.search(r"matches_float64 +2 ", text)
    (path,) = Path("results").glob("*-conformance/records.jsonl")
    assert len(read_records(path).results) == 2 * len(PROPERTY_NAMES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kernel", "tokenspeed-mla-2.0.4-fp4"), "did you mean tokenspeed-mla-2.0.4-fp8"),
        (("--kernel", "mutant:1"), "'mutant:1' is none of the"),
        (("--kernel", "mutant:fake:"), "a mutant is mutant:ID or mutant:KERNEL:ID"),
        (("--engine", "cuda"), "--engine: 'cuda' cannot run fake: it needs one of sm_100a"),
        (("--replay", "nothing.json"), "--replay: 'nothing.json' is no file, no JSON object"),
        (("--replay", '{"kernel": "fake"}'), "--replay: the JSON given: engine: missing key"),
        (("--replay", json.dumps(cases.case(3, dtype="float16").to_json())), "dtype must be one"),
        (("--profile", "huge"), "argument --profile: invalid choice: 'huge'"),
        (("--engine", "cpu"), "argument --engine: invalid choice: 'cpu'"),
    ],
)
def test_wrong_use_is_answered_clearly(
    run_suite: Run, arguments: tuple[str, ...], message: str
) -> None:
    result = run_suite(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in text_of(result)
    assert "Traceback" not in text_of(result)
    assert not list(Path("results").glob("*"))


def test_a_kernel_that_takes_nothing_is_no_pass(run_suite: Run) -> None:
    result = run_suite(kernel="takes_nothing")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "takes no problem of profile smoke" in text_of(result)


def test_help_says_what_each_option_is_for(run_suite: Run) -> None:
    text = " ".join(text_of(run_suite("--help")).split())
    for option in ("--kernel=NAME", "--engine", "--profile", "--replay=CASE", "--results=FOLDER"):
        assert option in text
    assert "tokenspeed-mla-2.0.4-fp8" in text
