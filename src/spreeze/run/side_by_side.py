"""Several runs on one machine: how many of them train at a time."""

from __future__ import annotations

from itertools import pairwise

from spreeze.machine.facts import Machine, learns_on_gpu
from spreeze.settings.config import Config

RUN_CORES, RUN_BYTES, RUN_GPU_BYTES = 4, 8 << 30, 8 << 30
"""What a run needs to be about as fast as alone: with fewer cores, its learner has none for itself."""


def runs_at_once(config: Config, num_runs: int, machine: Machine) -> tuple[int, str]:
    """How many of the runs train side by side, and why not more."""
    cores = 1 if config.serial else RUN_CORES
    held = {
        f"{machine.cores} cores, {cores} for each": machine.cores // cores,
        f"{_gib(machine.memory_bytes)} of free memory, {_gib(RUN_BYTES)} for each": (
            machine.memory_bytes // RUN_BYTES
        ),
    }
    if learns_on_gpu(config.device, machine.gpus) and machine.gpus:
        free = min(gpu.memory_bytes for gpu in machine.gpus)
        held[f"{_gib(free)} of free GPU memory, {_gib(RUN_GPU_BYTES)} for each"] = (
            free // RUN_GPU_BYTES
        )
    reason = min(held, key=lambda name: held[name])
    return max(1, min(held[reason], num_runs)), reason


def share_cores(cores: list[int], num_runs: int) -> list[list[int]]:
    """The cores of each of the runs that train at a time; as many for each, but for the rest."""
    edges = [i * len(cores) // num_runs for i in range(num_runs + 1)]
    return [cores[a:b] for a, b in pairwise(edges)]


def _gib(size: int) -> str:
    return f"{size / 2**30:.0f} GiB"
