"""Elements at places that are computed."""

from __future__ import annotations

import torch

from spreeze.learning.fusion.indices import Index
from spreeze.learning.fusion.lowering import Lowering, Unsupported, computed, handles, made_like
from spreeze.learning.fusion.nodes import Lookup, Node, Scatter, Subscript
from spreeze.learning.fusion.record import Operation


@handles("index.Tensor")
def _index(low: Lowering, op: Operation) -> Node:
    tensor, indices = op.args
    if len(indices) != 1 or indices[0].dtype not in (torch.int64, torch.int32):
        raise Unsupported
    source, index = low.node(tensor), low.node(indices[0])
    _root_stored(source)
    rank = len(index.shape)

    def place(subscript: Subscript) -> tuple[Subscript, Subscript]:
        return subscript[:rank], (Index(), *subscript[rank:])

    found = made_like(op.result, Lookup, (source, index), dim=0, place=place)
    found.stored = True  # rows of the replay are far apart: read them once
    return found  # type: ignore[no-any-return]


def _root_stored(source: Node) -> None:
    source.stored = True


@handles("gather.default")
def _gather(low: Lowering, op: Operation) -> Node:
    source, dim, index = low.node(op.args[0]), op.args[1], low.node(op.args[2])
    dim %= len(source.shape)
    _root_stored(source)

    def place(subscript: Subscript) -> tuple[Subscript, Subscript]:
        return subscript, tuple(Index() if i == dim else s for i, s in enumerate(subscript))

    return made_like(op.result, Lookup, (source, index), dim=dim, place=place)  # type: ignore[no-any-return]


@handles("scatter_add.default")
def _scatter_add(low: Lowering, op: Operation) -> Node:
    base, dim, index, source = op.args
    if op.result.dtype != torch.float32 or index.shape != source.shape:
        raise Unsupported
    copy = computed(op.result, "{0}", base, low=low)
    copy.stored = True
    return made_like(  # type: ignore[no-any-return]
        op.result, Scatter, (copy, low.node(index), low.node(source)), dim=dim % op.result.dim()
    )
