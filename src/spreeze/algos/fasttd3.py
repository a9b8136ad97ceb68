"""TD3 made for many samplers and large batches, in the manner of FastTD3 (Seo et al. 2025, arXiv 2505.22642).

What differs from TD3: the critics give probabilities to returns instead of one value, rewards are
divided by the spread of returns so that one range of atoms fits every task, observations and the
critics' layers are normalised, and the actor needs no target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spreeze.algos.base import Algorithm, DeterministicConfig, Metrics
from spreeze.spec import LARGEST_RETURN

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from spreeze.networks import Arithmetic
    from spreeze.rows import Batch
    from spreeze.spec import EnvSpec


@dataclass(frozen=True, kw_only=True)
class FastTD3Config(DeterministicConfig):
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


def build(config: FastTD3Config, spec: EnvSpec, arithmetic: Arithmetic = "float32") -> Algorithm:
    """FastTD3 for one environment."""
    import torch

    from spreeze.networks import CategoricalCritics, mlp_network

    policy = mlp_network(config.policy_form(spec).sizes(spec), arithmetic)
    network = mlp_network(
        [spec.obs_size + spec.action_size, *config.widths(), config.num_atoms],
        arithmetic,
        ensemble=2,
        layer_norm=config.layer_norm,
    )
    critics = CategoricalCritics(network, config.num_atoms, LARGEST_RETURN)

    def init(generator: Generator) -> tuple[Tensor, Tensor]:
        return policy.init(generator), network.init(generator)

    def critic_loss(
        critic: Tensor, target: Tensor, actor: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Towards the return of a noisy action of the actor."""
        limit = config.target_noise_clip
        smoothing = (noise * config.target_noise).clamp(-limit, limit)
        next_action = (torch.tanh(policy(actor, batch.next_obs)) + smoothing).clamp(-1, 1)
        return critics.loss(critic, target, batch, next_action, torch.zeros_like(batch.reward))

    def actor_loss(
        actor: Tensor, critic: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """What the actor does is worth, by the critic that expects less."""
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
