"""`spreeze bench sampling`."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import tyro

from spreeze.algos.off_policy import OffPolicyConfig
from spreeze.bench.result import checked, or_auto, write_result
from spreeze.machine.facts import detect_machine
from spreeze.settings.arguments import read_arguments
from spreeze.settings.defaults import config_with, default_config
from spreeze.text import short


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Measure the env steps per second of samplers alone, with a policy of two layers of 256."""

    env: tyro.conf.Positional[str]
    """Gymnasium id, module:Id, or package.module:EnvClass."""
    processes: int | None = None
    """Number of samplers. Default: one per core."""
    envs_per_process: int | None = None
    """Environments per sampler. Default: as in a run."""
    seconds: float = 12.0
    """Time to measure."""
    json: str | None = None
    """Write the result as JSON to this file; - for standard output."""


def main(arguments: list[str]) -> int:
    """Measure, then write and print the result."""
    args = read_arguments(Arguments, arguments, "bench sampling")
    from spreeze.bench.sampling import measure
    from spreeze.envs.targets import picklable_target
    from spreeze.run.plan import describe_env, make_plan
    from spreeze.run.processes.pool import Processes

    machine = detect_machine()
    knobs: dict[str, Any] = {
        "device": "cpu",
        "algo.hidden": (256, 256),
        "replay.capacity": 1000,
        "sampler.random_steps": 0,
        "sampler.processes": machine.cores if args.processes is None else args.processes,
        "sampler.envs_per_process": or_auto(args.envs_per_process),
    }
    config = default_config(env=args.env)
    if isinstance(config.hyper, OffPolicyConfig):
        knobs["algo.n_step"] = 1
    config = checked(config_with(config, knobs), args.seconds)
    began = time.monotonic()
    processes = Processes()
    try:
        spec = describe_env(args.env, config, processes, [])
        plan = make_plan(config, spec, machine, processes)
        num = plan.config.sampler.processes
        print(f"{args.env}: {num} samplers, {args.seconds:.0f} s ...", file=sys.stderr)
        result = measure(plan, picklable_target(args.env), processes, args.seconds)
    finally:
        processes.close()
    write_result("sampling", arguments, args.json, began, result)
    if args.json != "-":
        parts = ", ".join(f"{name} {value:.1f}" for name, value in result["us_per_step"].items())
        print(
            f"{short(result['sample_hz'])} env steps/s, {100 * result['ratio']:.1f} % of the bare "
            f"simulator's {short(result['raw_hz'])}\n"
            f"microseconds per step: {parts}\n"
            f"largest sampler: {result['sampler_pss_mb']:.0f} MB"
        )
    return 0
