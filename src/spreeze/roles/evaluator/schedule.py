"""When the next evaluation is due."""

from __future__ import annotations

import math

from spreeze.roles.context import Context
from spreeze.settings.config import resolved
from spreeze.wires.weights import Stamp

NOTICE_S, NOTICE_SHARE = 5.0, 0.05
"""A target is noticed within so many seconds, or within this share of the time since the command."""
REST = 2.0
"""Even so, evaluations begin no more often than every `REST` times as long as they take."""


class Schedule:
    """Decides when a policy is evaluated: by seconds, env steps, updates, and the time that evaluations may take."""

    def __init__(self, ctx: Context, share: float) -> None:
        """`share`: the largest share of time spent evaluating."""
        self._ctx, self._share = ctx, share
        self._last, self._next_s = Stamp(), 0.0

    def is_due(self, stamp: Stamp, is_asked: bool = False) -> bool:
        """Whether to evaluate the policy with this stamp now; `is_asked`: a callback wants it."""
        if stamp.version in (0, 1):  # the untrained policy is not worth an evaluation
            return False
        if is_asked:
            return True
        if stamp.version == self._last.version or self._ctx.now() < self._next_s:
            return False
        config, last = self._ctx.config.evaluator, self._last
        return _passed(config.every_steps, last.env_steps, stamp.env_steps) and _passed(
            config.every_updates, last.updates, stamp.updates
        )

    def ended(self, stamp: Stamp, began_s: float) -> None:
        """An evaluation of the policy with this stamp, which began then, has ended."""
        took_s = self._ctx.now() - began_s
        pause_s = max(
            resolved(self._ctx.config.evaluator.every_s), _pause(self._ctx, took_s, self._share)
        )
        self._last, self._next_s = stamp, began_s + pause_s


def _pause(ctx: Context, took_s: float, share: float) -> float:
    """Seconds between the starts of two evaluations.

    A rare evaluation reports a target late, frequent ones slow learning down. With pauses of k * sqrt(t),
    both together delay the end of a run least if k = sqrt(2 * took_s), whenever it ends.
    """
    learning_s = ctx.now() - (ctx.control.first_update_s or ctx.now())
    pause_s = min(took_s / share, math.sqrt(2 * took_s * learning_s))
    if ctx.config.target is None:
        return pause_s
    # A policy that is good just after an evaluation has begun is noticed when the next one ends.
    notice_s = max(NOTICE_S, NOTICE_SHARE * ctx.now()) - took_s
    return min(pause_s, max(notice_s, REST * took_s))


def _passed(every: int | None, last: int, now: int) -> bool:
    """Whether a multiple of `every` lies between the two, so that the runs of all seeds are evaluated at the same counts."""
    return every is None or now // every != last // every
