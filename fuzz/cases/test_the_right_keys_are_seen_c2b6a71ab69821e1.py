"""the_right_keys_are_seen: RuntimeError.

A fuzzing campaign found this on optimized: RuntimeError: upper bound and lower bound inconsistent
with step sign
"""

from pathlib import Path

from fuzz.export import regression


def test_the_right_keys_are_seen_c2b6a71ab69821e1() -> None:
    result = regression(Path(__file__).with_name("c2b6a71ab69821e1.json"))
    assert not result.is_bad, result.reason
