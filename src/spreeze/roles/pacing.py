"""How far samplers may run ahead of the learner."""

from __future__ import annotations

from spreeze.settings.config import Config, resolved

NO_LIMIT = 2**62


def warmup_steps(config: Config) -> int:
    """Env steps before the first update: a row may be a segment of several."""
    return resolved(config.learner.warmup_rows) * config.hyper.row_format().segment


def allowed_steps(warmup_steps: int, updates: int, min_updates_per_step: float) -> int:
    """Env steps that these updates allow at a minimum ratio; the warm-up comes on top."""
    if min_updates_per_step <= 0:
        return NO_LIMIT
    return int(warmup_steps + updates / min_updates_per_step)


class SampleBudget:
    """The env steps that samplers may reach.

    A ratio that changes during the run applies only to the steps after the change. Applied to all
    steps so far, a higher one would stop the samplers until the updates have caught up.
    """

    def __init__(self, warmup_steps: int) -> None:
        """The first ratio counts from the end of the warm-up."""
        self._ratio = 0.0
        self._steps, self._updates = warmup_steps, 0

    def allowed_steps(self, updates: int, min_updates_per_step: float, steps: int) -> int:
        """Env steps that samplers may reach after `updates`; they are at `steps` now."""
        if self._ratio > 0 and min_updates_per_step not in (0.0, self._ratio):
            self._steps, self._updates = steps, updates
        self._ratio = min_updates_per_step or self._ratio
        return allowed_steps(self._steps, updates - self._updates, min_updates_per_step)
