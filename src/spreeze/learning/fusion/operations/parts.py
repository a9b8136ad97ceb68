"""Several tensors as one: concatenation and padding."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from spreeze.learning.fusion.lowering import (
    Lowering,
    Unsupported,
    handles,
    literal,
    made_like,
    with_defaults,
)
from spreeze.learning.fusion.nodes import C_TYPES, Counting, Node, Parts
from spreeze.learning.fusion.operations.views import Span, bounds, reshaped, sliced, viewed
from spreeze.learning.fusion.record import Operation


def _parts(result: Tensor, sources: Sequence[Node], dim: int) -> Node:
    sources = [source for source in sources if source.shape[dim]]
    starts = [0]
    for source in sources[:-1]:
        starts.append(starts[-1] + source.shape[dim])
    if any(source.dtype != result.dtype for source in sources):
        raise Unsupported
    return made_like(result, Parts, sources, dim=dim, starts=tuple(starts))  # type: ignore[no-any-return]


@handles("cat.default")
def _cat(low: Lowering, op: Operation) -> Node:
    dim = op.args[1] if len(op.args) > 1 else 0
    tensors = [t for t in op.args[0] if t.dim() == op.result.dim()]
    return _parts(op.result, [low.node(t) for t in tensors], dim % op.result.dim())


@handles("stack.default")
def _stack(low: Lowering, op: Operation) -> Node:
    dim = (op.args[1] if len(op.args) > 1 else 0) % op.result.dim()
    parts = []
    for tensor in op.args[0]:
        shape = list(tensor.shape)
        shape.insert(dim, 1)
        parts.append(reshaped(low.node(tensor), shape))
    return _parts(op.result, parts, dim)


def _surrounded(node: Node, dim: int, before: int, after: int, value: float) -> Node:
    """The tensor with `value` before and after it along a dimension."""

    def filling(size: int) -> list[Node]:
        shape = (*node.shape[:dim], size, *node.shape[dim + 1 :])
        code = f"({node.c_type})({literal(value)})"
        return [Counting(shape, node.dtype, template=code)] if size else []

    sources = [*filling(before), node, *filling(after)]
    sources = [source for source in sources if source.shape[dim]]
    starts = [0]
    for source in sources[:-1]:
        starts.append(starts[-1] + source.shape[dim])
    shape = (*node.shape[:dim], before + node.shape[dim] + after, *node.shape[dim + 1 :])
    return Parts(shape, node.dtype, tuple(sources), dim=dim, starts=tuple(starts))


@handles("constant_pad_nd.default")
def _pad(low: Lowering, op: Operation) -> Node:
    tensor, pads, value = with_defaults(op.args, None, None, 0)
    node = low.node(tensor)
    if node.dtype not in C_TYPES:
        raise Unsupported
    for i in range(len(pads) // 2):
        before, after = pads[2 * i : 2 * i + 2]
        dim = len(node.shape) - 1 - i
        if before < 0 or after < 0:
            if before > 0 or after > 0:
                raise Unsupported
            node = sliced(node, dim, Span(-before, node.shape[dim] + before + after), None)
        elif before or after:
            node = _surrounded(node, dim, before, after, value)
    return node if node is not low.node(tensor) else viewed(node, node.shape, lambda s: s, None)


@handles("slice_backward.default")
def _slice_backward(low: Lowering, op: Operation) -> Node:
    grad, shape, dim, start, end, step = op.args
    if step != 1:
        raise Unsupported
    node = low.node(grad)
    dim %= len(shape)
    first, _ = bounds(shape[dim], start, end)
    return _surrounded(node, dim, first, shape[dim] - first - node.shape[dim], 0)


@handles("select_backward.default")
def _select_backward(low: Lowering, op: Operation) -> Node:
    grad, shape, dim, at = op.args
    node = low.node(grad)
    dim, at = dim % len(shape), at % shape[dim]
    one = [*node.shape[:dim], 1, *node.shape[dim:]]
    return _surrounded(reshaped(node, one), dim, at, shape[dim] - at - 1, 0)
