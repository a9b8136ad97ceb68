"""What one step of several environments gave."""

from __future__ import annotations

from typing import Any

import numpy as np


class StepResult:
    """The result of one step of several environments; the arrays are reused from step to step."""

    def __init__(self, num_envs: int, obs_size: int) -> None:
        """Allocate the arrays."""
        self.numbers = np.zeros(num_envs * (obs_size + 1), np.float32)
        """The memory of `next_obs` and `reward`, to be checked at once."""
        self.next_obs = self.numbers[num_envs:].reshape(num_envs, obs_size)
        """Where the action led, even if that was the last observation of an episode."""
        self.obs = np.zeros((num_envs, obs_size), np.float32)
        """What to act on next: `next_obs`, or the first observation of the next episode."""
        self.reward = self.numbers[:num_envs]
        self.terminated = np.zeros(num_envs, np.bool_)
        self.truncated = np.zeros(num_envs, np.bool_)
        self.valid = np.ones(num_envs, np.bool_)
        """False where this was not a transition: the fake step of an auto-reset, or a step that went wrong."""
        self.infos: dict[int, Any] = {}
        """What environments said in `info`, where an episode ended in this step."""
        self.any_done_or_invalid = False
        """Whether any episode ended or any step was invalid. Mostly false, and then callers skip those checks."""

    def refuse(self, i: int | slice) -> None:
        """Nothing that this environment returned is used."""
        self.valid[i] = self.terminated[i] = self.truncated[i] = False
        self.next_obs[i] = self.reward[i] = 0.0
