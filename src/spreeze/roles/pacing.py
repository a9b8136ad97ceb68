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


class Pace:
    """How far samplers and learner may be ahead of each other.

    Steps and updates count from where learning began. So after a restart or a resume neither side has
    to catch up with what the other did before. A ratio that changes during the run applies only to
    the steps after the change: applied to all steps so far, a higher one would stop the samplers until
    the updates have caught up. Both sides count from the same place, or each could wait for the other.
    """

    def __init__(self, steps: int, updates: int, max_updates_per_step: float) -> None:
        """Learning begins at so many env steps, and after so many updates."""
        self._steps, self._updates = steps, updates
        self._max_ratio, self._min_ratio = max_updates_per_step, 0.0

    def set_ratios(self, least: float, most: float, updates: int, steps: int) -> None:
        """Smallest and largest updates per env step from now on; 0: as before. Learner and samplers are here."""
        least, most = least or self._min_ratio, most or self._max_ratio
        changed = most != self._max_ratio or (self._min_ratio > 0 and least != self._min_ratio)
        if changed and updates > self._updates:
            self._steps, self._updates = steps, updates
        self._min_ratio, self._max_ratio = least, most

    def may_update(self, updates: int, steps: int) -> bool:
        """Whether the learner, after `updates`, may do another one; samplers are at `steps` now."""
        return updates - self._updates < self._max_ratio * max(steps - self._steps, 0)

    def allowed_steps(self, updates: int) -> int:
        """Env steps that samplers may reach after `updates`."""
        return allowed_steps(self._steps, updates - self._updates, self._min_ratio)


class LimitForecast:
    """Where the samplers' limit will be by the time that another machine hears of it.

    Told of the limit as it is, another machine would hear of it when the samplers beside the learner have reached
    it already, and would wait forever.
    """

    def __init__(self, ahead_s: float) -> None:
        """`ahead_s`: how much later orders are followed."""
        self._ahead_s, self._rate = ahead_s, 0.0
        self._seen: tuple[float, int] | None = None

    def of(self, limit: int, now_s: float) -> int:
        """The limit to tell, when it is `limit` now."""
        if not 0 < limit < NO_LIMIT:
            self._seen = None
            return limit
        then_s, then = self._seen or (now_s, limit)
        if self._seen is None or limit < then:
            self._seen, self._rate = (now_s, limit), 0.0
        elif now_s - then_s >= self._ahead_s:
            rate = (limit - then) / (now_s - then_s)
            self._rate = rate if self._rate == 0 else (self._rate + rate) / 2
            self._seen = now_s, limit
        return limit + int(self._rate * self._ahead_s)
