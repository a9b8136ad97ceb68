"""Asynchronous proximal policy optimisation: PPO (arXiv 1707.06347) with V-trace (1802.01561).

A row is a segment of steps with the log-probability of each action. Updates draw from the newest segments
only. Segments of an older policy are corrected: V-trace corrects the advantages, and PPO clips the ratio
to the policy that acted. With data from the current policy, both reduce to plain PPO with GAE.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spreeze.algos.base import AlgoConfig, Algorithm, Metrics
from spreeze.algos.schedules import Schedule, scheduled
from spreeze.knobs import Effect, knob
from spreeze.policy import Head
from spreeze.rows import RowFormat

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from spreeze.networks import Arithmetic, Network, Shapes
    from spreeze.rows import Batch
    from spreeze.spec import EnvSpec

    Values = Callable[[Tensor, Tensor], Tensor]
    LogProb = Callable[[Tensor, Batch], tuple[Tensor, Tensor]]
    Advantages = Callable[[Tensor, Tensor, Batch], tuple[Tensor, Tensor]]

SMALLEST_ADVANTAGE = 0.05
"""Smallest standard deviation that advantages of normalised rewards are divided by. Below it they are noise:
in a task that only punishes, before the first success, scaling them up would move the policy at random."""


@dataclass(frozen=True, kw_only=True)
class PPOConfig(AlgoConfig):
    """Asynchronous proximal policy optimisation."""

    max_grad_norm: float | None = 0.5
    normalise_obs: bool = True
    normalise_reward: bool = True
    statistics_rows: int = 1_000_000
    segment: int = knob(
        64, "Env steps per segment, the rows that PPO learns from.", low=2, high=1024
    )
    max_reuse: float = knob(
        8.0, "How often each env step may be learned from.", low=0.01, high=1000
    )
    gae_lambda: float = knob(0.95, "Lambda of generalised advantage estimation.", low=0, high=1)
    clip: float = knob(0.2, "Clipping range of the probability ratio.", low=1e-3, high=100)
    entropy: float = knob(0.01, "Weight of the entropy bonus.", low=0, high=100)
    entropy_schedule: Schedule = knob(
        "constant",
        "How the weight of the entropy bonus gets to --algo.entropy-end, over the run's --steps or --time.",
        effect=Effect.RATE,
    )
    entropy_end: float = knob(
        0.0,
        "Weight of the entropy bonus at the end of its schedule.",
        low=0,
        high=100,
        effect=Effect.RATE,
    )

    def head(self, spec: EnvSpec) -> Head:
        """Probabilities of actions, or a Gaussian with a learned standard deviation."""
        return "categorical" if spec.discrete else "gaussian"

    def row_format(self) -> RowFormat:
        """Segments."""
        return replace(super().row_format(), segment=self.segment)

    def explore_more(self) -> str:
        """A policy that stays random for longer."""
        return "--algo.entropy 0.05"

    def reuse(self) -> float:
        """As the knob says."""
        return self.max_reuse

    def entropy_shift_at(self, share: float) -> float:
        """Of the weight of the bonus."""
        now = scheduled(self.entropy_schedule, self.entropy, self.entropy_end, share)
        return now - self.entropy

    def young_updates(self) -> int:
        """Few: an update contains many steps."""
        return 2000


def build(config: PPOConfig, spec: EnvSpec, arithmetic: Arithmetic = "float32") -> Algorithm:
    """PPO for one environment."""
    import torch

    from spreeze.networks import Shapes

    policy = config.policy_network(spec, arithmetic)
    value = config.critic_network(spec, arithmetic, 1, with_action=False)
    log_std_shape = () if spec.discrete else (("log_std", (spec.action_size,)),)
    actor_shapes = Shapes((*policy.shapes.items, *log_std_shape))

    def init(generator: Generator) -> tuple[Tensor, Tensor]:
        network = policy.init(generator)
        if not config.has_policy_module:  # of one, the module's own initialisation counts
            last = Shapes(policy.shapes.items[-2:]).size
            network[-last:] *= 0.01  # start with nearly equal action probabilities
        log_std = torch.full((actor_shapes.size - len(network),), -0.5)
        return torch.cat([network, log_std]), value.init(generator)

    def values(critic: Tensor, obs: Tensor) -> Tensor:
        return value(critic, obs.flatten(0, 1)).view(obs.shape[:2])  # [B, T]

    critic_loss, actor_loss = _make_losses(
        config, values, _make_log_prob(spec, policy, actor_shapes), _make_v_trace(config, values)
    )
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


def _make_log_prob(spec: EnvSpec, policy: Network, actor_shapes: Shapes) -> LogProb:
    import torch

    from spreeze.networks import gather_action

    def log_prob(actor: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Log-probability of the stored actions, and the policy's entropy: [B, T] each."""
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

    return log_prob


def _make_v_trace(config: PPOConfig, values: Values) -> Advantages:
    import torch

    def discounted_sums(x: Tensor, factor: Tensor) -> Tensor:
        """y[t] = x[t] + factor[t] * y[t + 1] along the last dimension, in log2(T) doubling steps."""
        reach = 1
        while reach < x.shape[-1]:
            pad = torch.zeros_like(x[:, :reach])
            x = x + factor * torch.cat([x[:, reach:], pad], 1)
            factor = factor * torch.cat([factor[:, reach:], pad], 1)
            reach *= 2
        return x

    def advantages(critic: Tensor, ratio: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Advantages of the actions, and the corrections to the values. [B, T] each."""
        v, next_v = values(critic, batch.obs), values(critic, batch.next_obs)
        step = batch.reward + batch.discount * next_v - v
        trace = ratio.clamp(max=1)
        onward = batch.discount * config.gae_lambda * (1 - batch.ended)
        correction = discounted_sums(trace * step, trace * onward)
        following = torch.cat([correction[:, 1:], torch.zeros_like(step[:, :1])], 1)
        return step + onward * following, correction

    return advantages


def _make_losses(
    config: PPOConfig, values: Values, log_prob: LogProb, advantages: Advantages
) -> tuple[Callable[..., tuple[Tensor, Metrics]], Callable[..., tuple[Tensor, Metrics]]]:
    import torch

    from spreeze.networks import mean_and_std

    smallest_std = SMALLEST_ADVANTAGE if config.normalise_reward else 1e-6

    def critic_loss(
        critic: Tensor, target: Tensor, actor: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Values towards their V-trace targets."""
        ratio = (log_prob(actor, batch)[0] - batch.log_prob).exp()
        _, correction = advantages(target, ratio, batch)
        goal = (values(target, batch.obs) + correction).detach()
        loss = 0.5 * (values(critic, batch.obs) - goal).square().mean()
        return loss, {"critic_loss": loss.detach(), "value_mean": goal.mean()}

    def actor_loss(
        actor: Tensor, critic: Tensor, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Eq. 7 of PPO, relative to the policy that acted."""
        now, entropy = log_prob(actor, batch)
        ratio = (now - batch.log_prob).exp()
        advantage, _ = advantages(critic, ratio.detach(), batch)
        mean, std = mean_and_std(advantage)
        advantage = ((advantage - mean) / std.clamp(min=smallest_std)).detach()
        clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
        surrogate = torch.minimum(ratio * advantage, clipped * advantage).mean()
        weight = config.entropy + batch.entropy_shift
        loss = -surrogate - (weight * entropy.mean(-1)).mean()
        return loss, {
            "actor_loss": loss.detach(),
            "entropy": entropy.detach().mean(),
            "clip_fraction": (ratio != clipped).float().mean(),
        }

    return critic_loss, actor_loss
