"""Mutants of any statement of one compilation: a seeded sample, judged as the suite judges.

Cases are the problems of the suite's profiles default and matrix that use the compilation, those
first that together execute most of it, and some of them again with all checks on and under other
schedules. What survives is held against ptxas and against what the profile deep executes; what
changes synchronisation, against the order of accesses in the watched cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from conformance.kernel import Compiled, Kernel, UsageError
from conformance.strategies import Drawn, covering_array
from mutation import operators
from mutation.machine_code import same_machine_code
from mutation.ptx import Mutant
from mutation.trial import ALL_CHECKS, Asked, Case, Trial, executed_lines
from reference.problem import Problem

MOST_KEYS = 2048  # of a case's longest request
FIRST = 8  # calls that are asked before checks and other schedules come
SCHEDULED = 2  # calls that are also asked under other schedules
POLICIES = ("late", "run_to_block", "quantum_1", "random", "pct:2:16384", "pct:3:8192")
WATCHED = 4  # calls that are also asked with all checks on
MOST_WATCHED_KEYS = 700  # of each of these


@dataclass(frozen=True)
class Compilation:
    """The compilation that is mutated, and calls that use it, the most telling first."""

    compiled: Compiled
    asked: tuple[Asked, ...]
    executed: frozenset[int]  # lines of its PTX that some of these calls execute

    @classmethod
    def of(cls, kernel: Kernel, wanted: Problem) -> Compilation:
        """That of ``wanted``; UsageError where no problem of the profiles uses it."""
        drawn = [one for profile in ("default", "matrix") for one in users(kernel, wanted, profile)]
        if not drawn:
            raise UsageError(f"--sample: no problem of the suite compiles as {wanted}")
        asked = [Asked.of(kernel, one) for one in drawn]
        lines = [executed_lines(kernel, one) for one in asked]
        order = covering_first(lines, [sum(one.problem.seq_lens) for one in asked])
        return cls(
            kernel.compile(wanted, kernel.arches[0]),
            tuple(asked[at] for at in order),
            frozenset().union(*lines),
        )

    def cases(self) -> Iterator[Case]:
        """Yield all cases: some as they are, some watched by all checks, the others, schedules."""
        numbers = range(len(self.asked))
        short = [at for at in numbers if max(self.asked[at].problem.seq_lens) <= MOST_WATCHED_KEYS]
        yield from (Case(at, "fair") for at in numbers[:FIRST])
        yield from (Case(at, "fair", checks=ALL_CHECKS) for at in short[:WATCHED])
        yield from (Case(at, "late", checks=ALL_CHECKS) for at in short[:1])
        yield from (Case(at, "fair") for at in numbers[FIRST:])
        for at in short[:SCHEDULED]:
            yield from (Case(at, policy, 1) for policy in POLICIES)

    def trial(self, kernel: Kernel) -> Trial:
        """The trial of all cases."""
        return Trial(kernel, self.asked, tuple(self.cases()))

    def mutants(self, count: int, seed: int) -> list[Mutant]:
        """``count`` mutants, or all there are, drawn with ``seed``."""
        return operators.sample(list(operators.mutants(self.compiled.ptx)), count, seed)

    def equivalence(self, mutant: Mutant, deep: frozenset[int], arch: str, ptxas: str) -> str:
        """Why a survivor is no other kernel; "" if no machine says so.

        ``deep`` are the lines that the profile deep executes; without ``ptxas`` it is not asked.
        """
        if mutant.line not in self.executed | deep:
            return "never executed by the profiles default, matrix and deep"
        changed = operators.TextMutation(mutant.id)(self.compiled.ptx)
        if ptxas and same_machine_code(self.compiled.ptx, changed, arch, ptxas):
            return f"ptxas makes the same machine code of it for {arch}"
        return ""


def users(kernel: Kernel, wanted: Problem, profile: str) -> Iterator[Drawn]:
    """Yield those problems of a profile that share the compilation of ``wanted``, with keys."""
    key = kernel.specialisation_key(wanted)
    for problem, recipe, choice in covering_array(profile, kernel):
        keys = max(problem.seq_lens, default=0)
        if 0 < keys <= MOST_KEYS and kernel.specialisation_key(problem) == key:
            yield problem, recipe, replace(choice, policy="fair", policy_seed=0)


def deep_lines(kernel: Kernel, wanted: Problem) -> frozenset[int]:
    """The lines that the covering array of the profile deep executes in the compilation."""
    drawn = users(kernel, wanted, "deep")
    return frozenset().union(*(executed_lines(kernel, Asked.of(kernel, one)) for one in drawn))


def covering_first(lines: Sequence[frozenset[int]], costs: Sequence[int]) -> list[int]:
    """An order in which each next one adds most lines; then, with nothing to add, the cheapest."""
    left, seen, order = set(range(len(lines))), set[int](), list[int]()
    while left:
        best = max(left, key=lambda at: (len(lines[at] - seen), -costs[at], -at))
        order.append(best)
        seen |= lines[best]
        left.remove(best)
    return order
