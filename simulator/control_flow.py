"""Where diverged lanes meet again: immediate post-dominators of a control-flow graph.

Source: Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm", run on the reversed graph.
"""

from __future__ import annotations

from collections.abc import Sequence


def immediate_post_dominators(successors: Sequence[Sequence[int]]) -> list[int]:
    """For each node the first node that every path from it to the exit passes.

    Nodes are ``0..n-1``; ``n`` stands for the exit and may be a successor. A node from which the
    exit can't be reached (an endless loop) gets the exit.
    """
    exit_node = len(successors)
    order = _reverse_post_order(successors)
    rank = {node: i for i, node in enumerate(order)}
    parent: dict[int, int] = {exit_node: exit_node}

    def meet(a: int, b: int) -> int:
        while a != b:
            if rank[a] > rank[b]:
                a = parent[a]
            else:
                b = parent[b]
        return a

    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            known = [s for s in successors[node] if s in parent]
            candidate = known[0]
            for other in known[1:]:
                candidate = meet(candidate, other)
            if parent.get(node) != candidate:
                parent[node] = candidate
                changed = True
    return [parent.get(node, exit_node) for node in range(exit_node)]


def _reverse_post_order(successors: Sequence[Sequence[int]]) -> list[int]:
    """Reverse post-order of the reversed graph from the exit: every node follows a successor."""
    predecessors: list[list[int]] = [[] for _ in range(len(successors) + 1)]
    for node, targets in enumerate(successors):
        for target in targets:
            predecessors[target].append(node)
    exit_node = len(successors)
    seen, post = {exit_node}, []
    stack = [(exit_node, iter(predecessors[exit_node]))]
    while stack:
        node, rest = stack[-1]
        for candidate in rest:
            if candidate not in seen:
                seen.add(candidate)
                stack.append((candidate, iter(predecessors[candidate])))
                break
        else:
            post.append(node)
            stack.pop()
    return post[::-1]
