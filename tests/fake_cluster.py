"""A cluster without machines and without Ray: outposts are objects, and calls are answered when the test looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spreeze.roles.relay.fleet import BlockLost, Lost, Node, Unreadable


class Ticket(tuple[Any, ...]):
    """Equal only to itself, as Ray's references are."""

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class FakeCluster:
    """Nodes that the test adds and removes. `make` makes what runs on a node."""

    def __init__(self, make: Callable[[Node], Any]) -> None:
        self._make = make
        self.there: dict[str, Node] = {}
        self.outposts: dict[str, Any] = {}
        self.broken: set[str] = set()
        """Nodes whose outposts do not answer: calls end with Lost."""
        self.without_code: set[str] = set()
        """Nodes that lack the user's module, so that they cannot read what they are sent."""
        self.slow: set[str] = set()
        """Nodes whose answers do not come for now."""
        self.losing_blocks = False
        self.num_calls = 0
        self.stored: list[Any] = []
        self.ended: list[Any] = []
        self.closed = False

    def add(self, id: str, cpus: int = 1) -> None:
        self.there[id] = Node(id, f"host-{id}", cpus)

    def nodes(self) -> dict[str, Node]:
        return dict(self.there)

    def start(self, node: Node) -> Any:
        self.broken.discard(node.id)
        self.outposts[node.id] = self._make(node)
        return node.id, self.outposts[node.id]

    def call(self, outpost: Any, method: str, *arguments: Any) -> Any:
        self.num_calls += 1
        return Ticket((self.num_calls, outpost, method, arguments))

    def answered(self, tickets: list[Any], timeout_s: float) -> list[Any]:
        return [ticket for ticket in tickets if ticket[1][0] not in self.slow]

    def answer(self, ticket: Any) -> Any:
        _, (id, outpost), method, arguments = ticket
        if id in self.broken or id not in self.there:
            raise Lost("it was killed")
        if method == "join" and id in self.without_code:
            raise Unreadable("No module named 'mine'")
        if method == "take" and self.losing_blocks:
            raise BlockLost
        return getattr(outpost, method)(*arguments)

    def put(self, value: Any) -> Any:
        self.stored.append(value)
        return value

    def end(self, outpost: Any) -> None:
        self.ended.append(outpost)

    def close(self) -> None:
        self.closed = True
