"""Twin delayed deterministic policy gradient. Fujimoto et al. 2018, arXiv 1802.09477.

A deterministic actor with a target network, twin critics, smoothed target actions, and one actor update
per two critic updates. Each environment explores with a different amount of noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spreeze.algos.base import Algorithm, Metrics
from spreeze.algos.off_policy import DeterministicConfig
from spreeze.knobs import knob

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from spreeze.networks import Arithmetic
    from spreeze.rows import Batch
    from spreeze.spec import EnvSpec


@dataclass(frozen=True, kw_only=True)
class TD3Config(DeterministicConfig):
    """Twin delayed deterministic policy gradient."""

    policy_delay: int = 2
    target_noise: float = knob(
        0.2, "Standard deviation of the noise on target actions.", low=0, high=10
    )
    target_noise_clip: float = knob(
        0.5, "Clip the noise on target actions to this.", low=0, high=10
    )


def build(config: TD3Config, spec: EnvSpec, arithmetic: Arithmetic = "float32") -> Algorithm:
    """TD3 for one environment."""
    import torch

    policy = config.policy_network(spec, arithmetic)
    critics = config.critic_network(spec, arithmetic, 1, ensemble=2)

    def init(generator: Generator) -> tuple[Tensor, Tensor]:
        return policy.init(generator), critics.init(generator)

    def q_values(critic: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        return critics(critic, obs, action).squeeze(-1)  # [2, B]

    def critic_loss(
        critic: Tensor, target: Tensor, actor: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Both critics towards the smaller target value of a noisy target action (Eq. 14)."""
        limit = config.target_noise_clip
        smoothing = (noise * config.target_noise).clamp(-limit, limit)
        next_action = (torch.tanh(policy(actor, batch.next_obs)) + smoothing).clamp(-1, 1)
        next_q = q_values(target, batch.next_obs, next_action).amin(0)
        goal = (batch.reward + batch.discount * next_q).detach()  # [B]
        q = q_values(critic, batch.obs, batch.action)
        loss = 0.5 * (batch.weight * (q - goal).square()).mean(1).sum()
        return loss, {"critic_loss": loss.detach(), "q_mean": q.detach().mean()}

    def actor_loss(
        actor: Tensor, critic: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """The value of the actor's action, by the first critic."""
        action = torch.tanh(policy(actor, batch.obs))
        loss = -q_values(critic, batch.obs, action)[0].mean()
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
        target_actor=True,
    )
