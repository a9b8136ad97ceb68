"""Soft actor-critic with a learned temperature. Haarnoja et al. 2018, arXiv 1812.05905.

Twin critics and a tanh-Gaussian actor. The temperature is the last number of the actor's vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spreeze.algos.base import Algorithm, Metrics
from spreeze.algos.off_policy import SoftConfig
from spreeze.errors import UsageError

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from spreeze.networks import Arithmetic, Network
    from spreeze.rows import Batch
    from spreeze.spec import EnvSpec


@dataclass(frozen=True, kw_only=True)
class SACConfig(SoftConfig):
    """Soft actor-critic."""


def build(
    config: SACConfig,
    spec: EnvSpec,
    arithmetic: Arithmetic = "float32",
    critic_network: Network | None = None,
) -> Algorithm:
    """SAC for one environment. `critic_network` replaces the critics: (flat, obs, action) -> [2, B, 1].

    Networks, and with them torch, are imported here: reading the knobs above stays fast.
    """
    from spreeze.networks import SoftActor

    act = SoftActor(config.policy_network(spec, arithmetic), config.init_alpha)
    critics = critic_network or config.critic_network(spec, arithmetic, 1, ensemble=2)

    def init(generator: Generator) -> tuple[Tensor, Tensor]:
        return act.init(generator), critics.init(generator)

    def q_values(critic: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        return _one_value_each(critics(critic, obs, action), len(obs))  # [2, B]

    def critic_loss(
        critic: Tensor, target: Tensor, actor: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Eq. 5: both critics towards the smaller target."""
        next_action, next_log_prob, log_alpha = act(actor, batch.next_obs, noise)
        next_q = q_values(target, batch.next_obs, next_action).amin(0)
        soft_value = next_q - log_alpha.exp() * next_log_prob
        goal = (batch.reward + batch.discount * soft_value).detach()  # [B]
        q = q_values(critic, batch.obs, batch.action)
        loss = 0.5 * (batch.weight * (q - goal).square()).mean(1).sum()
        return loss, {"critic_loss": loss.detach(), "q_mean": q.detach().mean()}

    def actor_loss(
        actor: Tensor, critic: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Eq. 9 and 18, with the smaller of the two values."""
        action, log_prob, log_alpha = act(actor, batch.obs, noise)
        q = q_values(critic, batch.obs, action).amin(0)
        target_entropy = config.target_entropy_per_action + batch.entropy_shift
        return act.loss(q, log_prob, log_alpha, target_entropy * spec.action_size)

    return Algorithm(
        config=config,
        spec=spec,
        actor_shapes=act.shapes,
        critic_shapes=critics.shapes,
        policy_size=act.policy_size,
        init=init,
        critic_loss=critic_loss,
        actor_loss=actor_loss,
    )


def _one_value_each(values: Tensor, rows: int) -> Tensor:
    """[2, B, 1] as [2, B]; UsageError for any other shape, which a critic network of the user's may return."""
    if values.shape != (2, rows, 1):
        raise UsageError(
            [
                f"the critic network returns {tuple(values.shape)} for a batch of {rows}; "
                f"SAC needs {(2, rows, 1)}: two critics, one value per row each."
            ]
        )
    return values.squeeze(-1)
