"""Which faults are the same: the signature of a finding, and the exception that stands for it."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

from reports.records import CaseResult, canonical_json


@dataclass(frozen=True)
class Signature:
    """What tells faults apart: the property, how it ended, and where.

    ``error`` is an error's class, or the verdict where none was raised. ``where`` is a PTX line, ""
    where no instruction is to blame: an output that is wrong.
    """

    property_name: str
    error: str
    where: str

    @property
    def kind(self) -> tuple[str, str]:
        """What a smaller case must share: PTX lines move from one compilation to the next."""
        return self.property_name, self.error

    @property
    def id(self) -> str:
        """The first 12 hex digits of a digest."""
        words = [self.property_name, self.error, self.where]
        return hashlib.sha256(canonical_json(words).encode()).hexdigest()[:12]

    def __str__(self) -> str:
        where = f" at {self.where}" if self.where else ""
        return f"{self.property_name}: {self.error}{where}"


def signature_of(result: CaseResult) -> Signature:
    """The signature of a bad result."""
    where = "" if result.ptx_line is None else f"PTX line {result.ptx_line}"
    return Signature(result.case.property, result.error_class or result.verdict, where)


class Fault(AssertionError):
    """A case fails; raised to hypothesis, which keeps what raised it."""


@functools.cache
def fault_of(kind: tuple[str, str]) -> type[Fault]:
    """The class that stands for a kind of fault: hypothesis tells faults apart by their class."""
    return type("Fault_" + "_".join(kind), (Fault,), {})
