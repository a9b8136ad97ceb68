"""Catch: a game of pixels without dependencies, for tests of learning from images."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

SIDE, CELL = 84, 7
CELLS = SIDE // CELL
REACH = 1
"""Cells of the paddle on each side of its middle."""
BALLS = 10


class Catch(gym.Env[NDArray[np.uint8], np.int64]):
    """Balls fall, one at a time; move the paddle under them. 84 x 84 grey pixels; left, stay or right.

    A ball that is caught is worth 1, one that is missed -1. An episode has ten balls, so a perfect return is 10. Each
    ball drifts to one side, which a single frame does not show.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        """Make the spaces."""
        self.render_mode = render_mode
        self.observation_space = Box(0, 255, (SIDE, SIDE, 1), np.uint8)
        self.action_space = Discrete(3)
        self._ball, self._drift, self._paddle = [0, 0], 0, CELLS // 2
        self._balls = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self._paddle, self._balls = CELLS // 2, 0
        self._drop()
        return self._picture(), {}

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Move the paddle and the ball by a cell."""
        self._paddle = min(max(self._paddle + int(action) - 1, 0), CELLS - 1)
        row, column = self._ball
        self._ball = [row + 1, min(max(column + self._drift, 0), CELLS - 1)]
        reward = 0.0
        if self._ball[0] == CELLS - 1:
            reward = 1.0 if abs(self._ball[1] - self._paddle) <= REACH else -1.0
            self._balls += 1
            self._drop()
        return self._picture(), reward, self._balls >= BALLS, False, {}

    def render(self) -> NDArray[np.uint8]:
        """The picture in colour."""
        return np.repeat(self._picture(), 3, axis=2)

    def _drop(self) -> None:
        self._ball = [0, int(self.np_random.integers(CELLS))]
        self._drift = int(self.np_random.integers(-1, 2))

    def _picture(self) -> NDArray[np.uint8]:
        picture = np.zeros((SIDE, SIDE, 1), np.uint8)
        top, left = (CELL * cell for cell in self._ball)
        picture[top : top + CELL, left : left + CELL] = 255
        left, right = max(self._paddle - REACH, 0), self._paddle + REACH + 1
        picture[-CELL:, CELL * left : CELL * right] = 160
        return picture
