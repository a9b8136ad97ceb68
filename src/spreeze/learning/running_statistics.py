"""Running statistics that normalise observations and rewards. The update itself maintains them.

They are one flat vector, [count | mean of observations | variance of observations | mean, variance and
largest absolute value of discounted returns], updated from some rows of every batch. So they are part of
the training state, of checkpoints and of the compiled update. The policy gets the part that it needs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spreeze.networks import ranks
from spreeze.rows import Batch
from spreeze.spec import LARGEST_RETURN, OBS_CLIP

MIN_STD = 1e-3
MAX_VALUE = 1e15
"""Clamp: squaring larger values overflows the statistics permanently."""
ADOPTED_ROWS = 100_000.0
"""As how many rows statistics of another run count, where those of returns are new."""
STEPS_PER_BATCH = 1024
"""About how many steps of a batch are used, spread evenly over it. All steps of a large batch would cost a
tenth of an update."""


def init_statistics(size: int) -> Tensor:
    """Statistics that have seen nothing: mean 0, variance 1, for this many numbers of observations."""
    zeros, ones = torch.zeros(size), torch.ones(size)
    return torch.cat([torch.zeros(1), zeros, ones, torch.tensor([0.0, 1.0, 0.0])])


def adopted_statistics(mean: Tensor, scale: Tensor) -> Tensor:
    """Statistics whose observations a policy has brought with it: they count as some rows."""
    stats = init_statistics(len(mean))
    var = (1 / scale.square() - 1e-8).clamp(min=0)
    return torch.cat([torch.full((1,), ADOPTED_ROWS), mean, var, stats[-3:]])


def _split(stats: Tensor) -> tuple[Tensor, ...]:
    size = (len(stats) - 4) // 2
    return torch.split(stats, [1, size, size, 1, 1, 1])


def update_statistics(stats: Tensor, batch: Batch, memory: float) -> Tensor:
    """The statistics after one more batch. After `memory` rows, old rows start to fade."""
    count, mean, var, return_mean, return_var, largest = _split(stats)
    numbers = batch.obs[..., batch.obs.shape[-1] - len(mean) :]  # pixels come before them
    rows = _subsample(numbers.flatten(0, -2)).clamp(-MAX_VALUE, MAX_VALUE)
    seen = len(rows) * ranks.num_ranks()
    total = count + seen
    if len(mean):
        mean, var = _merge(mean, var, rows, seen / total)
    past = _subsample(batch.past_return.reshape(-1, 1)).clamp(-MAX_VALUE, MAX_VALUE)
    if len(past):
        return_mean, return_var = _merge(return_mean, return_var, past, seen / total)
        largest = torch.maximum(largest, ranks.largest(past.abs().amax(0)))
    count = total.clamp(max=memory)
    return torch.cat([count, mean, var, return_mean, return_var, largest])


def _subsample(rows: Tensor) -> Tensor:
    """Every n-th row. n is odd, because segments have an even length and all their steps should count."""
    return rows[:: len(rows) * ranks.num_ranks() // STEPS_PER_BATCH | 1]


def _merge(mean: Tensor, var: Tensor, rows: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of old and new rows together; `share` is the share of the new ones."""
    new_mean, new_var = ranks.pooled(rows.mean(0), rows.var(0, correction=0))
    step = new_mean - mean
    within = torch.lerp(var, new_var, share)
    # Clamp: rounding may put the share slightly above 1, and a variance of 0 slightly below 0.
    return mean + share * step, (within + share * (1 - share) * step.square()).clamp(min=0)


def normalise_batch(stats: Tensor, batch: Batch, obs: bool, reward: bool) -> Batch:
    """The batch with its observations, its rewards or both normalised."""
    if obs:
        mean, scale = policy_statistics(stats).chunk(2)
        batch = batch._replace(
            obs=normalise_numbers(batch.obs, mean, scale),
            next_obs=normalise_numbers(batch.next_obs, mean, scale),
        )
    if reward:
        _, _, _, _, var, largest = _split(stats)
        spread = torch.maximum(var.sqrt(), largest / LARGEST_RETURN).clamp(min=MIN_STD)
        batch = batch._replace(reward=batch.reward / spread)
    return batch


def normalise_numbers(obs: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Observations whose numbers are normalised; pixels, which come first, are as they were."""
    pixels, numbers = obs.tensor_split([obs.shape[-1] - len(mean)], -1)
    normalised = ((numbers - mean) * scale).clamp(-OBS_CLIP, OBS_CLIP)
    return normalised if pixels.shape[-1] == 0 else torch.cat([pixels, normalised], -1)


def policy_statistics(stats: Tensor) -> Tensor:
    """What the policy applies: mean and inverse standard deviation of observations."""
    _, mean, var, *_ = _split(stats)
    return torch.cat([mean, (var + 1e-8).rsqrt()])
