"""Truncated quantile critics. Kuznetsov et al. 2020, arXiv 2005.04269.

SAC whose critics predict quantiles of the return. For the target, the quantiles of all critics are sorted
and the largest are dropped. How many sets the pessimism, in finer steps than the minimum of two critics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spreeze.algos.base import Algorithm, Metrics
from spreeze.algos.off_policy import SoftConfig
from spreeze.knobs import Effect, knob

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from spreeze.networks import Arithmetic
    from spreeze.rows import Batch
    from spreeze.spec import EnvSpec


@dataclass(frozen=True, kw_only=True)
class TQCConfig(SoftConfig):
    """Truncated quantile critics."""

    num_critics: int = knob(2, "Critics in the ensemble.", low=1, high=64, effect=Effect.NETWORK)
    num_quantiles: int = knob(25, "Quantiles per critic.", low=1, high=1000, effect=Effect.NETWORK)
    drop_per_critic: int = knob(
        2, "Largest quantiles dropped from the target, per critic.", low=0, high=999
    )

    def problems(self) -> list[str]:
        """Refuse to drop every quantile."""
        problems = super().problems()
        if self.drop_per_critic >= self.num_quantiles:
            problems.append(
                f"--algo.drop-per-critic {self.drop_per_critic}: must be less than "
                f"--algo.num-quantiles {self.num_quantiles}, or nothing is left."
            )
        return problems


def build(config: TQCConfig, spec: EnvSpec, arithmetic: Arithmetic = "float32") -> Algorithm:
    """TQC for one environment."""
    import torch

    from spreeze.networks import SoftActor

    act = SoftActor(config.policy_network(spec, arithmetic), config.init_alpha)
    num = config.num_quantiles
    critics = config.critic_network(spec, arithmetic, num, ensemble=config.num_critics)
    kept = config.num_critics * (num - config.drop_per_critic)

    def init(generator: Generator) -> tuple[Tensor, Tensor]:
        return act.init(generator), critics.init(generator)

    def critic_loss(
        critic: Tensor, target: Tensor, actor: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Eq. 10: the Huber quantile loss between every quantile and every remaining target quantile."""
        next_action, next_log_prob, log_alpha = act(actor, batch.next_obs, noise)
        pooled = critics(target, batch.next_obs, next_action).transpose(0, 1).flatten(1)
        next_z = pooled.sort(-1).values[:, :kept]
        soft = next_z - (log_alpha.exp() * next_log_prob)[:, None]
        goal = (batch.reward[:, None] + batch.discount[:, None] * soft).detach()  # [B, kept]
        z = critics(critic, batch.obs, batch.action)  # [critics, B, num]
        tau = (torch.arange(num, device=z.device) + 0.5) / num
        error = goal[None, :, None, :] - z[..., None]  # [critics, B, num, kept]
        huber = torch.where(error.abs() < 1, 0.5 * error.square(), error.abs() - 0.5)
        weight = (tau[:, None] - (error < 0).float()).abs()
        loss = (batch.weight * (weight * huber).mean((2, 3))).mean(1).sum()
        return loss, {"critic_loss": loss.detach(), "q_mean": z.detach().mean()}

    def actor_loss(
        actor: Tensor, critic: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """As in SAC, with the mean of all quantiles as value."""
        action, log_prob, log_alpha = act(actor, batch.obs, noise)
        q = critics(critic, batch.obs, action).mean((0, 2))
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
