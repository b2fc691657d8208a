"""One step smaller: a request, page, split, tile, head or token fewer, and the descent by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from conformance import matrix
from conformance.kernel import Kernel
from conformance.strategies import TILE_KEYS
from reference.problem import Problem
from reports.records import Case

Step = tuple[str, Case]  # what there is fewer of, and the case that is left


def one_step(case: Case, kernel: Kernel) -> Iterator[Step]:
    """Every case that is one step smaller, of those that ``kernel`` takes."""
    problem = Problem.from_json(case.problem)
    for word, smaller in _smaller(problem):
        if kernel.supports(smaller).ok and _is_within_limits(kernel, smaller):
            yield word, replace(case, problem=smaller.to_json())
    yield from _fewer_splits(case, kernel, problem)


def descend(case: Case, kernel: Kernel, fails: Callable[[Case], bool | None]) -> tuple[Case, bool]:
    """A smaller case that fails, and whether none that is one step smaller than it does.

    Long ways are taken in strides that double. ``fails`` gives None when there is no more time.
    """
    while True:
        for word, smaller in one_step(case, kernel):
            answer = fails(smaller)
            if answer is None:
                return case, False
            if answer:
                case = _stride(smaller, word, kernel, fails)
                break
        else:
            return case, True


def _stride(case: Case, word: str, kernel: Kernel, fails: Callable[[Case], bool | None]) -> Case:
    """Go on in one direction by more and more steps while that fails."""
    steps = 2
    while True:
        smaller = case
        for _ in range(steps):
            following = [less for name, less in one_step(smaller, kernel) if name == word]
            if not following:
                return case
            smaller = following[0]
        if not fails(smaller):
            return case
        case, steps = smaller, 2 * steps


def _smaller(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """The problem with a request, a tile or page of one, a head or a token fewer."""
    contexts = [problem.context_len(request) for request in range(problem.batch_size)]
    for request, keys in enumerate(contexts):
        before, after = contexts[:request], contexts[request + 1 :]
        if before or after:
            yield "request", matrix.with_contexts(problem, [*before, *after])
        for word, step in (("tile", TILE_KEYS), ("page", problem.page_size)):
            if keys:
                less = max(0, keys - step * problem.dcp.world)
                yield word, matrix.with_contexts(problem, [*before, less, *after])
    dims = problem.dims
    if dims.num_heads > 1:
        yield "head", replace(problem, dims=replace(dims, num_heads=dims.num_heads - 1))
    if dims.seq_len_q > 1:
        yield "token", replace(problem, dims=replace(dims, seq_len_q=dims.seq_len_q - 1))


def _is_within_limits(kernel: Kernel, problem: Problem) -> bool:
    if kernel.limits.empty_rows:
        return True
    return min(problem.seq_lens, default=0) >= problem.dims.seq_len_q


def _fewer_splits(case: Case, kernel: Kernel, problem: Problem) -> Iterator[Step]:
    """The case with a split fewer: asked for, or by fewer SMs where the plan decides."""
    if case.num_splits is not None:
        if case.num_splits > 1:
            yield "split", replace(case, num_splits=case.num_splits - 1)
        return
    splits = kernel.plan(problem, case.num_sms).num_splits
    low, high = 0, case.num_sms - 1  # the most SMs that plan fewer
    while low < high:
        middle = (low + high + 1) // 2
        if kernel.plan(problem, middle).num_splits < splits:
            low = middle
        else:
            high = middle - 1
    if low:
        yield "split", replace(case, num_sms=low)
