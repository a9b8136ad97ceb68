"""TD3 made for many samplers and large batches, in the manner of FastTD3 (Seo et al. 2025, arXiv 2505.22642).

What differs from TD3: the critics give probabilities to returns instead of one value, rewards are
divided by the spread of returns so that one range of atoms fits every task, observations and the
critics' layers are normalised, and the actor needs no target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spreeze.algos.base import Algorithm, Metrics, OffPolicyConfig
from spreeze.policy import Head
from spreeze.spec import Floats

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from spreeze.networks import Arithmetic
    from spreeze.spec import Batch, EnvSpec

LARGEST_RETURN = 5.0
"""Where the atoms end; `scaling` divides rewards so that returns stay within."""


@dataclass(frozen=True, kw_only=True)
class FastTD3Config(OffPolicyConfig):
    """TD3 with categorical critics, normalised."""

    lr: float = 3e-4
    """Adam step size."""
    beta2: float = 0.95
    """How slowly Adam forgets the size of gradients."""
    policy_delay: int = 2
    """Updates of the critic to one of the actor."""
    layer_norm: bool = True
    """Normalise the hidden layers of the critic."""
    normalise_obs: bool = True
    """Bring observations to mean 0 and spread 1; the policy keeps the running statistics."""
    normalise_reward: bool = True
    """Divide rewards by the running spread of discounted returns."""
    num_atoms: int = 101
    """Returns that the critics give probabilities to."""
    noise: tuple[float, float] = (0.05, 0.6)
    """Spread of the noise on actions, in the environment that explores least and in the one that does most."""
    target_noise: float = 0.1
    """Spread of the noise on target actions."""
    target_noise_clip: float = 0.5
    """Largest noise on a target action."""

    def head(self, spec: EnvSpec) -> Head:
        """The action itself."""
        return "tanh"

    def exploration(self, num_envs: int) -> Floats:
        """Evenly from the smallest to the largest noise."""
        return np.linspace(*self.noise, num_envs, dtype=np.float32)


def build(config: FastTD3Config, spec: EnvSpec, arithmetic: Arithmetic = "float32") -> Algorithm:
    """FastTD3 for one environment."""
    import torch

    from spreeze.networks import atoms, mlp_network, project

    policy = mlp_network(config.policy_form(spec).sizes(spec), arithmetic)
    critics = mlp_network(
        [spec.obs_size + spec.action_size, *config.widths(), config.num_atoms],
        arithmetic,
        ensemble=2,
        layer_norm=config.layer_norm,
    )

    def init(generator: Generator) -> tuple[Tensor, Tensor]:
        return policy.init(generator), critics.init(generator)

    def support(like: Tensor) -> Tensor:
        return atoms(config.num_atoms, LARGEST_RETURN, like)

    def critic_loss(
        critic: Tensor, target: Tensor, actor: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Cross entropy with the distribution of the critic that expects less, at a noisy next action."""
        z, limit = support(critic), config.target_noise_clip
        smoothing = (noise * config.target_noise).clamp(-limit, limit)
        next_action = (torch.tanh(policy(actor, batch.next_obs)) + smoothing).clamp(-1, 1)
        probs = critics(target, batch.next_obs, next_action).softmax(-1)  # [2, B, atoms]
        first, second = (probs * z).sum(-1)
        smaller = torch.where((first < second)[:, None], probs[0], probs[1])
        goal = project(smaller, batch.reward[:, None] + batch.discount[:, None] * z, z).detach()
        log_probs = critics(critic, batch.obs, batch.action).log_softmax(-1)
        loss = -(batch.weight * (goal * log_probs).sum(-1)).mean(1).sum()
        return loss, {
            "critic_loss": loss.detach(),
            "q_mean": (goal * z).sum(-1).mean(),
            "edge_mass": (goal[:, 0] + goal[:, -1]).mean(),  # much of it: returns beyond the atoms
        }

    def actor_loss(
        actor: Tensor, critic: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """What the actor does is worth, by the critic that expects less."""
        action = torch.tanh(policy(actor, batch.obs))
        q = (critics(critic, batch.obs, action).softmax(-1) * support(critic)).sum(-1)
        loss = -q.amin(0).mean()
        return loss, {"actor_loss": loss.detach()}

    return Algorithm(
        config=config,
        spec=spec,
        actor_shapes=policy.shapes,
        critic_shapes=critics.shapes,
        policy_size=policy.shapes.size,
        init=init,
        critic_loss=critic_loss,
        actor_loss=actor_loss,
    )
