"""What the replay says about a run that does not learn: its rewards, actions and observations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from spreeze.learning.data_parallel.shards import AnyReplay
from spreeze.spec import EnvSpec

LOOKED_AT = 16_384
"""Newest rows of which actions and observations are looked at; rewards are of all rows."""
SATURATED = 0.99
"""Size of an action, of at most 1, from which it cannot grow any more."""
CONSTANT = 1e-6
"""Spread below which a number of the observation is constant."""


class Symptoms(NamedTuple):
    """Facts about the rows in the replay."""

    reward_low: float
    reward_high: float
    saturated: float
    """Share of the actions' numbers at their bounds; 0 with discrete actions."""
    obs_size: float
    """The largest root mean square of a number of the observation."""
    obs_ratio: float
    """The largest spread of a number of the observation, relative to the middle one."""
    terminated: float
    """Share of the rows that end an episode."""


def find_symptoms(replay: AnyReplay, spec: EnvSpec) -> Symptoms:
    """Look at the rows that have been written. This waits for the device, so call it rarely."""
    columns, film = replay.layout.columns(), replay.layout.film
    rows = replay.written
    some = replay.newest(LOOKED_AT if film is None else LOOKED_AT // film.steps).to(rows.device)
    discount = rows[:, columns["discount"]]
    reward = _whole_rewards(rows[:, columns["reward"]], discount)
    actions = some[:, columns["action"]]
    saturated = (actions.abs() > SATURATED).float().mean() * (not spec.discrete)
    ends = (discount == 0).float().mean()
    size, ratio = torch.zeros_like(ends), torch.ones_like(ends)  # pixels are of one scale
    if film is None:
        obs = some[:, columns["obs"]].reshape(-1, spec.obs_size)
        size, ratio = obs.square().mean(0).amax().sqrt(), _ratio(obs.std(0))
    facts = (reward.amin(), reward.amax(), saturated, size, ratio, ends)
    return Symptoms(*torch.stack(facts).tolist())


def _whole_rewards(reward: Tensor, discount: Tensor) -> Tensor:
    """Rewards without those of n-step returns that a time limit has cut short: they are smaller."""
    whole = discount.where(discount > 0, torch.inf).amin()
    return reward[(discount == 0) | (discount <= whole * 1.0001)]


def _ratio(spread: Tensor) -> Tensor:
    """The largest one over the middle one of those that are not constant."""
    middle = spread.where(spread > CONSTANT, torch.nan).nanmedian()
    return torch.nan_to_num(spread.amax() / middle, nan=1.0)
