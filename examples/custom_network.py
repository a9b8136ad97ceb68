"""Your own networks: SAC with a torch module as critics, and a policy with other layers.

The policy stays a network of dense layers, whose kind is set by knobs: numpy runs it, in samplers and where you deploy it.
"""

from dataclasses import dataclass

import spreeze
from spreeze.algos import Entry, sac


@dataclass(frozen=True, kw_only=True)
class OwnConfig(sac.SACConfig):
    """SAC whose policy has residual layers with layer normalisation, and SiLU."""

    activation: str = "silu"
    residual: bool = True
    actor_layer_norm: bool = True


def make_critic(inputs, width):
    """A residual network with one value: an embedding, and a block of two layers."""
    import torch
    from torch import nn

    class Critic(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.value = nn.Linear(inputs, width), nn.Linear(width, 1)
            self.norm = nn.LayerNorm(width)
            self.block = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

        def forward(self, obs, action):
            x = self.embed(torch.cat([obs, action], -1))
            return self.value(torch.relu(x + self.block(self.norm(x))))

    return Critic()


def build(config, spec, arithmetic="float32"):
    from spreeze.networks import module_network

    inputs, width = spec.obs_size + spec.action_size, config.widths()[0]
    critics = module_network(lambda: make_critic(inputs, width), copies=2)
    return sac.build(config, spec, arithmetic, critics)


ENTRY = Entry(OwnConfig, build, "SAC with critics and a policy of my own")

if __name__ == "__main__":
    run = spreeze.train("Pendulum-v1", algo=f"{__file__}:ENTRY", time="120s", target=-250)
    print(f"{run.summary['reason']} after {run.summary['wall_s']} s")
