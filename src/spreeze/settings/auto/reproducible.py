"""Reproducible runs: planned for one small machine, so that equal flags give equal settings everywhere.

The rules of the other modules then decide as they would on that machine. Whether the run fits on the real one is checked
as usual: a run that does not fit is refused, not changed.
"""

from __future__ import annotations

import dataclasses

from spreeze.machine.facts import Gpu, Machine
from spreeze.settings.auto.reason import Reason, Source
from spreeze.settings.auto.resolver import AutoResolver
from spreeze.spec import EnvSpec

CORES = 4
"""What a desktop has at least. On fewer cores, the fixed ratio of updates to env steps keeps the three samplers apart."""
MEMORY_BYTES, GPU_MEMORY_BYTES = 8 << 30, 8 << 30
"""Room for a replay of a million rows in most tasks, on the host and on a GPU."""


def fix_machine(resolver: AutoResolver, spec: EnvSpec, machine: Machine) -> tuple[EnvSpec, Machine]:
    """What to plan with in place of this machine and of the times that it measured.

    Only the GPUs' names and number are real, so that one which does not exist is still refused.
    """
    resolver.choose("device", "cpu", "on every machine; name a GPU to use it")
    if not resolver.config.tuner.off:
        why = Reason(Source.RULE, "nothing is measured, and nothing changes during the run")
        resolver.set("tuner.off", True, why)
    gpus = tuple(Gpu(gpu.name, GPU_MEMORY_BYTES) for gpu in machine.gpus)
    untimed = dataclasses.replace(spec, step_us=None, construct_s=None, reset_s=None)
    return untimed, Machine(CORES, MEMORY_BYTES, gpus, bfloat16=False)
