"""SAC made for many samplers and large batches, in the manner of FlashSAC (arXiv 2604.04539) and FastSAC (2512.01996).

What differs from SAC: the critics give probabilities to returns instead of one value, rewards are
divided by the spread of returns so that one range of atoms fits every task, observations and the
critics' layers are normalised, the actor learns after every second update, the temperature starts
small and aims at less entropy, and some environments explore more than others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spreeze.algos.base import Algorithm, Metrics, OffPolicyConfig, evenly
from spreeze.spec import LARGEST_RETURN, Floats

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from spreeze.networks import Arithmetic
    from spreeze.rows import Batch
    from spreeze.spec import EnvSpec


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

    hold: int = 1
    """Env steps that the noise is kept at most; how many is drawn each time, most often one."""

    def exploration(self, num_envs: int) -> Floats:
        """Evenly from the smallest to the largest factor."""
        return evenly(*self.spread, num_envs)

    def longest_hold(self) -> int:
        """The knob."""
        return self.hold


def build(config: FastSACConfig, spec: EnvSpec, arithmetic: Arithmetic = "float32") -> Algorithm:
    """FastSAC for one environment."""
    from spreeze.networks import CategoricalCritics, SoftActor, mlp_network

    act = SoftActor(config.policy_form(spec).sizes(spec), arithmetic, config.init_alpha)
    network = mlp_network(
        [spec.obs_size + spec.action_size, *config.widths(), config.num_atoms],
        arithmetic,
        ensemble=2,
        layer_norm=config.layer_norm,
    )
    critics = CategoricalCritics(network, config.num_atoms, LARGEST_RETURN)
    target_entropy = config.target_entropy_per_action * spec.action_size

    def init(generator: Generator) -> tuple[Tensor, Tensor]:
        return act.init(generator), network.init(generator)

    def critic_loss(
        critic: Tensor, target: Tensor, actor: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Towards the return of what the actor does next, its entropy included."""
        next_action, next_log_prob, log_alpha = act(actor, batch.next_obs, noise)
        return critics.loss(critic, target, batch, next_action, -log_alpha.exp() * next_log_prob)

    def actor_loss(
        actor: Tensor, critic: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """As in SAC, with the smaller expectation as value."""
        action, log_prob, log_alpha = act(actor, batch.obs, noise)
        q = critics.values(critic, batch.obs, action).amin(0)
        return act.loss(q, log_prob, log_alpha, target_entropy)

    return Algorithm(
        config=config,
        spec=spec,
        actor_shapes=act.shapes,
        critic_shapes=network.shapes,
        policy_size=act.policy_size,
        init=init,
        critic_loss=critic_loss,
        actor_loss=actor_loss,
    )
