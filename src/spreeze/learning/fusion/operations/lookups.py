"""Elements at places that are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from spreeze.learning.fusion.indices import Index
from spreeze.learning.fusion.lowering import (
    Lowering,
    Unsupported,
    can_be_seen,
    computed,
    handles,
    made_like,
    root,
)
from spreeze.learning.fusion.nodes import Node, Subscript
from spreeze.learning.fusion.places import Lookup, Scatter, in_memory
from spreeze.learning.fusion.record import Operation

WHOLE = (torch.int64, torch.int32)
SHARED = 64
"""An index that is used for so many elements is computed once."""


@handles("index.Tensor")
def _index(low: Lowering, op: Operation) -> Node:
    indices = op.args[1]
    if any(index is None or index.dtype not in WHOLE for index in indices):
        raise Unsupported
    nodes = [low.node(index) for index in indices]
    num, rank = len(nodes), max(index.dim() for index in indices)

    def place(subscript: Subscript) -> tuple[Subscript, Subscript]:
        return subscript[:rank], (*(Index(),) * num, *subscript[rank:])

    found = _looked_up(low, op, nodes, tuple(range(num)), place)
    if num == 1:
        found.stored = True  # rows of the replay are far apart: read them once
    for index in nodes:
        if index.size * SHARED <= found.size:
            root(index).stored = True
    return found


def _looked_up(
    low: Lowering, op: Operation, indices: Sequence[Node], dims: tuple[int, ...], place: Any
) -> Node:
    source = low.node(op.args[0])
    if not can_be_seen(source):
        source.stored = True
    base, seen = in_memory(source)
    base.stored = True
    return made_like(op.result, Lookup, (base, *indices), seen=seen, dims=dims, place=place)  # type: ignore[no-any-return]


@handles("gather.default")
def _gather(low: Lowering, op: Operation) -> Node:
    dim, index = op.args[1] % op.args[0].dim(), low.node(op.args[2])

    def place(subscript: Subscript) -> tuple[Subscript, Subscript]:
        return subscript, tuple(Index() if i == dim else s for i, s in enumerate(subscript))

    return _looked_up(low, op, [index], (dim,), place)


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
