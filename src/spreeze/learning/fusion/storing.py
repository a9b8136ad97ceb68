"""Decides which values are stored in memory, and which are computed again wherever they are read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spreeze.learning.fusion.nodes import Node, Pointwise, View
from spreeze.learning.fusion.places import Scatter

STORE_FROM_COST, LARGEST_COST = 12, 150
"""A value that several others read is stored if it costs this much to compute; at the latter in any case."""
EXPENSIVE, EXPENSIVE_COST = ("exp", "log", "tanh", "pow", "sin", "cos"), 6


def in_order(outputs: Iterable[Node]) -> list[Node]:
    """All nodes that are needed, each after its sources; counts who reads them."""
    done: dict[Node, None] = {}
    stack: list[tuple[Node, bool]] = [(node, False) for node in reversed(list(outputs))]
    while stack:
        node, ready = stack.pop()
        if node in done:
            continue
        if ready:
            done[node] = None
            continue
        stack.append((node, True))
        stack += [(source, False) for source in reversed(node.sources) if source not in done]
    for node in done:
        node.num_readers = 0
    for node in done:
        if not isinstance(node, View):
            for source in node.sources:
                _seen(source).num_readers += 1
    return list(done)


def _seen(node: Node) -> Node:
    """The node whose elements a view shows."""
    while isinstance(node, View) and not node.stored:
        node = node.sources[0]
    return node


def reuse_scattered(nodes: Sequence[Node]) -> None:
    """Add to what was scattered before in place, if nothing else reads it."""
    for node in nodes:
        if isinstance(node, Scatter):
            copy = node.sources[0]
            before = _seen(copy.sources[0]) if isinstance(copy, Pointwise) else copy
            if isinstance(before, Scatter) and before.num_readers == 1 and copy.num_readers == 1:
                node.sources = (before, *node.sources[1:])


def store_what_is_shared(nodes: Sequence[Node]) -> None:
    """Store values that would be computed too often, or whose code would be too long."""
    costs: dict[Node, int] = {}
    for node in nodes:
        own = 0 if isinstance(node, View) else 1
        cost = own + sum(1 if s.stored else costs[s] for s in node.sources)
        if isinstance(node, Pointwise) and any(word in node.template for word in EXPENSIVE):
            cost += EXPENSIVE_COST
        shared = node.num_readers > 1 and cost >= STORE_FROM_COST and node.size > 1
        if not isinstance(node, View) and (shared or cost >= LARGEST_COST):
            node.stored = True
        costs[node] = cost


def stored_sources(node: Node) -> list[Node]:
    """The stored nodes that are read when this one is computed."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = list(node.sources)
    while stack:
        source = stack.pop()
        if source in seen:
            continue
        seen.add(source)
        if source.stored:
            found[source] = None
        else:
            stack += source.sources
    return list(found)
