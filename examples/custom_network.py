"""Your own networks: SAC whose policy and critics are torch modules.

A policy of dense layers is recognised and acts in numpy. This one has gates, so it acts through torch, in samplers and
evaluations too. To use it later: spreeze eval RUN --network examples/custom_network.py:ENTRY
"""

from dataclasses import dataclass

import spreeze
from spreeze.algos import Entry, sac


def make_policy(inputs, outputs):
    """A network whose features are multiplied by gates."""
    import torch
    from torch import nn

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.features, self.gates = nn.Linear(inputs, 64), nn.Linear(inputs, 64)
            self.head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))

        def forward(self, obs):
            return self.head(self.features(obs) * torch.sigmoid(self.gates(obs)))

    return Policy()


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


@dataclass(frozen=True, kw_only=True)
class OwnConfig(sac.SACConfig):
    """SAC with a policy of my own."""

    def policy_module(self, inputs, outputs):
        return make_policy(inputs, outputs)


def build(config, spec, arithmetic="float32"):
    from spreeze.networks import module_network

    inputs, width = spec.obs_size + spec.action_size, config.widths()[0]
    critics = module_network(lambda: make_critic(inputs, width), copies=2)
    return sac.build(config, spec, arithmetic, critics)


ENTRY = Entry(OwnConfig, build, "SAC with critics and a policy of my own")

if __name__ == "__main__":
    run = spreeze.train("Pendulum-v1", algo=f"{__file__}:ENTRY", time="120s", target=-250)
    print(f"{run.summary['reason']} after {run.summary['wall_s']} s")
