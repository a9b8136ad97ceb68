"""Proximal policy optimisation for samplers that never wait: PPO (arXiv 1707.06347) with V-trace (1802.01561).

A row is a segment of steps with how likely each action was. Updates draw from the newest segments
only; what their policy did otherwise than today's is corrected: advantages by V-trace, the policy's
step by PPO's clip around the policy that acted. With today's policy both are plain PPO with GAE.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spreeze.algos.base import AlgoConfig, Algorithm, Metrics
from spreeze.policy import Head
from spreeze.rows import RowFormat

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from spreeze.networks import Arithmetic
    from spreeze.rows import Batch
    from spreeze.spec import EnvSpec


SMALLEST_ADVANTAGE = 0.05
"""Spread below which advantages of scaled rewards are noise, not to be blown up to the usual size: before
the first success of a task that is all punishment they would drive the policy anywhere."""


@dataclass(frozen=True, kw_only=True)
class PPOConfig(AlgoConfig):
    """Asynchronous proximal policy optimisation."""

    lr: float = 1e-3
    """Adam step size."""
    max_grad_norm: float | None = 0.5
    """Longer gradients of a network are cut to this length. None: they stay as they are."""
    normalise_obs: bool = True
    """Bring observations to mean 0 and spread 1; the policy keeps the running statistics."""
    normalise_reward: bool = True
    """Divide rewards by the running spread of discounted returns."""
    statistics_rows: int = 1_000_000
    """Rows after which these statistics begin to forget: it learns from the newest policy alone."""
    segment: int = 16
    """Env steps in one row."""
    max_reuse: float = 8.0
    """How often a step is learned from, at most."""
    gae_lambda: float = 0.95
    """How far advantages look beyond the next value."""
    clip: float = 0.2
    """How far one update may move the probability of an action."""
    entropy: float = 0.01
    """Weight of the entropy in the policy's loss."""

    def head(self, spec: EnvSpec) -> Head:
        """Choices, or a Gaussian with a spread of its own."""
        return "categorical" if spec.discrete else "gaussian"

    def row_format(self) -> RowFormat:
        """Segments."""
        return replace(super().row_format(), segment=self.segment)

    def reuse(self) -> float:
        """The knob of that name."""
        return self.max_reuse

    def young_updates(self) -> int:
        """Few: each of them has many steps in it."""
        return 2000


def build(config: PPOConfig, spec: EnvSpec, arithmetic: Arithmetic = "float32") -> Algorithm:
    """PPO for one environment."""
    import torch

    from spreeze.networks import Shapes, gather_action, mlp_network

    policy = mlp_network(config.policy_form(spec).sizes(spec), arithmetic)
    value = mlp_network(
        [spec.obs_size, *config.widths(), 1], arithmetic, layer_norm=config.layer_norm
    )
    log_std_shape = () if spec.discrete else (("log_std", (spec.action_size,)),)
    actor_shapes = Shapes((*policy.shapes.items, *log_std_shape))
    smallest_spread = SMALLEST_ADVANTAGE if config.normalise_reward else 1e-6

    def init(generator: Generator) -> tuple[Tensor, Tensor]:
        network = policy.init(generator)
        last = Shapes(policy.shapes.items[-2:]).size
        network[-last:] *= 0.01  # all actions alike at first
        log_std = torch.full((actor_shapes.size - len(network),), -0.5)
        return torch.cat([network, log_std]), value.init(generator)

    def values(critic: Tensor, obs: Tensor) -> Tensor:
        return value(critic, obs.flatten(0, 1)).view(obs.shape[:2])  # [B, T]

    def log_prob(actor: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Of the stored actions, and the policy's entropy: [B, T] each."""
        network, log_std = torch.split(
            actor, [policy.shapes.size, actor_shapes.size - policy.shapes.size]
        )
        head = policy(network, batch.obs.flatten(0, 1)).view(*batch.obs.shape[:2], -1)
        if spec.discrete:
            logits = head.log_softmax(-1)
            return gather_action(logits, batch.action), -(logits.exp() * logits).sum(-1)
        noise = (batch.action - head) / log_std.exp()
        constant = 0.5 * math.log(2 * math.pi)
        density = (-0.5 * noise.square() - log_std - constant).sum(-1)
        return density, (log_std + 0.5 + constant).sum().expand_as(density)

    def advantages(critic: Tensor, ratio: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """V-trace: advantages of the actions, and what to add to the values. [B, T] each."""
        v, next_v = values(critic, batch.obs), values(critic, batch.next_obs)
        step = batch.reward + batch.discount * next_v - v
        trace = ratio.clamp(max=1)
        onward = batch.discount * config.gae_lambda * (1 - batch.ended)
        correction = sums_onward(trace * step, trace * onward)
        following = torch.cat([correction[:, 1:], torch.zeros_like(step[:, :1])], 1)
        return step + onward * following, correction

    def critic_loss(
        critic: Tensor, target: Tensor, actor: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Values towards what V-trace makes of them."""
        ratio = (log_prob(actor, batch)[0] - batch.log_prob).exp()
        _, correction = advantages(target, ratio, batch)
        goal = (values(target, batch.obs) + correction).detach()
        loss = 0.5 * (values(critic, batch.obs) - goal).square().mean()
        return loss, {"critic_loss": loss.detach(), "value_mean": goal.mean()}

    def actor_loss(
        actor: Tensor, critic: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Eq. 7 of PPO, around the policy that acted."""
        now, entropy = log_prob(actor, batch)
        ratio = (now - batch.log_prob).exp()
        advantage, _ = advantages(critic, ratio.detach(), batch)
        spread = advantage.std().clamp(min=smallest_spread)
        advantage = ((advantage - advantage.mean()) / spread).detach()
        clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
        surrogate = torch.minimum(ratio * advantage, clipped * advantage).mean()
        loss = -surrogate - config.entropy * entropy.mean()
        return loss, {
            "actor_loss": loss.detach(),
            "entropy": entropy.detach().mean(),
            "clip_fraction": (ratio != clipped).float().mean(),
        }

    def sums_onward(x: Tensor, factor: Tensor) -> Tensor:
        """y[t] = x[t] + factor[t] * y[t + 1] along the last dimension, in steps that double."""
        reach = 1
        while reach < x.shape[-1]:
            pad = torch.zeros_like(x[:, :reach])
            x = x + factor * torch.cat([x[:, reach:], pad], 1)
            factor = factor * torch.cat([factor[:, reach:], pad], 1)
            reach *= 2
        return x

    return Algorithm(
        config=config,
        spec=spec,
        actor_shapes=actor_shapes,
        critic_shapes=value.shapes,
        policy_size=actor_shapes.size,
        init=init,
        critic_loss=critic_loss,
        actor_loss=actor_loss,
    )
