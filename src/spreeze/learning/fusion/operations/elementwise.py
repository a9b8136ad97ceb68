"""Functions of single elements."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spreeze.learning.fusion.lowering import (
    FLOATS,
    HANDLERS,
    Lowering,
    Unsupported,
    computed,
    handles,
    kind_of,
    literal,
    made_like,
)
from spreeze.learning.fusion.nodes import C_TYPES, Counting, Node
from spreeze.learning.fusion.record import Operation

SAME_TYPE = {
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "maximum": "largest({0}, {1})",
    "minimum": "smallest({0}, {1})",
    "neg": "-{0}",
    "abs": "fabs({0})",
    "exp": "exp({0})",
    "log": "log({0})",
    "log1p": "log1p({0})",
    "expm1": "expm1({0})",
    "sqrt": "sqrt({0})",
    "rsqrt": "1 / sqrt({0})",
    "reciprocal": "1 / {0}",
    "square": "{0} * {0}",
    "tanh": "tanh({0})",
    "sin": "sin({0})",
    "cos": "cos({0})",
    "floor": "floor({0})",
    "ceil": "ceil({0})",
    "sigmoid": "1 / (1 + exp(-{0}))",
    "relu": "{0} <= 0 ? 0 : {0}",
    "silu": "{0} / (1 + exp(-{0}))",
    "sign": "{0} > 0 ? 1 : {0} < 0 ? -1 : {0}",
    "sgn": "{0} > 0 ? 1 : {0} < 0 ? -1 : {0}",
    "tanh_backward": "{0} * (1 - {1} * {1})",
    "sigmoid_backward": "{0} * (1 - {1}) * {1}",
    "silu_backward": "{0} * (1 / (1 + exp(-{1}))) * (1 + {1} * (1 - 1 / (1 + exp(-{1}))))",
    "threshold_backward": "{1} <= {2} ? 0 : {0}",
    "softplus": "{0} * {1} > {2} ? {0} : log1p(exp({0} * {1})) / {1}",
    "softplus_backward": "{1} * {2} > {3} ? {0} : {0} * exp({1} * {2}) / (exp({1} * {2}) + 1)",
    "lerp": "{2} < 0.5f ? {0} + {2} * ({1} - {0}) : {1} - ({1} - {0}) * (1 - {2})",
    "clamp_min": "{0} < {1} ? {1} : {0}",
    "clamp_max": "{0} > {1} ? {1} : {0}",
    "_to_copy": "{0}",
}
"""Operations that are computed in the type of their result."""
MIXED_TYPES = {
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "logical_not": "!{0}",
    "logical_and": "{0} && {1}",
    "logical_or": "{0} || {1}",
    "bitwise_not": "!{0}",
    "bitwise_and": "{0} && {1}",
    "bitwise_or": "{0} || {1}",
    "isnan": "{0} != {0}",
}
"""Operations whose result is true or false."""
DEFAULTS = {"softplus": (1.0, 20.0)}
INTEGERS_TOO = {
    "mul",
    "maximum",
    "minimum",
    "neg",
    "sign",
    "clamp_min",
    "clamp_max",
    "_to_copy",
    "floor",
}


def _same_type(low: Lowering, op: Operation) -> Node:
    name = kind_of(op)
    options = {k: v for k, v in op.options.items() if name != "_to_copy"}
    if options or (op.result.dtype not in FLOATS and name not in INTEGERS_TOO):
        raise Unsupported
    values = (*op.args, *DEFAULTS.get(name, ())[len(op.args) - 1 :])
    if name == "_to_copy" and op.result.dtype == torch.bool:
        return computed(op.result, "{0} != 0", *values, low=low, cast=False)
    return computed(op.result, SAME_TYPE[name], *values, low=low)


def _mixed_types(low: Lowering, op: Operation) -> Node:
    name = kind_of(op)
    of_bool = not name.startswith("bitwise") or all(
        not isinstance(a, Tensor) or a.dtype == torch.bool for a in op.args
    )
    if op.result.dtype != torch.bool or not of_bool:
        raise Unsupported
    # Numbers are compared in the type of the tensor, as the library does.
    kinds = [a.dtype for a in op.args if isinstance(a, Tensor)]
    values = [float(a) if not isinstance(a, Tensor) and kinds[0] in FLOATS else a for a in op.args]
    template = MIXED_TYPES[name]
    if kinds[0] in (torch.float32, torch.bfloat16):
        template = template.replace("{1}", "(float)({1})")
    return computed(op.result, template, *values, low=low, cast=False)


for _names, _handler in ((SAME_TYPE, _same_type), (MIXED_TYPES, _mixed_types)):
    for _name in _names:
        for _overload in ("default", "Tensor", "Scalar"):
            HANDLERS[f"aten.{_name}.{_overload}"] = _handler


@handles("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Scalar", "rsub.Tensor")
def _sum(low: Lowering, op: Operation) -> Node:
    kind = kind_of(op)
    first, second = op.args[:2]
    factor = op.options.get("alpha", op.args[2] if len(op.args) > 2 else 1)
    if kind == "rsub":
        first, second = second, first
        if factor != 1:
            raise Unsupported
    sign = "+" if kind == "add" else "-"
    if factor == 1:
        return computed(op.result, f"{{0}} {sign} {{1}}", first, second, low=low)
    return computed(op.result, f"{{0}} {sign} {{2}} * {{1}}", first, second, factor, low=low)


@handles("floor_divide.default")
def _quotient(low: Lowering, op: Operation) -> Node:
    return _divided(low, op, "{0} / {1} - ({0} % {1} != 0 && ({0} < 0) != ({1} < 0))")


@handles("remainder.Scalar")
def _remainder(low: Lowering, op: Operation) -> Node:
    return _divided(low, op, "({0} % {1} + {1}) % {1}")


def _divided(low: Lowering, op: Operation, template: str) -> Node:
    """A division of whole numbers, rounded down."""
    value, divisor = op.args
    if op.result.dtype not in (torch.int64, torch.int32) or not isinstance(divisor, int):
        raise Unsupported
    return computed(op.result, template, value, divisor, low=low)


@handles("pow.Tensor_Scalar")
def _power(low: Lowering, op: Operation) -> Node:
    base, exponent = op.args
    if op.result.dtype not in FLOATS:
        raise Unsupported
    known = {2: "{0} * {0}", 3: "{0} * {0} * {0}", 0.5: "sqrt({0})", 1: "{0}", -1: "1 / {0}"}
    if exponent in known:
        return computed(op.result, known[exponent], base, low=low)
    return computed(op.result, "pow({0}, {1})", base, exponent, low=low)


@handles("pow.Scalar", "pow.Tensor_Tensor")
def _general_power(low: Lowering, op: Operation) -> Node:
    if op.result.dtype not in FLOATS:
        raise Unsupported
    return computed(op.result, "pow({0}, {1})", *op.args, low=low)


@handles("clamp.default", "clamp.Tensor")
def _clamp(low: Lowering, op: Operation) -> Node:
    args = [*op.args, None, None]
    value, least, most = args[0], op.options.get("min", args[1]), op.options.get("max", args[2])
    if most is None:
        return computed(op.result, SAME_TYPE["clamp_min"], value, least, low=low)
    if least is None:
        return computed(op.result, SAME_TYPE["clamp_max"], value, most, low=low)
    template = "{0} < {1} ? {1} : {0} > {2} ? {2} : {0}"
    return computed(op.result, template, value, least, most, low=low)


@handles("where.self")
def _where(low: Lowering, op: Operation) -> Node:
    return _choice(low, op, *op.args)


@handles("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(low: Lowering, op: Operation) -> Node:
    value, mask, filling = op.args
    return _choice(low, op, mask, filling, value)


def _choice(low: Lowering, op: Operation, condition: Tensor, yes: Any, no: Any) -> Node:
    """The condition keeps its type; both values get that of the result."""
    chosen = computed(op.result, "{0} ? {1} : {2}", condition, yes, no, low=low, cast=False)
    test, _, rest = chosen.template.partition(" ? ")
    first, _, second = rest.partition(" : ")
    chosen.template = f"{test} ? ({chosen.c_type})({first}) : ({chosen.c_type})({second})"
    return chosen


def _filled(low: Lowering, op: Operation, value: float) -> Node:
    code = f"({C_TYPES.get(op.result.dtype, '')})({literal(value)})"
    return made_like(op.result, Counting, (), template=code)  # type: ignore[no-any-return]


@handles("zeros.default", "zeros_like.default", "new_zeros.default")
def _zeros(low: Lowering, op: Operation) -> Node:
    return _filled(low, op, 0)


@handles("ones.default", "ones_like.default", "new_ones.default")
def _ones(low: Lowering, op: Operation) -> Node:
    return _filled(low, op, 1)


@handles("full.default", "full_like.default", "new_full.default")
def _full(low: Lowering, op: Operation) -> Node:
    return _filled(low, op, op.args[2 if "new_full" in op.name else 1])


@handles("scalar_tensor.default")
def _scalar(low: Lowering, op: Operation) -> Node:
    return _filled(low, op, op.args[0])


@handles("arange.default", "arange.start")
def _arange(low: Lowering, op: Operation) -> Node:
    start = op.args[0] if "start" in op.name else 0
    kind = C_TYPES.get(op.result.dtype, "")
    return made_like(op.result, Counting, (), template=f"({kind})({literal(start)} + {{0}})")  # type: ignore[no-any-return]


@handles("linspace.default")
def _linspace(low: Lowering, op: Operation) -> Node:
    start, end, num = map(float, op.args[:3])
    if op.result.dtype != torch.float32 or num < 2:
        raise Unsupported
    step, half = f"({literal((end - start) / (num - 1))}f)", int(num) // 2
    code = (
        f"{{0}} < {half} ? {start}f + {step} * {{0}} : {end}f - {step} * ({int(num) - 1} - {{0}})"
    )
    return made_like(op.result, Counting, (), template=code)  # type: ignore[no-any-return]
