"""A check that can say who acts and where, and notes each pair of program lines once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from simulator.errors import Location
from simulator.machine.warp import Warp
from simulator.sanitizer.finding import Access, Check, Finding, Findings


class Witness(Check):
    """A check with the name ``name``; ``warp`` acts, or ``work`` on behalf of a warp.

    ``work`` is the engine, the token that ``issue`` gave it, and the place of the issue.
    """

    name: str

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._warp: Warp | None = None
        self.work: tuple[str, Any, Location] | None = None

    @property
    def warp(self) -> Warp:
        """The warp whose turn it is."""
        assert self._warp is not None
        return self._warp

    def turn(self, warp: Warp) -> None:
        """The warp acts."""
        self._warp = warp

    def begin(self, engine: Hashable, token: Any, location: Location) -> None:
        """The engine acts."""
        self.work = (str(engine), token, location)

    def end(self) -> None:
        """The warp acts again."""
        self.work = None

    def mnemonic(self) -> str:
        """The opcode, with its modifiers, that the warp executes."""
        node = self.warp.cta.program.instruction(self.warp.block, self.warp.position)
        return node.mnemonic if node else ""

    def access(self, what: str) -> Access:
        """What the acting agent does now."""
        if self.work is not None:
            agent, _, location = self.work
            agent = f"the {agent}"
        else:
            agent = f"warp {self.warp.rank} of cta {self.warp.cta.rank}"
            location = self.warp.cta.cluster.site(self.warp)
        return Access(agent, what, replace(location, cta=None, warp=None, lanes=None))

    def note(self, sentence: str, later: Access, earlier: Access | None = None) -> None:
        """Count a finding: the same sentence about the same lines is the same."""
        places = [
            (one.location.ptx_line, one.location.source)
            for one in (later, earlier)
            if one is not None
        ]
        self.findings.note(
            (self.name, sentence, *places), lambda: Finding(self.name, sentence, later, earlier)
        )
