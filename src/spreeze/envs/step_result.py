"""What one step of several environments gave."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spreeze.images import FrameStack
from spreeze.spec import EnvSpec


class StepResult:
    """The result of one step of several environments; the arrays are reused from step to step."""

    def __init__(self, num_envs: int, spec: EnvSpec) -> None:
        """Allocate the arrays."""
        width, images = spec.obs_width, bool(spec.images)
        self.numbers = np.zeros(num_envs * (1 if images else width + 1), np.float32)
        """The memory of `reward`, and of `next_obs` if it has numbers, to be checked at once."""
        self.next_obs: NDArray[Any] = (
            np.zeros((num_envs, width), np.uint8)
            if images
            else self.numbers[num_envs:].reshape(num_envs, width)
        )
        """Where the action led, even if that was the last observation of an episode. With images, frames."""
        self.obs: NDArray[Any] = np.zeros_like(self.next_obs)
        """Where the environments are now: at `next_obs`, or at the first observation of the next episode."""
        self._stack = FrameStack(num_envs, spec.frames) if images else None
        self.reward = self.numbers[:num_envs]
        self.terminated = np.zeros(num_envs, np.bool_)
        self.truncated = np.zeros(num_envs, np.bool_)
        self.valid = np.ones(num_envs, np.bool_)
        """False where this was not a transition: the fake step of an auto-reset, or a step that went wrong."""
        self.infos: dict[int, Any] = {}
        """What environments said in `info`, where an episode ended in this step."""
        self.any_done_or_invalid = False
        """Whether any episode ended or any step was invalid. Mostly false, and then callers skip those checks."""

    def seen(self, restarted: bool = False) -> NDArray[Any]:
        """What to act on: `obs`, or the stacks that end with its frames. Call it once after each reset or step."""
        if self._stack is None:
            return self.obs
        return self._stack.push(self.obs, None if restarted else self.ended)

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Where `obs` does not follow the observation before: an episode has ended, or this was no transition."""
        ended: NDArray[np.bool_] = self.terminated | self.truncated | ~self.valid
        return ended

    def refuse(self, i: int | slice) -> None:
        """Nothing that this environment returned is used."""
        self.valid[i] = self.terminated[i] = self.truncated[i] = False
        self.next_obs[i] = self.reward[i] = 0.0
