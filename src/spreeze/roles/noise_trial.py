"""When exploration noise lasts: where the first episodes all return about the same, until it lowers returns.

Where rewards are rare, noise that pushes in one direction for many steps finds the first of them, and a policy that
has seen none only stands in its way. Where every action is rewarded, noise spoils episodes. A sampler decides by the
returns of its environments.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from enum import Enum

import numpy as np

from spreeze.envs.episodes import Episode
from spreeze.policy import LastingNoise, Policy

FEWEST, FIRST, NEWEST = 4, 8, 32
"""Episodes that are looked at: at the start one of every second environment, within these bounds; later the newest
with each kind of noise."""
FLAT = 0.035
"""Spread of the middle half of returns that are about the same, as a share of their size. It is 0.02 to 0.03 on
MountainCarContinuous-v0, where rewards are rare, and 0.03 to 0.05 on Pusher-v5, where every step has one."""
SURE, CLEARLY = 3.0, 0.25
"""Noise that lasts ends if it is worse by so many standard errors and by this share of the usual return."""


class Phase(Enum):
    """How far the trial is."""

    FIRST_EPISODES = "first episodes"
    LASTING = "lasting"
    OVER = "over"


class NoiseTrial:
    """Decides which environments of a sampler explore with noise that lasts."""

    def __init__(
        self, policy: Policy, num_envs: int, when: LastingNoise, colour: float, restarted: bool
    ) -> None:
        """After a restart, returns say nothing about rare rewards any more."""
        self._policy, self._colour = policy, colour
        self._half = np.arange(1, num_envs, 2)
        self._enough = min(max(num_envs // 2, FEWEST), FIRST)
        self._coloured: deque[float] = deque(maxlen=NEWEST)
        self._white: deque[float] = deque(maxlen=NEWEST)
        self._usual = 0.0
        self.phase = Phase.OVER
        if when == "always":
            policy.set_noise_colour(colour, self._half)
        elif when == "flat" and not restarted:
            self.phase = Phase.FIRST_EPISODES

    def judge(self, episodes: Sequence[Episode], envs: Sequence[int]) -> bool:
        """Take in episodes that have ended in these environments; returns whether the phase has changed."""
        if self.phase is Phase.OVER:
            return False
        lasting = self.phase is Phase.LASTING
        for (total, *_), env in zip(episodes, envs, strict=True):
            (self._coloured if lasting and env % 2 else self._white).append(total)
        if len(self._white) < self._enough:
            return False
        if not lasting:
            low, middle, high = np.quantile(self._white, (0.25, 0.5, 0.75))
            self._usual = abs(float(middle))
            flat = (high - low) / 2 <= FLAT * self._usual
            self._enter(Phase.LASTING if flat else Phase.OVER)
        elif len(self._coloured) >= self._enough and self._is_worse():
            self._enter(Phase.OVER)
        else:
            return False
        return True

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._white.clear()
        self._coloured.clear()
        envs = self._half[:0] if phase is Phase.OVER else self._half
        self._policy.set_noise_colour(self._colour, envs)

    def _is_worse(self) -> bool:
        """Whether noise that lasts gives clearly lower returns."""
        white, coloured = np.array(self._white), np.array(self._coloured)
        error = math.sqrt(white.var(ddof=1) / len(white) + coloured.var(ddof=1) / len(coloured))
        loss = float(white.mean() - coloured.mean())
        return loss > max(SURE * error, CLEARLY * max(self._usual, abs(float(white.mean()))))
