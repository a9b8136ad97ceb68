"""Observations and rewards on a usual scale, by statistics that the update itself keeps.

They are one flat vector, [count | mean of observations | their variance | mean, variance and largest
size of discounted returns], updated from some rows of every batch. So they are part of the training state, of
checkpoints and of the compiled update; the policy gets the part that it needs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spreeze.rows import Batch
from spreeze.spec import LARGEST_RETURN, OBS_CLIP

SMALLEST_SPREAD = 1e-3
LARGEST = 1e15
"""What is larger counts as this: its square would be infinite, and statistics with it for ever."""
OBSERVED = 1024
"""About how many steps of a batch are looked at, evenly from all of it: to look at all of a large one costs
a tenth of an update."""


def fresh_statistics(obs_size: int) -> Tensor:
    """Of nothing yet: mean 0, variance 1."""
    zeros, ones = torch.zeros(obs_size), torch.ones(obs_size)
    return torch.cat([torch.zeros(1), zeros, ones, torch.tensor([0.0, 1.0, 0.0])])


def _split(stats: Tensor) -> tuple[Tensor, ...]:
    size = (len(stats) - 4) // 2
    return torch.split(stats, [1, size, size, 1, 1, 1])


def observe(stats: Tensor, batch: Batch, memory: float) -> Tensor:
    """The statistics with one more batch in them; after `memory` rows old ones begin to fade."""
    count, mean, var, return_mean, return_var, largest = _split(stats)
    rows = _some(batch.obs.reshape(-1, len(mean))).clamp(-LARGEST, LARGEST)
    total = count + len(rows)
    mean, var = _merge(mean, var, rows, len(rows) / total)
    past = _some(batch.past_return.reshape(-1, 1)).clamp(-LARGEST, LARGEST)
    if len(past):
        return_mean, return_var = _merge(return_mean, return_var, past, len(rows) / total)
        largest = torch.maximum(largest, past.abs().amax(0))
    count = total.clamp(max=memory)
    return torch.cat([count, mean, var, return_mean, return_var, largest])


def _some(rows: Tensor) -> Tensor:
    """Enough of them for statistics. Every so many, but an odd number: segments have an even one."""
    return rows[:: len(rows) // OBSERVED | 1]


def _merge(mean: Tensor, var: Tensor, rows: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of old and new rows together, the new ones being this share of all."""
    step = rows.mean(0) - mean
    within = torch.lerp(var, rows.var(0, correction=0), share)
    # Rounding may put a share of all a little over 1, and a variance of 0 a little below.
    return mean + share * step, (within + share * (1 - share) * step.square()).clamp(min=0)


def scaled(stats: Tensor, batch: Batch, obs: bool, reward: bool) -> Batch:
    """The batch with observations, rewards or both brought to scale."""
    if obs:
        mean, scale = policy_statistics(stats).chunk(2)
        batch = batch._replace(
            obs=((batch.obs - mean) * scale).clamp(-OBS_CLIP, OBS_CLIP),
            next_obs=((batch.next_obs - mean) * scale).clamp(-OBS_CLIP, OBS_CLIP),
        )
    if reward:
        _, _, _, _, var, largest = _split(stats)
        spread = torch.maximum(var.sqrt(), largest / LARGEST_RETURN).clamp(min=SMALLEST_SPREAD)
        batch = batch._replace(reward=batch.reward / spread)
    return batch


def policy_statistics(stats: Tensor) -> Tensor:
    """What the policy applies: mean and scale of observations."""
    _, mean, var, *_ = _split(stats)
    return torch.cat([mean, (var + 1e-8).rsqrt()])
