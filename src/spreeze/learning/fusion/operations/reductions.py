"""Sums, extremes, and what is made of them: products, softmax, normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from spreeze.learning.fusion.lowering import (
    FLOATS,
    Lowering,
    Unsupported,
    handles,
    kind_of,
    permuted,
)
from spreeze.learning.fusion.nodes import C_TYPES, Node, Pointwise, Reduction
from spreeze.learning.fusion.operations.views import reshaped, selected
from spreeze.learning.fusion.record import Operation
from spreeze.learning.fusion.source import COMBINE

FEW = 4
"""Reductions of at most this many elements are written out."""


def reduced(source: Node, dims: Sequence[int], kind: str, dtype: torch.dtype) -> Node:
    """A reduction without the reduced dimensions."""
    rank = len(source.shape)
    dims = sorted(dim % rank for dim in dims) if dims else list(range(rank))
    shape = tuple(source.shape[dim] for dim in range(rank) if dim not in dims)
    if source.dtype not in C_TYPES or dtype not in C_TYPES or dtype == torch.bool:
        raise Unsupported
    if _count(source, dims) <= FEW:
        return _spelled_out(source, dims, kind, dtype)
    return Reduction(shape, dtype, (source,), dims=tuple(dims), kind=kind)


def _spelled_out(source: Node, dims: Sequence[int], kind: str, dtype: torch.dtype) -> Node:
    """A reduction of a few elements as one expression, which other kernels can take in."""
    parts = [source]
    for dim in sorted(dims, reverse=True):
        parts = [selected(part, dim, at, None) for part in parts for at in range(part.shape[dim])]
    total = f"({C_TYPES[dtype]})({{0}})"
    for i in range(1, len(parts)):
        total = COMBINE[kind].format(total, f"({C_TYPES[dtype]})({{{i}}})")
    return pointwise(dtype, parts[0].shape, total, *parts)


def pointwise(dtype: torch.dtype, shape: Sequence[int], template: str, *sources: Node) -> Pointwise:
    """A function of elements; see `Pointwise`."""
    return Pointwise(tuple(shape), dtype, sources, template=template)


def _mean(source: Node, dims: Sequence[int]) -> Node:
    total = reduced(source, dims, "sum", _wide(source.dtype))
    return pointwise(total.dtype, total.shape, f"{{0}} / {_count(source, dims)}", total)


def _count(source: Node, dims: Sequence[int]) -> int:
    """How many elements make one."""
    return math.prod(source.shape[dim] for dim in dims) if dims else source.size


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Type of intermediate results."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


@handles(
    "sum.default",
    "sum.dim_IntList",
    "mean.default",
    "mean.dim",
    "amax.default",
    "amin.default",
    "max.default",
    "min.default",
)
def _reduce(low: Lowering, op: Operation) -> Node:
    name = kind_of(op)
    tensor = op.args[0]
    dims = op.args[1] if len(op.args) > 1 else op.options.get("dim", [])
    source, result = low.node(tensor), op.result
    if tensor.numel() == 0 or tensor.dim() == 0:
        raise Unsupported
    kind = {"amax": "max", "amin": "min"}.get(name, name)
    if (
        kind in ("sum", "mean")
        and source.dtype in (torch.bool, torch.int32)
        and result.dtype != torch.int64
    ):
        raise Unsupported
    if kind == "mean":
        made = _mean(source, dims or [])
        if made.dtype != result.dtype:
            made = pointwise(result.dtype, made.shape, "{0}", made)
    else:
        made = reduced(source, dims or [], kind, result.dtype)
    return made if made.shape == tuple(result.shape) else reshaped(made, result.shape)


@handles("var.correction")
def _var(low: Lowering, op: Operation) -> Node:
    source = low.node(op.args[0])
    dims = (op.args[1] if len(op.args) > 1 else None) or list(range(len(source.shape)))
    correction = op.options.get("correction")
    if source.dtype != torch.float32:
        raise Unsupported
    off = _centred(source, dims)
    total = reduced(pointwise(off.dtype, off.shape, "{0} * {0}", off), dims, "sum", off.dtype)
    by = _count(source, dims) - (1 if correction is None else correction)
    made: Node = pointwise(total.dtype, total.shape, f"{{0}} / {by}", total)
    shape = tuple(op.result.shape)
    return made if made.shape == shape else reshaped(made, shape)


def _centred(source: Node, dims: Sequence[int]) -> Node:
    """The source without its mean over some dimensions."""
    kept = _kept_dims(_mean(source, dims), source.shape, dims)
    return pointwise(_wide(source.dtype), source.shape, "{0} - {1}", source, kept)


def _kept_dims(node: Node, shape: Sequence[int], dims: Sequence[int]) -> Node:
    """A reduced tensor with its dimensions of size 1 back."""
    gone = {dim % len(shape) for dim in dims}
    return reshaped(node, [1 if dim in gone else size for dim, size in enumerate(shape)])


def _row_sum(source: Node, kind: str = "sum") -> Node:
    """Over the last dimension, which is kept."""
    last = [len(source.shape) - 1]
    return _kept_dims(reduced(source, last, kind, _wide(source.dtype)), source.shape, last)


@handles("_softmax.default", "_log_softmax.default")
def _softmax(low: Lowering, op: Operation) -> Node:
    source, dim, half = low.node(op.args[0]), op.args[1], op.args[2]
    if half or dim % len(source.shape) != len(source.shape) - 1 or source.dtype not in FLOATS:
        raise Unsupported
    wide, shape = _wide(source.dtype), source.shape
    off = pointwise(wide, shape, "{0} - {1}", source, _row_sum(source, "max"))
    power = pointwise(wide, shape, "exp({0})", off)
    template, first = (
        ("{0} / {1}", power) if op.name == "aten._softmax.default" else ("{0} - log({1})", off)
    )
    return pointwise(op.result.dtype, shape, template, first, _row_sum(power))


@handles("_softmax_backward_data.default", "_log_softmax_backward_data.default")
def _softmax_backward(low: Lowering, op: Operation) -> Node:
    grad, out, dim = low.node(op.args[0]), low.node(op.args[1]), op.args[2]
    shape = grad.shape
    if dim % len(shape) != len(shape) - 1 or grad.dtype not in FLOATS:
        raise Unsupported
    if "log" in op.name:
        return pointwise(op.result.dtype, shape, "{0} - exp({1}) * {2}", grad, out, _row_sum(grad))
    weighted = pointwise(_wide(grad.dtype), shape, "{0} * {1}", grad, out)
    return pointwise(op.result.dtype, shape, "{1} * ({0} - {2})", grad, out, _row_sum(weighted))


@handles("native_layer_norm.default")
def _layer_norm(low: Lowering, op: Operation) -> list[Node]:
    tensor, over, weight, bias, eps = op.args
    source = low.node(tensor)
    if weight is not None or bias is not None or len(over) != 1 or source.dtype not in FLOATS:
        raise Unsupported
    dims = [len(source.shape) - 1]
    mean = _kept_dims(_mean(source, dims), source.shape, dims)
    off = pointwise(_wide(source.dtype), source.shape, "{0} - {1}", source, mean)
    spread = _mean(pointwise(off.dtype, off.shape, "{0} * {0}", off), dims)
    rstd = pointwise(
        spread.dtype, spread.shape, f"1 / sqrt({{0}} + ({spread.c_type}){eps!r})", spread
    )
    rstd_kept = _kept_dims(rstd, source.shape, dims)
    out = pointwise(source.dtype, source.shape, "{0} * {1}", off, rstd_kept)
    results = [out, mean, rstd_kept]
    if any(node.dtype != tensor.dtype for node, tensor in zip(results, op.result, strict=True)):
        raise Unsupported
    return results


@handles("native_layer_norm_backward.default")
def _layer_norm_backward(low: Lowering, op: Operation) -> list[Node | None]:
    grad_tensor, tensor, over, mean_tensor, rstd_tensor, weight, bias, mask = op.args
    if (
        weight is not None
        or bias is not None
        or list(mask) != [True, False, False]
        or len(over) != 1
    ):
        raise Unsupported
    grad, x, mean, rstd = map(low.node, (grad_tensor, tensor, mean_tensor, rstd_tensor))
    wide, shape, size = _wide(x.dtype), x.shape, x.shape[-1]
    unit = pointwise(wide, shape, "({0} - {1}) * {2}", x, mean, rstd)
    by_unit = _row_sum(pointwise(wide, shape, "{0} * {1}", grad, unit))
    template = f"{{3}} * ({{0}} - ({{1}} + {{4}} * {{2}}) / {size})"
    return [
        pointwise(op.result[0].dtype, shape, template, grad, _row_sum(grad), by_unit, rstd, unit),
        None,
        None,
    ]


@handles("mm.default", "bmm.default")
def _thin_product(low: Lowering, op: Operation) -> Node:
    a, b = map(low.node, op.args)
    inner = a.shape[-1]
    columns, rank = b.shape[-1], len(a.shape)
    if op.result.dtype not in (torch.float32, torch.bfloat16) or (inner > 1 and columns > 1):
        raise Unsupported
    if inner == 1:
        return pointwise(op.result.dtype, op.result.shape, "{0} * {1}", a, b)
    order = (*range(rank - 2), rank - 1, rank - 2)
    weights = permuted(b, order)  # [..., 1, inner]
    product = pointwise(torch.float32, a.shape, "{0} * {1}", a, weights)
    made: Node = reduced(product, [rank - 1], "sum", torch.float32)
    if made.dtype != op.result.dtype:
        made = pointwise(op.result.dtype, made.shape, "{0}", made)
    return reshaped(made, op.result.shape)
