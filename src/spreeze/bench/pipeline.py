"""How much samplers and learner cost each other: rates together, in a real run, against each alone."""

from __future__ import annotations

import json
from tempfile import TemporaryDirectory
from typing import Any

from spreeze.backends.local import Processes
from spreeze.bench.learner import measure as measure_learner
from spreeze.bench.sampling import measure as measure_sampling
from spreeze.compiling import recipe_of
from spreeze.config import Config, config_with, settled
from spreeze.envs.targets import portable
from spreeze.launch import launch
from spreeze.placement import look_around
from spreeze.plan import describe_env, make_plan
from spreeze.rundir import RunDir

FREE = (0.0, 1e6)
"""Bounds of the ratio that hold nobody back."""


def measure(config: Config, seconds: float) -> dict[str, Any]:
    """Sampling and update rates of one config: samplers alone, learner alone, the whole run."""
    config = config_with(config, {"learner.ratio_bounds": FREE, "sampler.random_steps": 0})
    processes = Processes()
    try:
        spec = describe_env(config.env, config, processes, [])
        plan = make_plan(config, spec, look_around(), processes)
        sampling = measure_sampling(plan, portable(config.env), processes, seconds)
    finally:
        processes.close()
    chosen = plan.config
    batch_size = settled(chosen.learner.batch_size)
    learner = measure_learner(recipe_of(chosen, spec, batch_size), seconds)
    with TemporaryDirectory() as folder:
        limits = {"runs": folder, "time": f"{2 * seconds}s", "steps": None, "target": None}
        run = launch(config_with(config, limits), config.env, lambda *_: None)
        together = _steady_rates(RunDir(run.path))
    alone = {"sample_hz": sampling["sample_hz"], "update_hz": learner["update_hz"]}
    return {
        "env": config.env,
        "device": chosen.device,
        "processes": settled(chosen.sampler.processes),
        "envs_per_process": settled(chosen.sampler.envs_per_process),
        "batch_size": batch_size,
        **together,
        "sample_alone_hz": alone["sample_hz"],
        "update_alone_hz": alone["update_hz"],
        "sample_ratio": together["sample_hz"] / alone["sample_hz"],
        "update_ratio": together["update_hz"] / alone["update_hz"],
    }


def _steady_rates(run: RunDir) -> dict[str, float]:
    """Rates of the second half of a run."""
    text = (run.metrics / "supervisor-0.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    middle, end = rows[len(rows) // 2], rows[-1]
    seconds = end["time_s"] - middle["time_s"]
    return {
        "sample_hz": (end["env_steps"] - middle["env_steps"]) / seconds,
        "update_hz": (end["updates"] - middle["updates"]) / seconds,
    }
