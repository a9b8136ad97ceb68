"""How far samplers may run ahead of the updates."""

from __future__ import annotations

NO_LIMIT = 2**62


def allowed_steps(warmup_rows: int, updates: int, fewest: float) -> int:
    """Env steps at which there are just `fewest` updates per step; the warm-up does not count."""
    return int(warmup_rows + updates / fewest) if fewest > 0 else NO_LIMIT


class SampleBudget:
    """How far samplers may go ahead of the updates. A ratio that is changed in mid-run holds from then on:

    for all steps so far, it would stop them for as long as updates are short of it.
    """

    def __init__(self, warmup_steps: int) -> None:
        """The first ratio counts from the warm-up."""
        self._fewest = 0.0
        self._steps, self._updates = warmup_steps, 0

    def allowed_steps(self, updates: int, fewest: float, steps: int) -> int:
        """Env steps that samplers may have made after so many updates; `steps` they have made."""
        if self._fewest > 0 and fewest not in (0.0, self._fewest):
            self._steps, self._updates = steps, updates
        self._fewest = fewest or self._fewest
        return allowed_steps(self._steps, updates - self._updates, fewest)
