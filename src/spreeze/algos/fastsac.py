"""SAC for many samplers and large batches, after FlashSAC (arXiv 2604.04539) and FastSAC (2512.01996).

Differences from SAC: the critics predict a distribution of returns; rewards are divided by the standard
deviation of returns, so that one range of atoms fits every task; observations and the critics' layers
are normalised; there is one actor update per two critic updates; the temperature starts small and the
target entropy is lower; environments explore with different amounts of noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spreeze.algos.base import Algorithm, Metrics
from spreeze.algos.off_policy import CategoricalConfig, SoftConfig, evenly
from spreeze.knobs import Effect, knob
from spreeze.spec import LARGEST_RETURN, Floats

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from spreeze.networks import Arithmetic
    from spreeze.rows import Batch
    from spreeze.spec import EnvSpec


@dataclass(frozen=True, kw_only=True)
class FastSACConfig(CategoricalConfig, SoftConfig):
    """SAC with categorical critics, normalised."""

    init_alpha: float = 0.01
    target_entropy_per_action: float = -0.5
    spread: tuple[float, float] = knob(
        (0.5, 1.5),
        "Factor on the policy's noise, in the least and in the most exploring environment.",
        low=0,
        high=10,
        effect=Effect.DATA,
    )

    def exploration(self, num_envs: int) -> Floats:
        """Evenly from the smallest to the largest factor."""
        return evenly(*self.spread, num_envs)


def build(config: FastSACConfig, spec: EnvSpec, arithmetic: Arithmetic = "float32") -> Algorithm:
    """FastSAC for one environment."""
    from spreeze.networks import CategoricalCritics, SoftActor

    act = SoftActor(config.policy_network(spec, arithmetic), config.init_alpha)
    network = config.critic_network(spec, arithmetic, config.num_atoms, ensemble=2)
    critics = CategoricalCritics(network, config.num_atoms, LARGEST_RETURN)

    def init(generator: Generator) -> tuple[Tensor, Tensor]:
        return act.init(generator), network.init(generator)

    def critic_loss(
        critic: Tensor, target: Tensor, actor: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Towards the returns of the actor's next action, entropy included."""
        next_action, next_log_prob, log_alpha = act(actor, batch.next_obs, noise)
        return critics.loss(critic, target, batch, next_action, -log_alpha.exp() * next_log_prob)

    def actor_loss(
        actor: Tensor, critic: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """As in SAC, with the smaller expected return as value."""
        action, log_prob, log_alpha = act(actor, batch.obs, noise)
        q = critics.values(critic, batch.obs, action).amin(0)
        target_entropy = config.target_entropy_per_action + batch.entropy_shift
        return act.loss(q, log_prob, log_alpha, target_entropy * spec.action_size)

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
