"""Deep Q-learning for discrete actions: double (arXiv 1509.06461), dueling (1511.06581), n-step returns.

The critic is the policy. Its last layer has a value for the state and an advantage for each action.
Environments explore with a ladder of epsilons, as in Ape-X (1803.00933): a few act at random often, most
hardly ever, so there is no schedule to tune.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from spreeze.algos.base import Algorithm, Metrics
from spreeze.algos.off_policy import OffPolicyConfig, evenly
from spreeze.knobs import Effect, knob
from spreeze.policy import PolicyForm
from spreeze.spec import Floats

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from spreeze.networks import Arithmetic
    from spreeze.rows import Batch
    from spreeze.spec import EnvSpec

LADDER = 7.0
"""The last environment's epsilon is the first one's to the power of 1 + LADDER."""


@dataclass(frozen=True, kw_only=True)
class DQNConfig(OffPolicyConfig):
    """Deep Q-learning."""

    has_actor: ClassVar[bool] = False
    usual_n_step: ClassVar[int] = 3

    normalise_reward: bool = True
    epsilon: float = knob(
        0.4,
        "Probability of a random action in the environment that explores most.",
        low=0,
        high=1,
        effect=Effect.DATA,
    )

    def problems(self) -> list[str]:
        """Refuse a delay of an actor that does not exist."""
        problems = super().problems()
        if self.actor_hidden is not None or self.actor_layer_norm:
            problems.append("--algo.actor-hidden, --algo.actor-layer-norm: DQN has no actor.")
        if self.policy_delay != 1:
            problems.append(
                f"--algo.policy-delay {self.policy_delay}: must be 1, because DQN has no actor to delay."
            )
        return problems

    def explore_more(self) -> str:
        """More random actions."""
        return "--algo.epsilon 0.8"

    def policy_form(self, spec: EnvSpec) -> PolicyForm:
        """The critic: a value for the state and one per action."""
        form = super().policy_form(spec)
        return replace(form, hidden=self.widths(), head="values", layer_norm=self.layer_norm)

    def exploration(self, num_envs: int) -> Floats:
        """From epsilon down to epsilon to the eighth."""
        exponents = 1 + LADDER * evenly(0, 1, num_envs)
        ladder: Floats = np.float32(self.epsilon) ** exponents
        return ladder


def build(config: DQNConfig, spec: EnvSpec, arithmetic: Arithmetic = "float32") -> Algorithm:
    """DQN for one environment."""
    import torch
    from torch.nn.functional import smooth_l1_loss

    from spreeze.networks import Shapes, gather_action

    network = config.policy_network(spec, arithmetic)

    def init(generator: Generator) -> tuple[Tensor, Tensor]:
        return torch.zeros(0), network.init(generator)

    def q_values(critic: Tensor, obs: Tensor) -> Tensor:
        out = network(critic, obs)
        value, advantage = out[:, :1], out[:, 1:]
        return value + advantage - advantage.mean(-1, keepdim=True)  # [B, actions]

    def critic_loss(
        critic: Tensor, target: Tensor, actor: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Double Q-learning: the online network picks the next action, the target network values it."""
        best = q_values(actor, batch.next_obs).argmax(-1, keepdim=True)
        next_q = gather_action(q_values(target, batch.next_obs), best)
        goal = (batch.reward + batch.discount * next_q).detach()
        q = gather_action(q_values(critic, batch.obs), batch.action)
        loss = (batch.weight * smooth_l1_loss(q, goal, reduction="none")).mean()
        return loss, {"critic_loss": loss.detach(), "q_mean": q.detach().mean()}

    return Algorithm(
        config=config,
        spec=spec,
        actor_shapes=Shapes(()),
        critic_shapes=network.shapes,
        policy_size=network.shapes.size,
        init=init,
        critic_loss=critic_loss,
    )
