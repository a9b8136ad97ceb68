"""The policy that is evaluated: an exponential average over the newest ones."""

from __future__ import annotations

import numpy as np

from spreeze.roles.context import Context
from spreeze.wires.weights import Stamp

LOOK_EVERY_S = 0.05


class Average:
    """The policy averaged over the last part of all updates so far, older ones counting less and less."""

    def __init__(self, ctx: Context, size: int) -> None:
        """Average policies of `size` numbers."""
        self._ctx = ctx
        self._spare = np.zeros(size, np.float32)
        self._next_s = 0.0
        self._span = 0
        """Updates that the average stands for, as long as these are less than it may cover."""
        self.vector = np.zeros(size, np.float32)
        self.stamp = Stamp()
        """Of the newest policy in it."""

    def look(self) -> None:
        """Take in what is new; to be called often, it does something now and then."""
        if self._ctx.now() < self._next_s:
            return
        self._next_s = self._ctx.now() + LOOK_EVERY_S
        if (stamp := self._ctx.weights.fetch(self._spare, self.stamp.version)) is None:
            return
        if (weight := self._weight(stamp)) < 1:
            self._spare -= self.vector
            self._spare *= weight
            self._spare += self.vector
        self.vector[:] = self._spare
        self.stamp = stamp

    def _weight(self, stamp: Stamp) -> float:
        """How much the newest policy counts: it stands for all updates since the last look."""
        config, updates = self._ctx.config, stamp.updates
        # Less while it is young: then every policy is far better than the ones before.
        age = min(1.0, updates / config.hyper.young_updates())
        covered = config.evaluator.average * age * updates
        since = updates - self.stamp.updates
        if self.stamp.version <= 1 or not 0 < since < covered:
            self._span = 0  # the first that has learned, or of a learner that had to begin again
            return 1.0
        self._span += since
        return since / min(covered, self._span)
