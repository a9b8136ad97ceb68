"""Deep Q-learning for discrete actions: double (arXiv 1509.06461), dueling (1511.06581), n-step returns.

The critic is the policy. Its last layer has a value for the state and an advantage for each action, or quantiles of
both (QR-DQN, 1710.10044). Munchausen (2007.14430) rewards actions that the target network finds likely.
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
TEMPERATURE, LEAST_BONUS = 0.03, -1.0
"""Munchausen: temperature of the softmax that is the target network's policy, and the lowest bonus."""


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
    quantiles: int = knob(
        0,
        "Learn this many quantiles of each action's return (QR-DQN); 32 is usual. 0: only the mean.",
        low=0,
        high=1000,
        effect=Effect.NETWORK,
    )
    munchausen: float = knob(
        0.0,
        "Weight of a bonus for actions that the target network finds likely (Munchausen DQN); 0.9 is usual. 0: off.",
        low=0,
        high=1,
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
        return replace(
            form,
            hidden=self.widths(),
            head="values",
            quantiles=max(self.quantiles, 1),
            layer_norm=self.layer_norm,
        )

    def exploration(self, num_envs: int) -> Floats:
        """From epsilon down to epsilon to the eighth."""
        exponents = 1 + LADDER * evenly(0, 1, num_envs)
        ladder: Floats = np.float32(self.epsilon) ** exponents
        return ladder


def build(config: DQNConfig, spec: EnvSpec, arithmetic: Arithmetic = "float32") -> Algorithm:
    """DQN for one environment."""
    import torch
    from torch.nn.functional import smooth_l1_loss

    from spreeze.networks import Shapes, gather_action, quantile_loss

    network = config.policy_network(spec, arithmetic)
    num = config.policy_form(spec).quantiles

    def init(generator: Generator) -> tuple[Tensor, Tensor]:
        return torch.zeros(0), network.init(generator)

    def returns(critic: Tensor, obs: Tensor) -> Tensor:
        """Quantiles of each action's return, or the mean as the only one: [B, quantiles, actions]."""
        out = network(critic, obs).view(len(obs), -1, num).transpose(1, 2)
        value, advantage = out[..., :1], out[..., 1:]
        return value + advantage - advantage.mean(-1, keepdim=True)

    def policy(quantiles: Tensor) -> Tensor:
        """The log of a softmax over the values of actions, times its temperature: [B, actions]."""
        return TEMPERATURE * (quantiles.mean(1) / TEMPERATURE).log_softmax(-1)

    def next_return(target: Tensor, actor: Tensor, obs: Tensor) -> Tensor:
        """Of the action that the online network picks (double Q-learning), or of the target network's soft policy."""
        z = returns(target, obs)
        if config.munchausen:
            log_policy = policy(z)[:, None]
            return ((log_policy / TEMPERATURE).exp() * (z - log_policy)).sum(-1)
        best = returns(actor, obs).mean(1).argmax(-1, keepdim=True)
        return gather_action(z, best[:, None].expand(-1, z.shape[1], -1))

    def critic_loss(
        critic: Tensor, target: Tensor, actor: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Of the distance to the returns that the target network expects."""
        reward = batch.reward
        if config.munchausen:
            likely = gather_action(policy(returns(target, batch.obs)), batch.action)
            reward = reward + config.munchausen * likely.clamp(LEAST_BONUS, 0)
        next_z = next_return(target, actor, batch.next_obs)
        goal = (reward[:, None] + batch.discount[:, None] * next_z).detach()
        action = batch.action[:, None].expand(-1, goal.shape[1], -1)
        z = gather_action(returns(critic, batch.obs), action)  # [B, quantiles]
        if config.quantiles:
            errors = quantile_loss(z, goal)
        else:
            errors = smooth_l1_loss(z, goal, reduction="none").squeeze(1)
        loss = (batch.weight * errors).mean()
        return loss, {"critic_loss": loss.detach(), "q_mean": z.detach().mean()}

    return Algorithm(
        config=config,
        spec=spec,
        actor_shapes=Shapes(()),
        critic_shapes=network.shapes,
        policy_size=network.shapes.size,
        init=init,
        critic_loss=critic_loss,
    )
