"""Soft actor-critic with a learned temperature. Haarnoja et al. 2018, arXiv 1812.05905.

Tanh-Gaussian actor, twin critics, and the temperature as one more number at the end of the actor
vector: it is trained by the actor's loss and travels with the actor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spreeze.algos.base import AlgoConfig, Algorithm, Metrics

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from spreeze.networks import Arithmetic
    from spreeze.spec import Batch, EnvSpec


@dataclass(frozen=True, kw_only=True)
class SACConfig(AlgoConfig):
    """Soft actor-critic."""

    init_alpha: float = 0.2
    """Temperature at the start."""
    target_entropy_per_action: float = -1.0
    """Entropy that the temperature aims at, per action dimension."""


def build(config: SACConfig, spec: EnvSpec, arithmetic: Arithmetic = "float32") -> Algorithm:
    """SAC for one environment.

    Torch is imported here, so that the knobs above cost no second.
    """
    import torch

    from spreeze.networks import Shapes, init_uniform, mlp, mlp_shapes, tanh_gaussian

    hidden = config.hidden
    assert hidden != "auto"
    policy_shapes = mlp_shapes([spec.obs_size, *hidden, 2 * spec.action_size])
    actor_shapes = Shapes((*policy_shapes.items, ("log_alpha", (1,))))
    critic_shapes = mlp_shapes([spec.obs_size + spec.action_size, *hidden, 1], ensemble=2)
    target_entropy = config.target_entropy_per_action * spec.action_size

    def init(generator: Generator) -> tuple[Tensor, Tensor]:
        log_alpha = torch.full((1,), math.log(config.init_alpha))
        actor = torch.cat([init_uniform(policy_shapes, generator), log_alpha])
        return actor, init_uniform(critic_shapes, generator)

    def act(actor: Tensor, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        policy, log_alpha = torch.split(actor, [policy_shapes.size, 1])
        head = mlp(policy_shapes, policy, arithmetic, obs)
        action, log_prob = tanh_gaussian(head, noise)
        return action, log_prob, log_alpha

    def q_values(critic: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        return mlp(critic_shapes, critic, arithmetic, obs, action).squeeze(-1)  # [2, B]

    def critic_loss(
        critic: Tensor, target: Tensor, actor: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Eq. 5, both critics against the smaller target."""
        next_action, next_log_prob, log_alpha = act(actor, batch.next_obs, noise)
        next_q = q_values(target, batch.next_obs, next_action).amin(0)
        soft_value = next_q - log_alpha.exp() * next_log_prob
        goal = (batch.reward + batch.discount * soft_value).detach()  # [B]
        q = q_values(critic, batch.obs, batch.action)
        loss = 0.5 * (q - goal).square().mean(1).sum()
        return loss, {"critic_loss": loss.detach(), "q_mean": q.detach().mean()}

    def actor_loss(
        actor: Tensor, critic: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Eq. 9 for the policy, Eq. 18 for the temperature; neither leaks into the other."""
        action, log_prob, log_alpha = act(actor, batch.obs, noise)
        alpha = log_alpha.exp().detach()
        policy = (alpha * log_prob - q_values(critic, batch.obs, action).amin(0)).mean()
        temperature = -(log_alpha * (log_prob.detach() + target_entropy)).mean()
        entropy = -log_prob.detach().mean()
        return policy + temperature, {
            "actor_loss": policy.detach(),
            "ent_coef": alpha.squeeze(0),
            "entropy": entropy,
        }

    return Algorithm(
        actor_shapes=actor_shapes,
        critic_shapes=critic_shapes,
        policy_size=policy_shapes.size,
        init=init,
        critic_loss=critic_loss,
        actor_loss=actor_loss,
    )
