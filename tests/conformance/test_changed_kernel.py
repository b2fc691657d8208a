"""One instruction changed in a real kernel: the suite fails, names the property, and shrinks."""

import json
from pathlib import Path

import pytest
from hypothesis import strategies as st

from conformance import search, session
from conformance.adapters.tokenspeed_wrapper import PEERS
from conformance.kernel import Kernel
from conformance.strategies import Choice, Drawn
from reference.problem import Recipe
from tests.conformance import cases

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
KERNEL = f"{Path(__file__).with_name('changed_kernel.py')}:one_key_too_many"


def lengths(kernel: Kernel, profile: str) -> st.SearchStrategy[Drawn]:
    """One or two requests of 1 to 300 keys, at the edges of tiles more often."""
    length = st.integers(1, 300) | st.sampled_from((127, 128, 129, 257))
    return st.builds(
        lambda keys: (cases.problem(*keys, heads=128), Recipe(), Choice(seed=0, num_sms=1)),
        st.lists(length, min_size=1, max_size=2),
    )


@pytest.mark.skipif(
    not (PEERS / "tokenspeed-mla-2.0.4").is_dir(),
    reason=f"tokenspeed-mla is not in {PEERS.name}/: nox -s peers installs it",
)
def test_one_changed_comparison_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "covering_array", lambda profile, kernel: ())
    monkeypatch.setattr(search, "problems", lengths)
    result = pytester.runpytest_inprocess(
        *("-c", str(ROOT / "pyproject.toml"), "-p", "conformance.plugin"),
        *("-p", "no:cacheprovider", str(ROOT / "conformance" / "suite")),
        *("--profile", "smoke", "--kernel", KERNEL, "-k", "random"),
    )
    text = "\n".join(result.outlines)
    assert result.ret == pytest.ExitCode.TESTS_FAILED, text
    assert f"FAILED {KERNEL} (simulator) matches_float64" in text
    case = next(line for line in result.outlines if line.startswith("  case:"))
    found = json.loads(case.partition("case:")[2])
    # The wrong key is the second of a tile: the fewest keys that show it are 1.
    assert found["problem"]["seq_lens"] == [1]
