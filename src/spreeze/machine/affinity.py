"""Which cores a process runs on: the learner's, or all the others."""

from __future__ import annotations

import os

from spreeze.machine.facts import allowed_cores

_cores_of_others: list[int] = []
"""Set by `keep_to_cores`, for the whole process like the affinity itself. Once the learner is confined to
its cores, the kernel no longer tells it which other cores there are."""


def cores_beside(num_learner_cores: int) -> int:
    """Cores left to a process that keeps off the learner's cores, by affinity and CPU limit."""
    return min(len(os.sched_getaffinity(0)), max(1, allowed_cores() - num_learner_cores))


def keep_to_cores(learner: bool, num_learner_cores: int) -> None:
    """Confine this process to the learner's cores, or to the others."""
    cores = sorted(os.sched_getaffinity(0))
    own, others = cores[:num_learner_cores], cores[num_learner_cores:]
    if others:
        _cores_of_others[:] = others
        os.sched_setaffinity(0, own if learner else others)


def run_in_background(num_learner_cores: int = 0) -> None:
    """Run at the lowest priority and, if the learner has its own cores, keep off them."""
    if num_learner_cores:
        keep_to_cores(False, num_learner_cores)
    os.nice(19)


def other_cores() -> list[int]:
    """Cores that the learner leaves to others, or all cores of this process if nothing is confined."""
    return _cores_of_others or sorted(os.sched_getaffinity(0))
