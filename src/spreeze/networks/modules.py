"""A torch module as a network: its parameters become part of one flat vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.dropout import _DropoutNd

from spreeze.errors import UsageError
from spreeze.networks.dense import Dense, NotDense, as_dense
from spreeze.networks.layers import Arithmetic, Network, Shapes, mlp_network

ROWS = 64
"""Random observations on which a module is tried out."""
TOLERANCE = 1e-5
"""Largest difference between a module and its dense layers, relative to the largest output."""


def module_network(make: Callable[[], nn.Module], copies: int | None = None) -> Network:
    """The module that `make` returns as a network [B, out], or so many copies as an ensemble [copies, B, out].

    The module's own initialisation counts. UsageError if it has state besides its parameters, or draws random numbers.
    """
    module = make()
    _check_parts(module)
    lead = () if copies is None else (copies,)
    shapes = Shapes(
        tuple((name, (*lead, *value.shape)) for name, value in module.named_parameters())
    )

    def forward(flat: Tensor, *inputs: Tensor) -> Tensor:
        named = shapes.split(flat)
        if copies is None:
            out: Tensor = functional_call(module, named, inputs)
            return out
        stacked = {name: values.unbind() for name, values in named.items()}
        outputs = [
            functional_call(module, {name: values[i] for name, values in stacked.items()}, inputs)
            for i in range(copies)
        ]
        return torch.stack(outputs)

    def initial(generator: torch.Generator) -> Tensor:
        made = _make_seeded(make, copies or 1, generator)
        named = [dict(one.named_parameters()) for one in made]
        parts = [torch.stack([one[name] for one in named]).flatten() for name, _ in shapes.items]
        return torch.cat(parts).detach().to(generator.device)

    return Network(shapes, forward, initial)


class PolicyFromModule(NamedTuple):
    """A policy's network that was given as a module."""

    network: Network
    dense: Dense | None
    """Its layers, if it consists of dense layers; the network then has their parameters, not the module's."""
    why_not: str = ""
    """Why it does not."""


def policy_from_module(
    own: Callable[[], nn.Module | None],
    inputs: int,
    outputs: int,
    arithmetic: Arithmetic,
    images: bool = False,
) -> PolicyFromModule:
    """A policy's network from the module that `own` returns; UsageError if it cannot be one.

    One that reads images acts through torch.
    """

    def make() -> nn.Module:
        module = own()
        if isinstance(module, nn.Module):
            return module
        raise UsageError([f"policy_module returns {type(module).__name__}, not a torch module."])

    module, obs = make(), _observations(inputs)
    _check_policy(module, obs, outputs)
    if images:
        return PolicyFromModule(module_network(make), None, "it reads images")
    try:
        dense = as_dense(module, obs)
    except NotDense as why:
        return PolicyFromModule(module_network(make), None, str(why))
    network = mlp_network(dense.sizes, arithmetic, style=dense.style)
    with torch.no_grad():
        right = module(obs)
        ours = mlp_network(dense.sizes, "float32", style=dense.style)(dense.vector, obs)
    distance = float((ours - right).abs().max() / right.abs().max().clamp(min=1))
    if not distance <= TOLERANCE:
        why_not = f"its layers alone give outputs that differ from its own by {distance:.1e}"
        return PolicyFromModule(module_network(make), None, why_not)

    def initial(generator: torch.Generator) -> Tensor:
        made = as_dense(_make_seeded(make, 1, generator)[0], obs)
        return made.vector.to(generator.device)

    return PolicyFromModule(Network(network.shapes, network.forward, initial), dense)


def _check_parts(module: nn.Module) -> None:
    name = type(module).__name__
    for buffer, _ in module.named_buffers():
        raise UsageError(
            [
                f"{name} has state besides its parameters: {buffer}. Only parameters are trained and sent to samplers: "
                "use LayerNorm in place of BatchNorm, and make constants in forward."
            ]
        )
    for part, layer in module.named_modules():
        dropout = layer.p if isinstance(layer, _DropoutNd) else getattr(layer, "dropout", 0.0)
        if isinstance(dropout, float) and dropout > 0:
            kind = type(layer).__name__
            raise UsageError(
                [
                    f"{name} draws random numbers: {part or kind} ({kind}) drops out {dropout:g}. "
                    "Samplers and updates must compute the same: leave it out."
                ]
            )


def _check_policy(module: nn.Module, obs: Tensor, outputs: int) -> None:
    """UsageError unless the module can be the network of a policy."""
    name = type(module).__name__
    _check_parts(module)
    parameters = dict(module.named_parameters())
    if not parameters:
        raise UsageError([f"{name} has no parameters, so nothing can be learned."])
    if other := [(n, p.dtype) for n, p in parameters.items() if p.dtype != torch.float32]:
        raise UsageError([f"{name}: {other[0][0]} is {other[0][1]}; parameters must be float32."])
    with torch.no_grad():
        found, again, few = module(obs), module(obs), module(obs[:2])
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if shape != (ROWS, outputs):
        raise UsageError(
            [
                f"{name} returns {shape} for {ROWS} observations {tuple(obs.shape)}; the policy needs {(ROWS, outputs)}."
            ]
        )
    if not torch.equal(found, again):
        raise UsageError(
            [f"{name} draws random numbers: it returns other outputs for the same observations."]
        )
    if not torch.allclose(found[:2], few, rtol=1e-3, atol=1e-4):
        raise UsageError(
            [
                f"{name} mixes the rows of a batch: two observations have other outputs than among {ROWS}. "
                "Use LayerNorm in place of BatchNorm."
            ]
        )


def _observations(inputs: int) -> Tensor:
    return torch.randn(ROWS, inputs, generator=torch.Generator().manual_seed(0))


def _make_seeded(
    make: Callable[[], nn.Module], num: int, generator: torch.Generator
) -> list[nn.Module]:
    """Modules whose initial parameters follow from the generator."""
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [make() for _ in range(num)]
