"""Which side limits the speed of a run."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

WAITING_PERCENT = 10.0
"""A role that waits less than this is not limited by the other side."""


class Limit(StrEnum):
    """What limits a run; the values are those of `bottleneck_kind` in status.json."""

    STARTING = "starting"
    COLLECTING = "collecting"
    """Env steps are made, but there are too few for the first update."""
    SAMPLERS = "samplers"
    LEARNER = "learner"
    NOBODY_WAITS = "nobody_waits"
    """Samplers and learner are both busy: the hardware is the limit."""


class Bottleneck(NamedTuple):
    """What limits a run, and how much of its time the other side waits because of it."""

    kind: Limit
    waiting_percent: float = 0.0


STARTING = Bottleneck(Limit.STARTING)


def find_bottleneck(samplers_wait: float, learner_waits: float) -> Bottleneck:
    """Judge by the percentage of time that each side waits, once updates run."""
    if learner_waits > max(samplers_wait, WAITING_PERCENT):
        return Bottleneck(Limit.SAMPLERS, learner_waits)
    if samplers_wait > WAITING_PERCENT:
        return Bottleneck(Limit.LEARNER, samplers_wait)
    return Bottleneck(Limit.NOBODY_WAITS)
