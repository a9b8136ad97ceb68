"""What limits the speed of a run: one of its sides, the hardware or other programs."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from spreeze.run.cpu_meter import CpuUse

WAITING_PERCENT = 10.0
"""A role that waits less than this is not limited by the other side."""
OTHERS_SHARE = 0.15
"""Share of the CPUs that other programs must use to be the limit, when no CPU is idle."""


class Limit(StrEnum):
    """What limits a run; the values are those of `bottleneck_kind` in status.json."""

    STARTING = "starting"
    COLLECTING = "collecting"
    """Env steps are made, but there are too few for the first update."""
    SAMPLERS = "samplers"
    LEARNER = "learner"
    NOBODY_WAITS = "nobody_waits"
    """Samplers and learner are both busy: the hardware is the limit."""
    OTHERS = "others"
    """Other programs use CPUs that the run would use."""


class Bottleneck(NamedTuple):
    """What limits a run, and how much of its time the other side waits because of it."""

    kind: Limit
    waiting_percent: float = 0.0
    other_cores: float = 0.0
    """Cores that other programs use, and how many there are in all; where they are the limit."""
    cores: int = 0


STARTING = Bottleneck(Limit.STARTING)


def find_bottleneck(samplers_wait: float, learner_waits: float, cpu: CpuUse | None) -> Bottleneck:
    """Judge by the percentage of time that each side waits, once updates run, and by who uses the CPUs."""
    if cpu is not None and cpu.is_full and cpu.others >= OTHERS_SHARE * cpu.cpus:
        return Bottleneck(Limit.OTHERS, other_cores=cpu.others, cores=cpu.cpus)
    if learner_waits > max(samplers_wait, WAITING_PERCENT):
        return Bottleneck(Limit.SAMPLERS, learner_waits)
    if samplers_wait > WAITING_PERCENT:
        return Bottleneck(Limit.LEARNER, samplers_wait)
    return Bottleneck(Limit.NOBODY_WAITS)
