"""The policy that is evaluated: an exponential moving average over the newest policies.

A single policy may be a bad one among good neighbours; the average is better and steadier.
"""

from __future__ import annotations

import numpy as np

from spreeze.roles.context import Context
from spreeze.wires.weights import Stamp

FETCH_EVERY_S = 0.05


class PolicyAverage:
    """An exponential moving average over the last part of all updates so far."""

    def __init__(self, ctx: Context, size: int) -> None:
        """Average policies of `size` numbers."""
        self._ctx = ctx
        self._newest = np.zeros(size, np.float32)
        self._next_fetch_s = 0.0
        self._updates_averaged = 0
        """Updates since the average started; it covers no more than these."""
        self.vector = np.zeros(size, np.float32)
        self.stamp = Stamp()
        """The stamp of the newest policy in the average."""

    def refresh(self) -> None:
        """Add the newest policy. Call it often: it returns at once unless `FETCH_EVERY_S` have passed."""
        if self._ctx.now() < self._next_fetch_s:
            return
        self._next_fetch_s = self._ctx.now() + FETCH_EVERY_S
        if (stamp := self._ctx.weights.fetch(self._newest, self.stamp.version)) is None:
            return
        if (weight := self._weight(stamp)) < 1:
            self._newest -= self.vector
            self._newest *= weight
            self._newest += self.vector
        self.vector[:] = self._newest
        self.stamp = stamp

    def _weight(self, stamp: Stamp) -> float:
        """How much the newest policy counts: it stands for all updates since the last fetch."""
        config, updates = self._ctx.config, stamp.updates
        # A young policy improves so fast that older ones would only pull the average down.
        age = min(1.0, updates / config.hyper.young_updates())
        covered = config.evaluator.average * age * updates
        since = updates - self.stamp.updates
        if self.stamp.version <= 1 or not 0 < since < covered:
            # The first policy that has learned anything, or one of a learner that started again.
            self._updates_averaged = 0
            return 1.0
        self._updates_averaged += since
        return since / min(covered, self._updates_averaged)
