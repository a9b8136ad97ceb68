"""Writes the bodies of kernels: C++ that is the same for CPU and GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from spreeze.learning.fusion.indices import Index
from spreeze.learning.fusion.nodes import C_TYPES, Node, Subscript
from spreeze.learning.fusion.places import Scatter

STORED_TYPES = {**C_TYPES, torch.bfloat16: "unsigned short"}
"""Types in memory."""

PRELUDE = """
template <typename T> HERE T largest(T a, T b) { return a > b || a != a ? a : b; }
template <typename T> HERE T smallest(T a, T b) { return a < b || a != a ? a : b; }
HERE long long wrap(long long i, long long size) {
  i = i < 0 ? i + size : i;
  return i < 0 ? 0 : i >= size ? size - 1 : i;
}
HERE float from_bf16(unsigned short x) { return bits_to_float((unsigned)x << 16); }
HERE unsigned short to_bf16(float x) {
  unsigned bits = float_to_bits(x);
  return x != x ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
"""
"""Functions that kernels call. Comparisons let NaN pass, as the library's do."""

ANYWHERE = Index.of("anywhere", 2)
"""Stands for a place that is not known before the kernel runs."""
FIRST = {"sum": "0", "max": "-INFINITY", "min": "INFINITY"}
"""Where reductions begin."""
COMBINE = {"sum": "{0} + {1}", "max": "largest({0}, {1})", "min": "smallest({0}, {1})"}


def memory(node: Node) -> Node:
    """The node in whose memory this one is."""
    return memory(node.sources[0]) if isinstance(node, Scatter) else node


class Body:
    """The body of one kernel while it is written.

    Each scope has its own lines and knows the values that were computed in it. What depends on nothing
    inside a loop is written before the loop.
    """

    def __init__(self, before_read: Callable[[Node, Index], None] = lambda *_: None) -> None:
        """`before_read` is called for every element that is read from memory."""
        self._before_read = before_read
        self._scopes: list[_Scope] = [_Scope(frozenset())]
        self.arguments: dict[Node, str] = {}
        """The pointers that the kernel takes."""
        self._num_variables = 0
        self.computing: Node | None = None
        """A stored node whose value is being computed."""

    @property
    def lines(self) -> list[str]:
        """What is written."""
        return self._scopes[0].lines

    def line(self, code: str) -> None:
        """A line in the innermost scope."""
        self._scopes[-1].lines.append(code)

    @contextmanager
    def scope(
        self, head: str, variables: Sequence[str] = (), branch: bool = False
    ) -> Iterator[None]:
        """A block, such as a loop over `variables`."""
        outer = self._scopes[-1]
        self._scopes.append(_Scope(outer.variables | set(variables), branch))
        yield
        inner = self._scopes.pop()
        outer.lines += [f"{head} {{", *("  " + line for line in inner.lines), "}"]

    def pointer(self, node: Node) -> str:
        """The name of the pointer to a node's memory."""
        return self.arguments.setdefault(memory(node), f"p{len(self.arguments)}")

    def read(self, node: Node, subscript: Subscript) -> str:
        """The value of an element, from memory or computed here."""
        at = node.offset(subscript)
        key = (id(node), at)
        for scope in self._scopes:
            if key in scope.values:
                return scope.values[key]
        with self._hoisted(at):
            if node.stored and node is not self.computing:
                self._before_read(node, at)
                value = self._loaded(node, at.text())
            else:
                computing, self.computing = self.computing, None
                try:
                    value = node.element(self, subscript)
                finally:
                    self.computing = computing
            self._scopes[-1].values[key] = value
        return value

    @contextmanager
    def _hoisted(self, at: Index) -> Iterator[None]:
        """Write into the outermost scope that has all variables of an index; never out of a branch."""
        needed = {digit.variable for _, digit in at.terms}
        depth = len(self._scopes)
        while depth > 1 and not self._scopes[depth - 1].branch:
            if not needed <= self._scopes[depth - 2].variables:
                break
            depth -= 1
        inner = self._scopes[depth:]
        del self._scopes[depth:]
        yield
        self._scopes += inner

    def read_at(self, node: Node, offset: str) -> str:
        """An element in memory at a computed offset, which may be anywhere."""
        self._before_read(node, ANYWHERE)
        return self._loaded(node, offset)

    def _loaded(self, node: Node, offset: str) -> str:
        code = f"{self.pointer(node)}[{offset}]"
        if node.dtype == torch.bfloat16:
            code = f"from_bf16({code})"
        return self.let(node.c_type, code)

    def store(self, node: Node, at: Index, value: str) -> None:
        """Write an element to memory."""
        if node.dtype == torch.bfloat16:
            value = f"to_bf16({value})"
        self.line(f"{self.pointer(node)}[{at.text()}] = {value};")

    def know(self, node: Node, at: Index, value: str) -> None:
        """A value of a stored node that is in a variable."""
        self._scopes[-1].values[(id(node), at)] = value

    def fresh(self) -> str:
        """A new variable's name."""
        self._num_variables += 1
        return f"x{self._num_variables}"

    def let(self, type_name: str, code: str) -> str:
        """The name of a variable with this value."""
        for scope in self._scopes:
            if (known := scope.codes.get((type_name, code))) is not None:
                return known
        name = self.fresh()
        self.line(f"{type_name} {name} = {code};")
        self._scopes[-1].codes[(type_name, code)] = name
        return name

    def choose(
        self,
        type_name: str,
        branches: Sequence[tuple[str, Callable[[], str]]],
        last: Callable[[], str],
    ) -> str:
        """A variable with the value of the first branch whose condition holds, else of `last`."""
        if not branches:
            return last()
        name = self.fresh()
        self.line(f"{type_name} {name};")
        word = "if"
        for condition, value in branches:
            with self.scope(f"{word} ({condition})", branch=True):
                self.line(f"{name} = {value()};")
            word = "else if"
        with self.scope("else", branch=True):
            self.line(f"{name} = {last()};")
        return name


class _Scope:
    def __init__(self, variables: frozenset[str], branch: bool = False) -> None:
        self.variables, self.branch = frozenset(variables), branch
        self.lines: list[str] = []
        self.values: dict[tuple[int, Index], str] = {}
        """Variables by node and offset."""
        self.codes: dict[tuple[str, str], str] = {}
        """Variables by type and code."""
