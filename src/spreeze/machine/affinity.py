"""Which cores a process runs on: the learner's own, or all the others."""

from __future__ import annotations

import os

from spreeze.machine.facts import allowed_cores

_OTHER_CORES: list[int] = []


def cores_beside(num_learner_cores: int) -> int:
    """Cores that a learner with cores of its own leaves to a process that keeps off them."""
    return min(len(os.sched_getaffinity(0)), max(1, allowed_cores() - num_learner_cores))


def keep_to_cores(learner: bool, num_learner_cores: int) -> None:
    """Let this process run on the learner's cores only, or on the others."""
    cores = sorted(os.sched_getaffinity(0))
    own, others = cores[:num_learner_cores], cores[num_learner_cores:]
    if others:
        _OTHER_CORES.extend(others)
        os.sched_setaffinity(0, own if learner else others)


def run_in_background(num_learner_cores: int = 0) -> None:
    """Take only what others leave: the lowest priority, and none of the cores that the learner has alone."""
    if num_learner_cores:
        keep_to_cores(False, num_learner_cores)
    os.nice(19)


def other_cores() -> list[int]:
    """Cores that the learner leaves to others; all of this process if it has none of its own."""
    return _OTHER_CORES or sorted(os.sched_getaffinity(0))
