"""A torch module as a network: its parameters become part of one flat vector."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from spreeze.networks.layers import Network, Shapes


def module_network(make: Callable[[], nn.Module], copies: int) -> Network:
    """So many copies of the module that `make` returns, computed as an ensemble: [copies, B, out].

    The module's own initialisation counts. It has no state besides its parameters.
    """
    module = make()
    if buffers := [name for name, _ in module.named_buffers()]:
        raise ValueError(f"{type(module).__name__} has state besides parameters: {buffers[0]}")
    shapes = Shapes(
        tuple((name, (copies, *value.shape)) for name, value in module.named_parameters())
    )

    def forward(flat: Tensor, *inputs: Tensor) -> Tensor:
        stacked = {name: values.unbind() for name, values in shapes.split(flat).items()}
        outputs = [
            functional_call(module, {name: values[i] for name, values in stacked.items()}, inputs)
            for i in range(copies)
        ]
        return torch.stack(outputs)

    def initial(generator: torch.Generator) -> Tensor:
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = [dict(make().named_parameters()) for _ in range(copies)]
        parts = [torch.stack([one[name] for one in made]).flatten() for name, _ in shapes.items]
        return torch.cat(parts).detach().to(generator.device)

    return Network(shapes, forward, initial)
