"""The tuner: fills every "auto" with a value, and keeps the reason beside it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from spreeze.config import Config, config_with
from spreeze.placement import Machine
from spreeze.spec import EnvSpec, UsageError, transition_layout

SERIAL_UPDATES_PER_STEP = 0.125


def resolve(config: Config, spec: EnvSpec, machine: Machine) -> tuple[Config, dict[str, str]]:
    """The config without any "auto", and why each value was chosen, by knob."""
    reasons: dict[str, str] = {}

    def fill(name: str, value: Any, reason: str) -> Any:
        section, _, knob = name.rpartition(".")
        holder = getattr(config, "hyper" if section == "algo" else section) if section else config
        current = getattr(holder, knob)
        if current != "auto":
            return current
        nonlocal_config(name, value)
        reasons[name] = reason
        return value

    def nonlocal_config(name: str, value: Any) -> None:
        nonlocal config
        config = config_with(config, {name: value})

    gpus = machine.gpus
    device = fill("device", "cuda" if gpus else "cpu", f"{gpus[0].name} found" if gpus else "no NVIDIA GPU found")
    if device.startswith("cuda") and not gpus:
        raise UsageError([f"--device {device}: no NVIDIA GPU was found here. Use --device cpu, or see spreeze doctor."])
    on_gpu = device.startswith("cuda")
    cores = machine.cores
    spare = 2 if cores > 4 else 1
    fill("sampler.processes", max(1, cores - spare), f"{cores} cores, {spare} left to learner and evaluator")
    fill("sampler.envs_per_process", 8, "one forward pass serves eight environments")
    batch = fill("learner.batch_size", 8192 if on_gpu else 256, "large batches fill a GPU" if on_gpu else "a CPU computes small batches best")
    width = transition_layout(spec).row_bytes
    budget = gpus[0].memory_bytes if on_gpu else machine.memory_bytes
    fitting = int(budget / 4 / width)
    fill("replay.capacity", min(1_000_000, fitting), f"{width} bytes per transition, {budget / 2**30:.0f} GiB free")
    fill("learner.warmup_rows", min(max(batch, 1000), config.replay.capacity), "a few batches of random actions")  # type: ignore[type-var]
    fill("learner.updates_per_publish", 16 if on_gpu else 4, "a publication costs less than 2 % of the updates between")
    fill("learner.threads", max(1, cores - 1) if cores <= 2 else 1 if on_gpu else max(1, cores // 2), f"of {cores} cores")
    scale = math.sqrt(batch / 256)
    fill("algo.lr", min(3e-4 * scale, 1e-3), f"3e-4 at batch 256, growing with its square root to 1e-3; batch is {batch}")
    fill("algo.tau", min(0.005 * max(1.0, scale / 2), 0.01), f"0.005 at batch 256, up to 0.01; batch is {batch}")
    fill("evaluator.every_s", 0.0, "a tenth of the evaluator's time")
    if config.learner.updates_per_step == "auto":
        if config.serial:
            fill("learner.updates_per_step", SERIAL_UPDATES_PER_STEP, "one process alternates between acting and learning")
        fill("learner.ratio_bounds", (0.0, 8.0), "samplers run free; the learner waits where data are scarce")
    else:
        ratio = config.learner.updates_per_step
        fill("learner.ratio_bounds", (ratio, ratio), "--learner.updates-per-step was given")
    return dataclasses.replace(config), reasons
