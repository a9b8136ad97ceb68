"""SAC made for many samplers and large batches, in the manner of FlashSAC (arXiv 2604.04539) and FastSAC (2512.01996).

What differs from SAC: the critics give probabilities to returns instead of one value, rewards are
divided by the spread of returns so that one range of atoms fits every task, observations and the
critics' layers are normalised, the actor learns after every second update, the temperature starts
small and aims at less entropy, and some environments explore more than others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spreeze.algos.base import Algorithm, Metrics, OffPolicyConfig
from spreeze.spec import Floats

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from spreeze.networks import Arithmetic
    from spreeze.spec import Batch, EnvSpec

LARGEST_RETURN = 5.0
"""Where the atoms end; `scaling` divides rewards so that returns stay within."""


@dataclass(frozen=True, kw_only=True)
class FastSACConfig(OffPolicyConfig):
    """SAC with categorical critics, normalised."""

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
    init_alpha: float = 0.01
    """Temperature at the start."""
    target_entropy_per_action: float = -0.5
    """Entropy that the temperature aims at, per action dimension."""
    spread: tuple[float, float] = (0.5, 1.5)
    """Factor of the policy's noise, in the environment that explores least and in the one that does most."""

    def exploration(self, num_envs: int) -> Floats:
        """Evenly from the smallest to the largest factor."""
        return np.linspace(*self.spread, num_envs, dtype=np.float32)


def build(config: FastSACConfig, spec: EnvSpec, arithmetic: Arithmetic = "float32") -> Algorithm:
    """FastSAC for one environment."""
    import torch

    from spreeze.networks import Shapes, atoms, mlp_network, project, tanh_gaussian

    policy = mlp_network(config.policy_form(spec).sizes(spec), arithmetic)
    critics = mlp_network(
        [spec.obs_size + spec.action_size, *config.widths(), config.num_atoms],
        arithmetic,
        ensemble=2,
        layer_norm=config.layer_norm,
    )
    target_entropy = config.target_entropy_per_action * spec.action_size

    def init(generator: Generator) -> tuple[Tensor, Tensor]:
        log_alpha = torch.full((1,), math.log(config.init_alpha))
        return torch.cat([policy.init(generator), log_alpha]), critics.init(generator)

    def act(actor: Tensor, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        network, log_alpha = torch.split(actor, [policy.shapes.size, 1])
        action, log_prob = tanh_gaussian(policy(network, obs), noise)
        return action, log_prob, log_alpha

    def support(like: Tensor) -> Tensor:
        return atoms(config.num_atoms, LARGEST_RETURN, like)

    def critic_loss(
        critic: Tensor, target: Tensor, actor: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Cross entropy with the distribution of the critic that expects less, moved by reward and entropy."""
        z = support(critic)
        next_action, next_log_prob, log_alpha = act(actor, batch.next_obs, noise)
        probs = critics(target, batch.next_obs, next_action).softmax(-1)  # [2, B, atoms]
        first, second = (probs * z).sum(-1)
        smaller = torch.where((first < second)[:, None], probs[0], probs[1])
        soft = z - (log_alpha.exp() * next_log_prob)[:, None]
        goal = project(smaller, batch.reward[:, None] + batch.discount[:, None] * soft, z).detach()
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
        """As in SAC, with the smaller expectation as value."""
        action, log_prob, log_alpha = act(actor, batch.obs, noise)
        alpha = log_alpha.exp().detach()
        q = (critics(critic, batch.obs, action).softmax(-1) * support(critic)).sum(-1)
        loss = (alpha * log_prob - q.amin(0)).mean()
        temperature = -(log_alpha * (log_prob.detach() + target_entropy)).mean()
        return loss + temperature, {
            "actor_loss": loss.detach(),
            "ent_coef": alpha.squeeze(0),
            "entropy": -log_prob.detach().mean(),
        }

    return Algorithm(
        config=config,
        spec=spec,
        actor_shapes=Shapes((*policy.shapes.items, ("log_alpha", (1,)))),
        critic_shapes=critics.shapes,
        policy_size=policy.shapes.size,
        init=init,
        critic_loss=critic_loss,
        actor_loss=actor_loss,
    )
