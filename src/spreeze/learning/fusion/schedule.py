"""Puts what can run together into one kernel, and kernels and calls of the library in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from spreeze.learning.fusion.indices import Index, unflatten
from spreeze.learning.fusion.nodes import (
    Call,
    Input,
    Node,
    Parts,
    Pointwise,
    Reduction,
    Result,
    View,
)
from spreeze.learning.fusion.places import Scatter
from spreeze.learning.fusion.source import Body, memory
from spreeze.learning.fusion.storing import (
    in_order,
    reuse_scattered,
    store_what_is_shared,
    stored_sources,
)

LONG_ROW = 16_384
MOST_MEMBERS = 24
"""Stored values that one kernel makes at most."""


class Hazard(Exception):
    """A kernel would read what it writes itself, at another place."""


@dataclass(eq=False)
class Kernel:
    """Stored nodes that are computed together, over `rows` x `columns` elements.

    Rows are independent. A reduction over columns ends a level: what reads its result is computed in a
    second loop over the columns. If it is `split`, only reductions are in it, and a row's elements may lie
    far apart, so that many threads share the columns of a row.
    """

    rows: int
    columns: int
    split: bool = False
    members: dict[Node, int] = field(default_factory=dict)
    """The stored nodes and their levels."""
    first: int = 0
    """The first row, if it is a part of a kernel."""

    @property
    def row(self) -> Index:
        """The number of the row."""
        return Index.of("r", self.rows) + self.first

    @property
    def column(self) -> Index:
        """The variable of the column."""
        return Index.of("c", self.columns)

    @property
    def element(self) -> Index:
        """The place of an element in row-major order."""
        return self.row * self.columns + self.column

    @property
    def needs_rows(self) -> bool:
        """Whether the elements of a row must be computed together."""
        return any(isinstance(n, Reduction) or self.is_per_row(n) for n in self.members)

    def segments(self) -> list[Kernel]:
        """Parts of a kernel without columns in each of which the same code runs."""
        starts = {0, self.rows}.union(*(_boundaries(node) for node in self.members))
        ends = sorted(starts)
        return [
            Kernel(end - start, 1, members=self.members, first=start)
            for start, end in pairwise(ends)
        ]

    @property
    def is_long(self) -> bool:
        """Whether a few rows have most of the work, so that rows alone keep no device busy."""
        return self.rows < 64 and self.columns > LONG_ROW

    def is_per_row(self, node: Node) -> bool:
        """Whether a member is one number for each row, and no reduction."""
        return not isinstance(node, Reduction) and self.columns > 1 and domain(node) == self.rows

    def fits(self, node: Node) -> bool:
        """Whether the node runs over the same elements."""
        if len(self.members) >= MOST_MEMBERS:
            return False
        if isinstance(node, Reduction):
            same = (domain(node), node.count) == (self.rows, self.columns)
            return same and self.split == _is_split(node)
        if self.split:
            return False
        size = domain(node)
        if size == self.rows * self.columns:
            return not isinstance(node, Scatter) or memory(node) not in self.members
        once_per_row = self.columns > 1 and size == self.rows and not self.is_long
        return once_per_row and not isinstance(node, Scatter)

    def check_read(self, node: Node, at: Index, needed: list[int]) -> None:
        """Note the level that reading a member needs; raises Hazard if no level is enough."""
        if node not in self.members:
            if any(memory(node) is memory(member) for member in self.members):
                raise Hazard
            return
        level = self.members[node]
        if isinstance(node, Reduction) and not self.split and at == self.row:
            needed.append(level + 1)
        elif isinstance(node, Scatter | Reduction):
            raise Hazard
        elif at == (self.row if self.is_per_row(node) else self.element):
            needed.append(level)
        else:
            raise Hazard

    def level(self, node: Node) -> int:
        """The level at which a node could be a member; raises Hazard if at none."""
        needed = [0]
        body = Body(lambda other, at: self.check_read(other, at, needed))
        with body.scope("rows", ["r"]), body.scope("columns", ["c"]):
            write_member(body, self, node)
        level = max(needed)
        if self.is_per_row(node) and any(
            n == level and not self.is_per_row(m) and not isinstance(m, Reduction)
            for m, n in self.members.items()
            if m in set(stored_sources(node))
        ):
            raise Hazard
        return level


def _boundaries(node: Node, first: int = 0) -> set[int]:
    """Where the parts of a vector begin."""
    found: set[int] = set()
    if isinstance(node, Parts) and len(node.shape) == 1:
        for start, source in zip(node.starts, node.sources, strict=True):
            found |= {first + start} | (
                set() if source.stored else _boundaries(source, first + start)
            )
    elif isinstance(node, Pointwise):
        for source in node.sources:
            if source.shape == node.shape and not source.stored:
                found |= _boundaries(source, first)
    return found


def domain(node: Node) -> int:
    """How many elements are computed; for a reduction: results."""
    return node.sources[1].size if isinstance(node, Scatter) else node.size


def write_member(body: Body, kernel: Kernel, node: Node) -> str:
    """Write the code for one element of a member; returns its value."""
    if isinstance(node, Reduction):
        return node.input(body, kernel.row, kernel.column)
    at = kernel.row if kernel.is_per_row(node) else kernel.element
    if isinstance(node, Scatter):
        place, value = node.add(body, unflatten(at, node.sources[1].shape))
        body.line(f"ADD(&{body.pointer(node)}[{place}], {value});")
        return value
    body.computing = node
    try:
        value = body.read(node, unflatten(at, node.shape))
    finally:
        body.computing = None
    body.store(node, at, value)
    return value


def _is_split(node: Reduction) -> bool:
    """Whether many threads must share a row: its elements are far apart, or rows are few and long."""
    few_and_long = node.size < 64 and node.count > LONG_ROW
    return not node.by_row or few_and_long or _runs_along(node.sources[0]) not in (None, *node.dims)


def _runs_along(node: Node) -> int | None:
    """The dimension along which elements are next to each other in memory, if that is known."""
    subscript = tuple(Index.of(f"d{dim}", size) for dim, size in enumerate(node.shape))
    shape = node.shape
    while not node.stored:
        if isinstance(node, View):
            subscript = node.place(subscript)
            node = node.sources[0]
            continue
        same = [source for source in node.sources if source.shape == node.shape]
        if not isinstance(node, Pointwise) or not same:
            return None
        node = same[0]
    steps = {digit.variable: factor for factor, digit in node.offset(subscript).terms}
    along = [dim for dim in range(len(shape)) if steps.get(f"d{dim}") == 1]
    return along[0] if along else None


def schedule(outputs: Sequence[Node]) -> list[Kernel | Call]:
    """Kernels and calls that compute the outputs, in order."""
    nodes = in_order(outputs)
    for node in outputs:
        node.stored = True
    reuse_scattered(nodes)
    store_what_is_shared(nodes)
    steps: list[Kernel | Call] = []
    place: dict[Node, int] = {}
    for node in nodes:
        if not node.stored or isinstance(node, Input):
            continue
        if isinstance(node, Result):
            place[node] = place[node.sources[0]]
            continue
        earliest = max((place[s] for s in stored_sources(node) if s in place), default=0)
        if isinstance(node, Call):
            steps.append(node)
            place[node] = len(steps) - 1
            continue
        place[node] = _place(node, steps, earliest)
    return steps


def _place(node: Node, steps: list[Kernel | Call], earliest: int) -> int:
    """Add a node to the first kernel that can have it, or to a new one."""
    for i in range(earliest, len(steps)):
        kernel = steps[i]
        if isinstance(kernel, Kernel) and kernel.fits(node):
            try:
                kernel.members[node] = kernel.level(node)
            except Hazard:
                continue
            return i
    if isinstance(node, Reduction):
        kernel = Kernel(node.size, node.count, _is_split(node))
    elif node.shape and not isinstance(node, Scatter):
        columns = node.shape[-1]
        kernel = Kernel(node.size // columns, columns)
        if kernel.is_long:
            kernel = Kernel(node.size, 1)
    else:
        kernel = Kernel(domain(node), 1)
    kernel.members[node] = kernel.level(node)
    steps.append(kernel)
    return len(steps) - 1
