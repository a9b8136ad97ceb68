"""Each recorded operation as arithmetic on single elements, or as a call of the library."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from spreeze.learning.fusion.nodes import (
    C_TYPES,
    Call,
    Counting,
    Input,
    Node,
    Pointwise,
    Result,
    Subscript,
    View,
)
from spreeze.learning.fusion.record import NotRecordable, Operation, Recording

FLOATS = (torch.float32, torch.bfloat16, torch.float64)
IMAGES = 4
"""Dimensions of a tensor of images: rows of the batch, channels, height, width."""
CONSTANT = 1 << 16
"""Tensors that the update itself makes outside of what is recorded may have this many numbers."""

Handler = Callable[["Lowering", Operation], Any]
HANDLERS: dict[str, Handler] = {}


class Unsupported(Exception):
    """This form of the operation is left to the library."""


class Lowering:
    """The nodes of one recorded update."""

    def __init__(self, recording: Recording) -> None:
        """Lower all operations."""
        self._nodes: dict[int, Node] = {}
        self._known: dict[Any, Any] = {}
        """Results by operation and arguments: what is computed twice is the same nodes."""
        self.constants: list[Tensor] = []
        self._num_inputs = len(recording.inputs)
        self._kept = recording  # ids of its tensors stay unique
        for number, tensor in enumerate(recording.inputs):
            self._nodes[id(tensor)] = _input(tensor, number)
        for operation in recording.operations:
            self._lower(operation)
        self.outputs = [self.node(tensor) for tensor in recording.outputs]

    def node(self, value: Tensor) -> Node:
        """The node of a tensor."""
        if id(value) not in self._nodes:
            self._nodes[id(value)] = self._constant(value)
        return self._nodes[id(value)]

    def _constant(self, value: Tensor) -> Node:
        if value.numel() == 1 and value.dtype in C_TYPES:
            return Counting(tuple(value.shape), value.dtype, template=literal(value.item()))
        if value.numel() > CONSTANT:
            raise NotRecordable("a large tensor that is no input")
        self.constants.append(value)
        return _input(value, self._num_inputs + len(self.constants) - 1)

    def _lower(self, operation: Operation) -> None:
        made, name = None, operation.name
        known = self._key((operation.function, operation.args, operation.options))
        if known in self._known:
            self._name(operation.result, self._known[known])
            return
        if in_place := operation.function._schema.is_mutable:  # type: ignore[attr-defined]
            name = name.replace("_.", ".")
            if not self._kept.is_last_use(operation) or name not in HANDLERS:
                raise NotRecordable(f"{operation.name} changes a tensor in place")
        if (handler := HANDLERS.get(name)) is not None:
            try:
                made = handler(self, operation)
            except Unsupported:
                made = None
        if made is None:
            if in_place:
                raise NotRecordable(f"{operation.name} changes a tensor in place")
            made = self._call(operation)
        if isinstance(made, Pointwise | View) and getattr(made, "alias", None) is None:
            made = _as_in_memory(made, operation.result)
        self._name(operation.result, made)
        self._known[known] = made

    def _key(self, value: Any) -> Any:
        """Equal for values that are the same, with the nodes of tensors in their place."""
        if isinstance(value, Tensor):
            return self.node(value)
        if isinstance(value, dict):
            return tuple((name, self._key(x)) for name, x in value.items())
        if isinstance(value, list | tuple):
            return tuple(map(self._key, value))
        return type(value), value  # 1, 1.0 and True are equal

    def _name(self, result: Any, made: Any) -> None:
        """Remember the nodes of the tensors that an operation returned."""
        many = isinstance(result, tuple | list)
        for tensor, node in zip(result, made, strict=True) if many else [(result, made)]:
            if node is not None:
                assert tuple(tensor.shape) == node.shape, (tensor.shape, node)
                assert tensor.dtype == node.dtype, (tensor.dtype, node)
                self._nodes[id(tensor)] = node

    def _call(self, operation: Operation) -> Any:
        """A call of the library."""
        function: Any = operation.function
        as_nodes = lambda x: self.node(x) if isinstance(x, Tensor) else x  # noqa: E731
        args = tree_map(as_nodes, operation.args)
        options = tree_map(as_nodes, operation.options)
        sources = tuple(x for x in tree_leaves((args, options)) if isinstance(x, Node))
        for source in sources:
            root(source).stored = True
        many = isinstance(operation.result, tuple | list)
        tensors = list(operation.result) if many else [operation.result]
        # Some results are left out, such as the gradient of a convolution by its input.
        first = next((i for i, tensor in enumerate(tensors) if tensor is not None), None)
        if first is None:
            raise NotRecordable(f"{operation.name} has no result")
        orders = [() if tensor is None else order_in_memory(tensor) for tensor in tensors]
        call = Call(
            _shape_in_memory(tensors[first], orders[first]),
            tensors[first].dtype,
            sources,
            function=function,
            arguments=args,
            options=options,
            order=orders[first],
        )
        call.results = [
            None
            if tensor is None
            else call
            if number == first
            else Result(
                _shape_in_memory(tensor, order), tensor.dtype, (call,), number=number, order=order
            )
            for number, (tensor, order) in enumerate(zip(tensors, orders, strict=True))
        ]
        made = [node and _put_back(node, node.order) for node in call.results]
        return made if many else made[0]


def _input(tensor: Tensor, number: int) -> Input:
    if tensor.dtype not in C_TYPES:
        raise NotRecordable(f"numbers of type {tensor.dtype}")
    return Input(
        tuple(tensor.shape),
        tensor.dtype,
        stored=True,
        strides=tuple(tensor.stride()),
        number=number,
    )


def order_in_memory(tensor: Tensor) -> tuple[int, ...]:
    """The dimensions of a tensor as they lie in memory, outermost first.

    It differs from that of its shape where an image's channels are last. Matrices are always taken as they are.
    """
    usual = tuple(range(tensor.dim()))
    strides = tensor.stride()
    order = tuple(sorted(usual, key=lambda dim: -strides[dim]))
    dense = tensor.permute(order).is_contiguous()
    return order if tensor.dim() == IMAGES and dense and not tensor.is_contiguous() else usual


def _shape_in_memory(tensor: Tensor, order: Sequence[int]) -> tuple[int, ...]:
    return tuple(tensor.shape[dim] for dim in order)


def _as_in_memory(node: Node, like: Tensor) -> Node:
    """The same elements, stored as the recorded tensor was if they are stored."""
    order = order_in_memory(like)
    if order == tuple(range(len(order))):
        return node
    turned = permuted(node, order)
    copy = Pointwise(turned.shape, turned.dtype, (turned,), template="{0}")
    return _put_back(copy, order)


def _put_back(node: Node, order: Sequence[int]) -> Node:
    """A tensor that lies in memory in this order of its dimensions, as its shape has them."""
    if list(order) == sorted(order):
        return node
    return permuted(node, sorted(range(len(order)), key=lambda dim: order[dim]))


def permuted(source: Node, order: Sequence[int]) -> View:
    """The tensor with its dimensions in another order."""
    back = {dim: i for i, dim in enumerate(order)}

    def place(subscript: Subscript) -> Subscript:
        return tuple(subscript[back[dim]] for dim in range(len(order)))

    shape = tuple(source.shape[dim] for dim in order)
    alias = lambda tensor: tensor.permute(tuple(order))  # noqa: E731
    return View(shape, source.dtype, (source,), place=place, alias=alias)


def root(node: Node) -> Node:
    """The node whose memory this one can be seen in."""
    while isinstance(node, View) and node.alias is not None:
        node = node.sources[0]
    return node


def can_be_seen(node: Node) -> bool:
    """Whether an element of it is somewhere in the memory of a stored node, or of one that will be stored."""
    return not isinstance(root(node), View)


def literal(value: float | int | bool) -> str:
    """A number as source code. Braces would be places in a template."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value}ll" if abs(value) >= 1 << 31 else str(value)
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return repr(value)


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register how some operations are lowered."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[f"aten.{name}"] = handler
        return handler

    return register


def with_defaults(args: Sequence[Any], *defaults: Any) -> tuple[Any, ...]:
    """All arguments: those that were given, and the rest of the defaults."""
    return (*args, *defaults[len(args) :])


def made_like(result: Tensor, node: type[Node], sources: Sequence[Node], **more: Any) -> Any:
    """A node with the shape and type of a recorded result."""
    if result.dtype not in C_TYPES or any(source.dtype not in C_TYPES for source in sources):
        raise Unsupported
    return node(tuple(result.shape), result.dtype, tuple(sources), **more)


def computed(
    result: Tensor, template: str, *values: Any, low: Lowering, cast: bool = True
) -> Pointwise:
    """A function of elements; values are tensors, nodes or numbers. `cast`: in the type of the result."""
    sources: list[Node] = []
    places: list[str] = []
    floats = result.dtype in FLOATS
    for value in values:
        if isinstance(value, Tensor | Node):
            node = low.node(value) if isinstance(value, Tensor) else value
            place = f"{{{len(sources)}}}"
            sources.append(node)
            places.append(
                f"({C_TYPES.get(result.dtype, '')})({place})"
                if cast and node.dtype != result.dtype
                else place
            )
        elif cast and result.dtype in C_TYPES:
            places.append(
                f"({C_TYPES[result.dtype]})({literal(float(value) if floats else value)})"
            )
        else:
            places.append(literal(value))
    return made_like(result, Pointwise, sources, template=template.format(*places))  # type: ignore[no-any-return]


def kind_of(op: Operation) -> str:
    """The name of the function, whether it works in place or not."""
    return op.name.split(".")[1].removesuffix("_")
