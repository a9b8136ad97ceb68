"""Nodes whose elements are at places in memory that a kernel computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spreeze.learning.fusion.indices import Index, contiguous_strides, flatten
from spreeze.learning.fusion.nodes import Input, Node, Subscript, View, Writer, broadcast


def in_memory(node: Node) -> tuple[Node, Tensor]:
    """The node in whose memory a node is seen, and how: as a tensor without data."""
    base, views = node, []
    while isinstance(base, View) and not base.stored:
        assert base.alias is not None
        views.append(base.alias)
        base = base.sources[0]
    strides = base.strides if isinstance(base, Input) else contiguous_strides(base.shape)
    seen = torch.empty_strided(base.shape, strides, dtype=base.dtype, device="meta")
    for view in reversed(views):
        seen = view(seen)
    return base, seen


def _same_place(subscript: Subscript) -> tuple[Subscript, Subscript]:
    return subscript, subscript


@dataclass(eq=False)
class Lookup(Node):
    """Elements of a stored tensor whose places along some dimensions are read from other tensors.

    Its sources are the node whose memory has them, and the indices along each of `dims`.
    """

    seen: Tensor = field(default_factory=lambda: torch.empty(0, device="meta"))
    """How they lie in that memory, as a tensor without data."""
    dims: tuple[int, ...] = (0,)
    place: Callable[[Subscript], tuple[Subscript, Subscript]] = _same_place
    """The place in the tensors of indices, and in `seen`, where those dimensions are 0."""

    def element(self, write: Writer, subscript: Subscript) -> str:
        """The element that is looked up; an index that is out of range is moved to the nearest place."""
        source, *indices = self.sources
        in_indices, in_source = self.place(subscript)
        shape, strides = self.seen.shape, self.seen.stride()
        rest = flatten(in_source, strides) + int(self.seen.storage_offset())
        parts = [rest.text()]
        for dim, index in zip(self.dims, indices, strict=True):
            at = write.read(index, broadcast(index, in_indices))
            at = write.let("long long", f"wrap({at}, {shape[dim]}ll)")
            parts.append(f"{at} * {strides[dim]}ll")
        return write.read_at(source, " + ".join(parts))


@dataclass(eq=False)
class Scatter(Node):
    """A stored tensor to which elements are added at places that are read from another tensor.

    Its sources are the tensor before, the indices and what is added. It shares its memory with the first.
    """

    dim: int = 0

    def __post_init__(self) -> None:
        """It changes memory."""
        self.stored = True

    def add(self, write: Writer, subscript: Subscript) -> tuple[str, str]:
        """Where one element is added, and its value."""
        _, indices, source = self.sources
        at, value = write.read(indices, subscript), write.read(source, subscript)
        rest = tuple(Index() if dim == self.dim else i for dim, i in enumerate(subscript))
        stride = contiguous_strides(self.shape)[self.dim]
        at = write.let("long long", f"wrap({at}, {self.shape[self.dim]}ll)")
        return f"{at} * {stride}ll + ({self.offset(rest).text()})", value
