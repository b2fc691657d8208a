"""How a value is refused: by argument, limit and value. Standard library only.

Each function gives the value back as a plain Python object, or raises. numpy's numbers pass for
Python's; a bool passes for no number, and a number for no bool.
"""

import math
import numbers
from typing import TypeVar

INT32_MAX = 2**31 - 1

T = TypeVar("T", bound=int | str)


def refusal(argument: str, limit: str, value: object) -> str:
    """The one sentence of a refusal; ``limit`` goes on from "must"."""
    return f"{argument} must {limit}, got {value}"


def integer(argument: str, value: object, low: int, high: int = INT32_MAX) -> int:
    """``value`` as an int of [low, high]. TypeError for another kind, ValueError outside."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise TypeError(refusal(argument, "be an int", repr(value)))
    plain = int(value)
    if not low <= plain <= high:
        raise ValueError(refusal(argument, f"be in [{low}, {high}]", value))
    return plain


def number(argument: str, value: object, low: float = -math.inf) -> float:
    """``value`` as a finite float, at least ``low``. Raises as `integer` does."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(refusal(argument, "be a float", repr(value)))
    plain = float(value)
    if not (math.isfinite(plain) and plain >= low):
        limit = "be finite" if low == -math.inf else f"be finite and at least {low}"
        raise ValueError(refusal(argument, limit, value))
    return plain


def flag(argument: str, value: object) -> bool:
    """``value``, a bool. TypeError for anything else."""
    if not isinstance(value, bool):
        raise TypeError(refusal(argument, "be a bool", repr(value)))
    return value


def choice(argument: str, value: object, choices: tuple[T, ...]) -> T:
    """The one of ``choices`` that ``value`` is, in type and value. ValueError for anything else."""
    for known in choices:
        if type(value) is type(known) and value == known:
            return known
    raise ValueError(refusal(argument, f"be one of {choices}", repr(value)))
