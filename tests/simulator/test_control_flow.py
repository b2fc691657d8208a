"""Post-dominators against every path of small random graphs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from simulator.control_flow import immediate_post_dominators

Graph = list[list[int]]


def simple_paths(graph: Graph, start: int) -> list[list[int]]:
    """Every path from ``start`` to the exit that visits no node twice.

    A node lies on all paths if it lies on all of these: cutting the loops out of a path only
    removes nodes.
    """
    exit_node = len(graph)
    found, unfinished = [], [[start]]
    while unfinished:
        path = unfinished.pop()
        if path[-1] == exit_node:
            found.append(path)
        else:
            unfinished.extend([*path, t] for t in set(graph[path[-1]]) if t not in path)
    return found


def expected(graph: Graph, node: int) -> int:
    """The first node after ``node`` that all its paths to the exit have; without paths the exit."""
    paths = simple_paths(graph, node)
    if not paths:
        return len(graph)
    common = set(paths[0]).intersection(*paths) - {node}
    return next(n for n in paths[0] if n in common)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 8))
    target = st.integers(0, count)
    return [draw(st.lists(target, min_size=1, max_size=2)) for _ in range(count)]


@given(graphs())
def test_post_dominators_are_what_the_paths_have_in_common(graph):
    assert immediate_post_dominators(graph) == [expected(graph, n) for n in range(len(graph))]


def test_the_arms_of_an_if_meet_behind_it():
    #        0 -> 1 | 2;  1 -> 3;  2 -> 3;  3 -> exit
    assert immediate_post_dominators([[1, 2], [3], [3], [4]]) == [3, 3, 3, 4]


def test_lanes_that_leave_a_loop_meet_behind_it():
    #        0 -> 1;  1 -> 2 | 3;  2 -> 1;  3 -> exit
    assert immediate_post_dominators([[1], [2, 3], [1], [4]]) == [1, 3, 1, 4]


def test_from_an_endless_loop_the_exit_stands_in():
    assert immediate_post_dominators([[1, 2], [1], [3]]) == [2, 3, 3]


def test_a_long_chain_needs_no_deep_recursion():
    count = 5000
    assert immediate_post_dominators([[i + 1] for i in range(count)])[0] == 1
