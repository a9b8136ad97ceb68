"""Views of a tensor: the same elements in other places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spreeze.learning.fusion.indices import Index, contiguous_strides, flatten, unflatten
from spreeze.learning.fusion.lowering import (
    Lowering,
    Unsupported,
    handles,
    made_like,
    permuted,
    with_defaults,
)
from spreeze.learning.fusion.nodes import C_TYPES, Bytes, Node, Subscript, View
from spreeze.learning.fusion.record import Operation


def viewed(
    source: Node,
    shape: Sequence[int],
    place: Callable[[Subscript], Subscript],
    op: Operation | None,
    result: Any = None,
) -> View:
    """A view. `op` makes the same one of a tensor (its number `result`, if it makes several); None: none can."""

    def alias(tensor: Tensor) -> Tensor:
        assert op is not None
        made: Any = op.function(tensor, *op.args[1:], **op.options)
        return made if result is None else made[result]  # type: ignore[no-any-return]

    if source.dtype not in C_TYPES:
        raise Unsupported
    return View(
        tuple(shape), source.dtype, (source,), place=place, alias=None if op is None else alias
    )


def reshaped(source: Node, shape: Sequence[int], op: Operation | None = None) -> Node:
    """The same elements in row-major order, in another shape."""
    to, old = tuple(shape), source.shape

    def place(subscript: Subscript) -> Subscript:
        return unflatten(flatten(subscript, contiguous_strides(to)), old)

    return viewed(source, to, place, op)


@handles(
    "view.default",
    "_unsafe_view.default",
    "reshape.default",
    "unsqueeze.default",
    "squeeze.dim",
    "squeeze.dims",
    "squeeze.default",
)
def _reshape(low: Lowering, op: Operation) -> Node:
    return reshaped(low.node(op.args[0]), op.result.shape, op)


@handles(
    "detach.default", "alias.default", "lift_fresh.default", "clone.default", "contiguous.default"
)
def _same(low: Lowering, op: Operation) -> Node:
    source = low.node(op.args[0])
    # A copy may lie in memory in another order.
    return viewed(source, source.shape, lambda s: s, None) if "clone" in op.name else source


@handles("view.dtype")
def _bytes(low: Lowering, op: Operation) -> Node:
    source = low.node(op.args[0])
    if (source.dtype, op.args[1]) != (torch.float32, torch.uint8):
        raise Unsupported
    return made_like(op.result, Bytes, (source,))  # type: ignore[no-any-return]


@handles("expand.default")
def _expand(low: Lowering, op: Operation) -> Node:
    source = low.node(op.args[0])
    added = op.result.dim() - len(source.shape)

    def place(subscript: Subscript) -> Subscript:
        return tuple(
            i if size > 1 else Index()
            for i, size in zip(subscript[added:], source.shape, strict=True)
        )

    return viewed(source, op.result.shape, place, op)


@handles("t.default", "transpose.int", "permute.default")
def _permute(low: Lowering, op: Operation) -> Node:
    source = low.node(op.args[0])
    order = list(range(len(source.shape)))
    if "permute" in op.name:
        order = [dim % len(order) for dim in op.args[1]]
    elif len(order) > 1:
        first, second = op.args[1:] if "transpose" in op.name else (0, 1)
        order[first], order[second] = order[second], order[first]
    if source.dtype not in C_TYPES:
        raise Unsupported
    return permuted(source, order)


class Span(NamedTuple):
    """Some places along a dimension."""

    start: int
    size: int
    step: int = 1


def sliced(source: Node, dim: int, span: Span, op: Operation | None, result: Any = None) -> View:
    """A part of a tensor along a dimension."""
    shape = (*source.shape[:dim], span.size, *source.shape[dim + 1 :])

    def place(subscript: Subscript) -> Subscript:
        at = subscript[dim] * span.step + span.start
        return (*subscript[:dim], at, *subscript[dim + 1 :])

    return viewed(source, shape, place, op, result)


def bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """As Python understands them."""
    first, last, _ = slice(start, end).indices(size)
    return first, max(first, last)


@handles("slice.Tensor")
def _slice(low: Lowering, op: Operation) -> Node:
    source, dim, start, end, step = (*with_defaults(op.args, None, 0, None, None, 1),)
    node = low.node(source)
    dim %= len(node.shape)
    first, _ = bounds(node.shape[dim], start, end)
    return sliced(node, dim, Span(first, op.result.shape[dim], step), op)


@handles("select.int")
def _select(low: Lowering, op: Operation) -> Node:
    source, dim, at = op.args
    node = low.node(source)
    dim %= len(node.shape)
    return selected(node, dim, at % node.shape[dim], op)


def selected(node: Node, dim: int, at: int, op: Operation | None, result: Any = None) -> Node:
    """The part of a tensor at one place of a dimension, without that dimension."""

    def place(subscript: Subscript) -> Subscript:
        return (*subscript[:dim], Index(constant=at), *subscript[dim:])

    return viewed(node, (*node.shape[:dim], *node.shape[dim + 1 :]), place, op, result)


@handles("split.Tensor", "split_with_sizes.default")
def _split(low: Lowering, op: Operation) -> list[Node]:
    node = low.node(op.args[0])
    dim = (op.args[2] if len(op.args) > 2 else op.options.get("dim", 0)) % len(node.shape)
    parts, start = [], 0
    for number, tensor in enumerate(op.result):
        parts.append(sliced(node, dim, Span(start, tensor.shape[dim]), op, number))
        start += tensor.shape[dim]
    return list(parts)


@handles("unbind.int")
def _unbind(low: Lowering, op: Operation) -> list[Node]:
    node = low.node(op.args[0])
    dim = (op.args[1] if len(op.args) > 1 else 0) % len(node.shape)
    return [selected(node, dim, at, op, at) for at in range(node.shape[dim])]
