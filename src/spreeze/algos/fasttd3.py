"""TD3 for many samplers and large batches, after FastTD3 (Seo et al. 2025, arXiv 2505.22642).

Differences from TD3: the critics predict a distribution of returns; rewards are divided by the standard
deviation of returns, so that one range of atoms fits every task; observations and the critics' layers
are normalised; the actor has no target network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spreeze.algos.base import Algorithm, Metrics
from spreeze.algos.off_policy import CategoricalConfig, DeterministicConfig
from spreeze.knobs import knob
from spreeze.spec import LARGEST_RETURN

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from spreeze.networks import Arithmetic
    from spreeze.rows import Batch
    from spreeze.spec import EnvSpec


@dataclass(frozen=True, kw_only=True)
class FastTD3Config(CategoricalConfig, DeterministicConfig):
    """TD3 with categorical critics, normalised."""

    noise: tuple[float, float] = (0.05, 0.6)
    target_noise: float = knob(
        0.1, "Standard deviation of the noise on target actions.", low=0, high=10
    )
    target_noise_clip: float = knob(
        0.5, "Clip the noise on target actions to this.", low=0, high=10
    )


def build(config: FastTD3Config, spec: EnvSpec, arithmetic: Arithmetic = "float32") -> Algorithm:
    """FastTD3 for one environment."""
    import torch

    from spreeze.networks import CategoricalCritics

    policy = config.policy_network(spec, arithmetic)
    network = config.critic_network(spec, arithmetic, config.num_atoms, ensemble=2)
    critics = CategoricalCritics(network, config.num_atoms, LARGEST_RETURN)

    def init(generator: Generator) -> tuple[Tensor, Tensor]:
        return policy.init(generator), network.init(generator)

    def critic_loss(
        critic: Tensor, target: Tensor, actor: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Towards the returns of a noisy next action of the actor."""
        limit = config.target_noise_clip
        smoothing = (noise * config.target_noise).clamp(-limit, limit)
        next_action = (torch.tanh(policy(actor, batch.next_obs)) + smoothing).clamp(-1, 1)
        return critics.loss(critic, target, batch, next_action, torch.zeros_like(batch.reward))

    def actor_loss(
        actor: Tensor, critic: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """The value of the actor's action, by the critic that expects less."""
        action = torch.tanh(policy(actor, batch.obs))
        loss = -critics.values(critic, batch.obs, action).amin(0).mean()
        return loss, {"actor_loss": loss.detach()}

    return Algorithm(
        config=config,
        spec=spec,
        actor_shapes=policy.shapes,
        critic_shapes=network.shapes,
        policy_size=policy.shapes.size,
        init=init,
        critic_loss=critic_loss,
        actor_loss=actor_loss,
    )
