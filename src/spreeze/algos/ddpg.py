"""Deep deterministic policy gradient. Lillicrap et al. 2015, arXiv 1509.02971.

One critic, a deterministic actor, a target network of each. Exploration noise is Gaussian, with a different
scale in each environment, in place of the temporally correlated noise of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spreeze.algos.base import Algorithm, Metrics
from spreeze.algos.off_policy import DeterministicConfig

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from spreeze.networks import Arithmetic
    from spreeze.rows import Batch
    from spreeze.spec import EnvSpec


@dataclass(frozen=True, kw_only=True)
class DDPGConfig(DeterministicConfig):
    """Deep deterministic policy gradient."""


def build(config: DDPGConfig, spec: EnvSpec, arithmetic: Arithmetic = "float32") -> Algorithm:
    """DDPG for one environment."""
    import torch

    policy = config.policy_network(spec, arithmetic)
    q_network = config.critic_network(spec, arithmetic, 1)

    def init(generator: Generator) -> tuple[Tensor, Tensor]:
        return policy.init(generator), q_network.init(generator)

    def q_value(critic: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        return q_network(critic, obs, action).squeeze(-1)  # [B]

    def critic_loss(
        critic: Tensor, target: Tensor, actor: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """The critic towards the target value of the target actor's next action (Eq. 5)."""
        next_action = torch.tanh(policy(actor, batch.next_obs))
        next_q = q_value(target, batch.next_obs, next_action)
        goal = (batch.reward + batch.discount * next_q).detach()
        q = q_value(critic, batch.obs, batch.action)
        loss = 0.5 * (batch.weight * (q - goal).square()).mean()
        return loss, {"critic_loss": loss.detach(), "q_mean": q.detach().mean()}

    def actor_loss(
        actor: Tensor, critic: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """The value of the actor's action (Eq. 6)."""
        loss = -q_value(critic, batch.obs, torch.tanh(policy(actor, batch.obs))).mean()
        return loss, {"actor_loss": loss.detach()}

    return Algorithm(
        config=config,
        spec=spec,
        actor_shapes=policy.shapes,
        critic_shapes=q_network.shapes,
        policy_size=policy.shapes.size,
        init=init,
        critic_loss=critic_loss,
        actor_loss=actor_loss,
        target_actor=True,
    )
