"""What an update computes, as expressions over single elements of tensors.

A node is a tensor. `element` writes the code for one of its elements. A node that is *stored* has a place in
memory; the code of others is repeated wherever they are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from spreeze.learning.fusion.indices import (
    Index,
    Shape,
    contiguous_strides,
    flatten,
    unflatten,
)

Subscript = tuple[Index, ...]
C_TYPES = {
    torch.float32: "float",
    torch.bfloat16: "float",
    torch.float64: "double",
    torch.int64: "long long",
    torch.int32: "int",
    torch.bool: "bool",
    torch.uint8: "unsigned char",
}
"""Types of values in kernels; bfloat16 is computed in float32."""


class Writer(Protocol):
    """Writes the body of a kernel."""

    def read(self, node: Node, subscript: Subscript) -> str:
        """The value of an element, from memory or computed here."""

    def let(self, type_name: str, code: str) -> str:
        """The name of a new variable with this value."""

    def choose(
        self,
        type_name: str,
        branches: Sequence[tuple[str, Callable[[], str]]],
        last: Callable[[], str],
    ) -> str:
        """A variable with the value of the first branch whose condition holds, else of `last`."""

    def read_at(self, node: Node, offset: str) -> str:
        """An element of a stored node at a computed offset."""


@dataclass(eq=False)
class Node:
    """A tensor of the update."""

    shape: Shape
    dtype: torch.dtype
    sources: tuple[Node, ...] = ()
    stored: bool = False
    num_readers: int = field(default=0, init=False)

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)

    @property
    def c_type(self) -> str:
        """The type of its elements in a kernel."""
        return C_TYPES[self.dtype]

    def offset(self, subscript: Subscript) -> Index:
        """Where an element is in memory."""
        return flatten(subscript, contiguous_strides(self.shape))

    def element(self, write: Writer, subscript: Subscript) -> str:
        """Code for the value of one element."""
        raise TypeError(f"{type(self).__name__} is only read from memory")


@dataclass(eq=False)
class Input(Node):
    """An input of the update, or a constant tensor."""

    strides: Shape = ()
    number: int = -1
    """Which input it is."""

    def offset(self, subscript: Subscript) -> Index:
        """As the caller's tensor lies in memory."""
        return flatten(subscript, self.strides)


@dataclass(eq=False)
class Pointwise(Node):
    """A function of the elements of its sources at the same place; `{0}` is the first source."""

    template: str = ""

    def element(self, write: Writer, subscript: Subscript) -> str:
        """The template with the values of all sources."""
        values = [write.read(source, broadcast(source, subscript)) for source in self.sources]
        return write.let(self.c_type, self.template.format(*values))


def broadcast(source: Node, subscript: Subscript) -> Subscript:
    """The place in a source whose dimensions of size 1 stand for all places."""
    kept = subscript[len(subscript) - len(source.shape) :]
    return tuple(i if size > 1 else Index() for i, size in zip(kept, source.shape, strict=True))


@dataclass(eq=False)
class Counting(Node):
    """A function of the place alone, such as `arange`; `{0}` is the place."""

    template: str = ""

    def element(self, write: Writer, subscript: Subscript) -> str:
        """The template with the place."""
        place = f"(long long)({self.offset(subscript).text()})"
        return write.let(self.c_type, self.template.format(place))


@dataclass(eq=False)
class View(Node):
    """The elements of another tensor at other places."""

    place: Callable[[Subscript], Subscript] = tuple
    """The place in the source."""
    alias: Callable[[Tensor], Tensor] | None = None
    """The same view of a tensor; None if there is none."""

    def element(self, write: Writer, subscript: Subscript) -> str:
        """The element of the source."""
        return write.read(self.sources[0], self.place(subscript))


@dataclass(eq=False)
class Bytes(Node):
    """The bytes of the numbers of another tensor, which have four each."""

    def element(self, write: Writer, subscript: Subscript) -> str:
        """One byte of the number that has it."""
        number, byte = subscript[-1].divide(4)
        value = write.read(self.sources[0], (*subscript[:-1], number))
        return write.let(self.c_type, f"float_to_bits({value}) >> 8 * ({byte.text()}) & 255u")


@dataclass(eq=False)
class Parts(Node):
    """Tensors next to each other along a dimension: concatenation and padding."""

    dim: int = 0
    starts: tuple[int, ...] = ()
    """Where each part begins; the first begins at 0."""

    def element(self, write: Writer, subscript: Subscript) -> str:
        """The element of the part that has it."""
        at = subscript[self.dim]
        ends = (*self.starts[1:], self.shape[self.dim])

        def read(part: int) -> str:
            inside = (*subscript[: self.dim], at + -self.starts[part], *subscript[self.dim + 1 :])
            return write.read(self.sources[part], broadcast(self.sources[part], inside))

        able = [
            part
            for part, (start, end) in enumerate(zip(self.starts, ends, strict=True))
            if at.smallest < end and at.largest >= start
        ]
        branches: list[tuple[str, Callable[[], str]]] = []
        for part in able[:-1]:
            condition = f"{write.let('unsigned', at.text())} < {ends[part]}u"
            branches.append((condition, partial(read, part)))
        return write.choose(self.c_type, branches, lambda: read(able[-1]))


@dataclass(eq=False)
class Reduction(Node):
    """A sum, largest or smallest element over some dimensions."""

    dims: tuple[int, ...] = ()
    kind: str = "sum"

    def __post_init__(self) -> None:
        """Reductions are always stored."""
        self.stored = True

    @property
    def count(self) -> int:
        """How many elements make one."""
        return math.prod(self.sources[0].shape[dim] for dim in self.dims)

    @property
    def by_row(self) -> bool:
        """Whether the elements that make one lie next to each other."""
        rank = len(self.sources[0].shape)
        return self.dims == tuple(range(rank - len(self.dims), rank))

    def input(self, write: Writer, outer: Index, inner: Index) -> str:
        """The element number `inner` of those that make the result number `outer`."""
        source = self.sources[0]
        shape = tuple(source.shape[dim] for dim in self.dims)
        kept = [dim for dim in range(len(source.shape)) if dim not in self.dims]
        within = dict(zip(self.dims, unflatten(inner, shape), strict=True))
        around = unflatten(outer, tuple(source.shape[dim] for dim in kept))
        place = within | dict(zip(kept, around, strict=True))
        return write.read(source, tuple(place[dim] for dim in range(len(source.shape))))


@dataclass(eq=False)
class Call(Node):
    """The first result of an operation of the library."""

    function: Callable[..., Any] = torch.mm
    arguments: tuple[Any, ...] = ()
    """As in the recording, with nodes in place of tensors."""
    options: dict[str, Any] = field(default_factory=dict)
    results: list[Call | Result | None] = field(default_factory=list)
    """Its results; None for one that is no tensor or not needed."""
    order: tuple[int, ...] = ()
    """The dimensions of the library's tensor as they lie in memory, outermost first."""

    def __post_init__(self) -> None:
        """The library writes to memory."""
        self.stored = True


@dataclass(eq=False)
class Result(Node):
    """Another result of a call."""

    number: int = 0
    order: tuple[int, ...] = ()
    """As of `Call`."""

    def __post_init__(self) -> None:
        """The library writes to memory."""
        self.stored = True


@dataclass(eq=False)
class Scratch(Node):
    """Memory in which the threads of a kernel meet."""

    kept: bool = False
    """Whether nothing else uses the memory: it is 0 before the first call, and after every call."""
