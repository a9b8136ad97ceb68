"""Which torch modules are dense layers that numpy can run, and what they are then.

What counts is what a module's `forward` calls, not how it is written. It is watched on a few observations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from spreeze.networks.layers import Style
from spreeze.spec import Activation

ACTIVATIONS = get_args(Activation)
ADDITIONS = ("add", "__add__", "__radd__")
SIZES = ("__get__", "size", "dim")
"""Calls that may also ask for the shape of a tensor, on which no layer depends."""


@dataclass(frozen=True)
class Dense:
    """A module as dense layers."""

    sizes: tuple[int, ...]
    """The input size of each layer, then the output size of the last one."""
    style: Style
    vector: Tensor
    """Its parameters, as `mlp` takes them."""


class NotDense(Exception):
    """Why numpy cannot run a module."""


def as_dense(module: nn.Module, obs: Tensor) -> Dense:
    """The module as dense layers; NotDense if it is anything else."""
    watch = _Watch(obs)
    with torch.no_grad(), watch:
        out = module(obs)
    layers = watch.layers
    if not layers or layers[-1].activation or layers[-1].normalised:
        raise NotDense("its last layer is not a Linear")
    if out is not watch.result:
        raise NotDense("it returns something else than the output of its last layer")
    own = {id(part) for layer in layers for part in (layer.weight, layer.bias)}
    if unused := [name for name, value in module.named_parameters() if id(value) not in own]:
        raise NotDense(f"{unused[0]} is not the weight or bias of a Linear")
    if len(own) < 2 * len(layers):
        raise NotDense("it uses a layer twice")
    sizes = (obs.shape[1], *(len(layer.weight) for layer in layers))
    parts = [part for x in layers for part in (x.weight.T.flatten(), x.bias)]
    return Dense(sizes, _style(layers[:-1]), torch.cat(parts).detach())


@dataclass
class _Layer:
    weight: Tensor
    bias: Tensor
    given: Tensor
    """Its input."""
    normalised: bool = False
    activation: Activation | None = None
    residual: bool = False

    @property
    def is_square(self) -> bool:
        return self.weight.shape[0] == self.weight.shape[1]


class _Watch(TorchFunctionMode):
    """Sees each function of torch that is called in this thread, and takes it as part of a layer."""

    def __init__(self, obs: Tensor) -> None:
        super().__init__()
        self.layers: list[_Layer] = []
        self.result = obs
        """The output of what was called last."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options, name = kwargs or {}, func.__name__
        out = func(*args, **options)
        if not isinstance(out, Tensor) and name in SIZES:
            return out
        given = [x for x in args if isinstance(x, Tensor)]
        if not any(x is self.result for x in given):
            raise NotDense(
                f"numpy runs one layer after the other; {name} takes something else than the last output"
            )
        if name == "linear":
            self._linear(*args, **options)
        elif not self.layers or self.layers[-1].residual or not self._add(name, args, options):
            raise NotDense(f"numpy cannot run {name}")
        self.result = out
        return out

    def _linear(self, given: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
        if bias is None:
            raise NotDense("it has a Linear without bias")
        if self.layers and self.layers[-1].activation is None:
            raise NotDense("it has a Linear that follows another one without activation")
        self.layers.append(_Layer(weight, bias, given))

    def _add(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Add what a function does to the newest layer; False if a layer cannot have it there."""
        layer = self.layers[-1]
        if name in ADDITIONS:
            plain = any(x is layer.given for x in args) and len(args) == 2 and not options
            later = len(self.layers) > 1 and layer.is_square and layer.activation is not None
            layer.residual = plain and later
            return layer.residual
        if layer.activation is not None:
            return False
        if name == "layer_norm":
            _check_layer_norm(len(layer.weight), *args[1:], **options)
            layer.normalised, again = True, layer.normalised
            return not again
        if name == "gelu" and options.get("approximate") != "tanh":
            raise NotDense('numpy runs GELU with approximate="tanh"')
        if name == "elu" and (options.get("alpha", 1.0), *args[1:2])[-1] != 1:
            raise NotDense("numpy runs ELU with alpha=1")
        layer.activation = name if name in ACTIVATIONS else None  # type: ignore[assignment]
        return layer.activation is not None


def _check_layer_norm(
    width: int, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> None:
    if weight is not None or bias is not None:
        raise NotDense("numpy runs LayerNorm with elementwise_affine=False")
    if tuple(shape) != (width,) or eps != 1e-5:
        raise NotDense("numpy runs LayerNorm over the whole layer, with eps=1e-5")


def _style(hidden: list[_Layer]) -> Style:
    """What is between the layers: numpy runs the same everywhere."""
    for kinds, what in (
        ({layer.activation for layer in hidden}, "activations"),
        ({layer.normalised for layer in hidden}, "layers with and without LayerNorm"),
        ({x.residual for x in hidden[1:] if x.is_square}, "layers with and without residual"),
    ):
        if len(kinds) > 1:
            raise NotDense(f"it mixes {what}")
    if not hidden:
        return Style()
    residual = any(layer.residual for layer in hidden)
    return Style(hidden[0].activation or "relu", hidden[0].normalised, residual)
